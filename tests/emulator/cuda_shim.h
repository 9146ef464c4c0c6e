// The CUDA language on the CPU: what nvcc predefines and what CUDA's headers declare.
//
// g++ reads this before a kernel's source, precompiled. The source is TVM's, with its preamble:
// max(half, half), half4 and their like come from there. Only two things are rewritten in the
// text (emulator.py): `extern __shared__` and which kernel a `__shared__` belongs to.

#pragma once

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "device.h"

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900

// ---- Declarations ------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// The standard attribute may not follow `static`, where TVM writes it.
#define alignas(n) __attribute__((aligned(n)))
// `used` keeps g++ from folding what it thinks nobody writes: each block fills it with 0xFF.
#define __shared__ static __attribute__((used, section(EMULATOR_SHARED_SECTION)))

#define threadIdx emulator_thread_index
#define blockIdx emulator_block_index
#define blockDim emulator_block_size
#define gridDim emulator_grid_size
#define warpSize 32

// Calls a kernel with arguments that the driver holds by address.
template <class... Parameters, size_t... I>
inline void emulator_call(void (*kernel)(Parameters...), void** arguments,
                          std::index_sequence<I...>) {
  kernel(*static_cast<typename std::remove_const<Parameters>::type*>(arguments[I])...);
}
template <class... Parameters>
inline void emulator_call(void (*kernel)(Parameters...), void** arguments) {
  emulator_call(kernel, arguments, std::index_sequence_for<Parameters...>());
}

// Which of a kernel's parameters are addresses, as a text of '*' and '-'.
template <class... Parameters>
struct EmulatorParameters {
  static constexpr char kinds[] = {(std::is_pointer<Parameters>::value ? '*' : '-')..., '\0'};
};
template <class... Parameters>
constexpr const char* emulator_kinds(void (*)(Parameters...)) {
  return EmulatorParameters<Parameters...>::kinds;
}

// Written after each kernel's source. The linker names the ends of a section.
#define EMULATOR_EXPORT(kernel, bound)                                                     \
  extern "C" {                                                                             \
  extern unsigned char __attribute__((weak, visibility("hidden"))) __start_shared_##kernel[]; \
  extern unsigned char __attribute__((weak, visibility("hidden"))) __stop_shared_##kernel[]; \
  static void run_##kernel(void** arguments) { emulator_call(&kernel, arguments); }        \
  __attribute__((visibility("default"))) extern const EmulatorKernel emulated_##kernel;    \
  const EmulatorKernel emulated_##kernel = {&run_##kernel, __start_shared_##kernel,        \
                                            __stop_shared_##kernel, bound,                 \
                                            emulator_kinds(&kernel)};                     \
  }

// ---- Threads -----------------------------------------------------------------------------------

#define __syncthreads() emulator_syncthreads(__LINE__)
#define __activemask() emulator_activemask(__LINE__)
#define __syncwarp(...) emulator_syncwarp(__LINE__, ##__VA_ARGS__)
#define __shfl_sync(...) emulator_shfl(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulator_shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emulator_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulator_shfl_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) \
  emulator_collective(EMULATOR_BALLOT, mask, nullptr, 0, (predicate) != 0, __LINE__)
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, !(predicate)) == 0)

inline void emulator_syncwarp(int line, unsigned mask = ~0u) {
  emulator_collective(EMULATOR_SYNC, mask, nullptr, 0, 0, line);
}

template <class T>
inline T emulator_read_lane(int line, unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 16, "a shuffle moves 16 bytes at most");
  emulator_collective(EMULATOR_SHUFFLE, mask, &value, sizeof value, source, line);
  return value;
}

// A warp is split into groups of `width` lanes; a lane whose source is outside its group reads
// its own value.
template <class T>
inline T emulator_shfl(int line, unsigned mask, T value, int lane, int width = 32) {
  const int first = emulator_lane / width * width;
  return emulator_read_lane(line, mask, value, first + (lane & (width - 1)));
}
template <class T>
inline T emulator_shfl_up(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned within = emulator_lane % width;
  return emulator_read_lane(line, mask, value,
                            delta > within ? emulator_lane : emulator_lane - delta);
}
template <class T>
inline T emulator_shfl_down(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned within = emulator_lane % width;
  return emulator_read_lane(line, mask, value,
                            within + delta >= unsigned(width) ? emulator_lane
                                                              : emulator_lane + delta);
}
template <class T>
inline T emulator_shfl_xor(int line, unsigned mask, T value, int lanes, int width = 32) {
  const unsigned source = emulator_lane ^ lanes;
  // Unlike the others, xor may read a lower group; only a higher one is out of reach.
  return emulator_read_lane(line, mask, value,
                            source / width > emulator_lane / width ? emulator_lane : source);
}

// One thread runs at a time, and stores reach memory in order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

#define EMULATOR_ATOMIC(name, expression)    \
  template <class T, class U>                \
  inline T name(T* address, U operand) {     \
    const T old = *address, value = operand; \
    *address = expression;                   \
    return old;                              \
  }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicExch, value)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMax, value > old ? value : old)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
template <class T>
inline T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
template <class T>
inline T __ldg(const T* address) {
  return *address;
}

// ---- Vector types ------------------------------------------------------------------------------

#define EMULATOR_VECTOR(T, name)                                                           \
  struct name##1 { T x; };                                                                 \
  struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                     \
  struct name##3 { T x, y, z; };                                                           \
  struct __align__(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };          \
  inline name##1 make_##name##1(T x) { return {x}; }                                       \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                               \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                       \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTOR(signed char, char)
EMULATOR_VECTOR(unsigned char, uchar)
EMULATOR_VECTOR(short, short)
EMULATOR_VECTOR(unsigned short, ushort)
EMULATOR_VECTOR(int, int)
EMULATOR_VECTOR(unsigned, uint)
EMULATOR_VECTOR(long, long)
EMULATOR_VECTOR(unsigned long, ulong)
EMULATOR_VECTOR(long long, longlong)
EMULATOR_VECTOR(unsigned long long, ulonglong)
EMULATOR_VECTOR(float, float)
EMULATOR_VECTOR(double, double)

// CUDA has loads past the caches of these types and no others; of halves, in cuda_half.h.
#define EMULATOR_STREAM(T) \
  inline T __ldcs(const T* address) { return *address; }

EMULATOR_STREAM(char)
EMULATOR_STREAM(signed char)
EMULATOR_STREAM(short)
EMULATOR_STREAM(int)
EMULATOR_STREAM(long)
EMULATOR_STREAM(long long)
EMULATOR_STREAM(char2)
EMULATOR_STREAM(char4)
EMULATOR_STREAM(short2)
EMULATOR_STREAM(short4)
EMULATOR_STREAM(int2)
EMULATOR_STREAM(int4)
EMULATOR_STREAM(longlong2)
EMULATOR_STREAM(unsigned char)
EMULATOR_STREAM(unsigned short)
EMULATOR_STREAM(unsigned)
EMULATOR_STREAM(unsigned long)
EMULATOR_STREAM(unsigned long long)
EMULATOR_STREAM(uchar2)
EMULATOR_STREAM(uchar4)
EMULATOR_STREAM(ushort2)
EMULATOR_STREAM(ushort4)
EMULATOR_STREAM(uint2)
EMULATOR_STREAM(uint4)
EMULATOR_STREAM(ulonglong2)
EMULATOR_STREAM(float)
EMULATOR_STREAM(float2)
EMULATOR_STREAM(float4)
EMULATOR_STREAM(double)
EMULATOR_STREAM(double2)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- Bits --------------------------------------------------------------------------------------

template <class To, class From>
inline To emulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

inline float __int_as_float(int x) { return emulator_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator_bits<float>(x); }
inline int __float_as_int(float x) { return emulator_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator_bits<unsigned>(x); }
inline long long __double_as_longlong(double x) { return emulator_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator_bits<double>(x); }
inline int __double2hiint(double x) { return __double_as_longlong(x) >> 32; }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
inline int __mulhi(int x, int y) { return static_cast<long long>(x) * y >> 32; }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned long long>(x) * y >> 32;
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
template <class Word, class Byte>
inline Word emulator_dp4a(Word a, Word b, Word c) {
  for (int shift = 0; shift < 32; shift += 8)
    c += static_cast<Byte>(a >> shift) * static_cast<Byte>(b >> shift);
  return c;
}
inline int __dp4a(int a, int b, int c) { return emulator_dp4a<int, signed char>(a, b, c); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return emulator_dp4a<unsigned, unsigned char>(a, b, c);
}

// ---- Arithmetic --------------------------------------------------------------------------------

// For floats CUDA's max and min are fmax and fmin: a NaN loses against a number.
#define EMULATOR_MIN_MAX(T)                              \
  inline T max(T x, T y) { return x < y ? y : x; }       \
  inline T min(T x, T y) { return y < x ? y : x; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
inline float max(float x, float y) { return fmaxf(x, y); }
inline float min(float x, float y) { return fminf(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline double min(double x, double y) { return fmin(x, y); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
inline float sinpif(float x) { return sinf(x * 3.14159265f); }
inline float cospif(float x) { return cosf(x * 3.14159265f); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
// As the hardware has it: 0 for large divisors, which are none for it.
inline float __fdividef(float x, float y) {
  const float size = fabsf(y);
  return size > 0x1p126f && size < INFINITY ? 0.0f * x : x / y;
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }

// The fast intrinsics. Macros: glibc declares functions of the same names.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf

// math_constants.h
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF static_cast<double>(INFINITY)
#define CUDART_NAN static_cast<double>(NAN)

#include "cuda_half.h"
#include "cuda_ptx.h"
#include "cuda_wmma.h"
