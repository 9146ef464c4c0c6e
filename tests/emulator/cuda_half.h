// half and nv_bfloat16: what cuda_fp16.h and cuda_bf16.h define, and no more.
//
// A name that CUDA lacks must be missing here too, or code that nvcc refuses would pass. Each
// operation rounds once, from an exact or float intermediate, as the hardware does.

#pragma once

// ---- half --------------------------------------------------------------------------------------

// How CUDA moves a value from and to volatile memory, which TVM's reductions do.
struct __half_raw {
  unsigned short x;
};

struct alignas(2) __half {
  _Float16 value;

  __half() = default;
  __half(__half_raw raw) : value(emulator_bits<_Float16>(raw.x)) {}
  __half(float from) : value(static_cast<_Float16>(from)) {}
  __half(double from) : value(static_cast<_Float16>(from)) {}
  template <class Integer, class = typename std::enable_if<std::is_integral<Integer>::value>::type>
  __half(Integer from) : value(static_cast<_Float16>(static_cast<double>(from))) {}
  operator float() const { return static_cast<float>(value); }
  operator __half_raw() const volatile {
    const _Float16 copy = value;
    return {emulator_bits<unsigned short>(copy)};
  }
  volatile __half& operator=(const __half_raw& raw) volatile {
    value = emulator_bits<_Float16>(raw.x);
    return *this;
  }
};
typedef __half half;

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline half __double2half(double x) { return half(x); }
inline float __half2float(half x) { return static_cast<float>(x); }
inline half __int2half_rn(int x) { return half(x); }
inline half __uint2half_rn(unsigned x) { return half(x); }
inline half __ll2half_rn(long long x) { return half(x); }
inline int __half2int_rz(half x) { return static_cast<int>(static_cast<float>(x)); }
inline int __half2int_rn(half x) { return static_cast<int>(nearbyintf(x)); }
inline half __ushort_as_half(unsigned short x) { return emulator_bits<half>(x); }
inline half __short_as_half(short x) { return emulator_bits<half>(x); }
inline unsigned short __half_as_ushort(half x) { return emulator_bits<unsigned short>(x); }
inline short __half_as_short(half x) { return emulator_bits<short>(x); }

// ---- nv_bfloat16 -------------------------------------------------------------------------------

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;
  __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
  __nv_bfloat16(float from) {
    unsigned word = emulator_bits<unsigned>(from);
    // To nearest, ties to even. A NaN's payload must not carry into the exponent.
    bits = from != from ? 0x7FFF : (word + 0x7FFF + (word >> 16 & 1)) >> 16;
  }
  __nv_bfloat16(double from) : __nv_bfloat16(to_odd(from)) {}
  __nv_bfloat16(__half from) : __nv_bfloat16(static_cast<float>(from)) {}
  template <class Integer, class = typename std::enable_if<std::is_integral<Integer>::value>::type>
  __nv_bfloat16(Integer from) : __nv_bfloat16(static_cast<double>(from)) {}
  operator float() const { return emulator_bits<float>(static_cast<unsigned>(bits) << 16); }
  operator __nv_bfloat16_raw() const volatile { return {bits}; }
  volatile __nv_bfloat16& operator=(const __nv_bfloat16_raw& raw) volatile {
    bits = raw.x;
    return *this;
  }

 private:
  // Rounding twice, to float and then to bfloat16, errs at ties unless the first rounds to odd.
  static float to_odd(double from) {
    const float near = static_cast<float>(from);
    if (static_cast<double>(near) == from || near != near) return near;
    unsigned word = emulator_bits<unsigned>(near);
    if (fabs(static_cast<double>(near)) > fabs(from)) --word;
    return emulator_bits<float>(word | 1);
  }
};
typedef __nv_bfloat16 nv_bfloat16;

inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __double2bfloat16(double x) { return nv_bfloat16(x); }
inline float __bfloat162float(nv_bfloat16 x) { return static_cast<float>(x); }
inline nv_bfloat16 __int2bfloat16_rn(int x) { return nv_bfloat16(x); }
inline int __bfloat162int_rz(nv_bfloat16 x) { return static_cast<int>(static_cast<float>(x)); }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return emulator_bits<nv_bfloat16>(x); }
inline nv_bfloat16 __short_as_bfloat16(short x) { return emulator_bits<nv_bfloat16>(x); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 x) { return x.bits; }
inline short __bfloat16_as_short(nv_bfloat16 x) { return emulator_bits<short>(x); }

// ---- Both --------------------------------------------------------------------------------------

#define EMULATOR_UNARY(T, name, expression) \
  inline T name(T a) {                      \
    const float x = a;                      \
    return T(expression);                   \
  }
#define EMULATOR_BINARY(T, name, expression) \
  inline T name(T a, T b) {                  \
    const float x = a, y = b;                \
    return T(expression);                    \
  }
#define EMULATOR_COMPARE(T, name, expression) \
  inline bool name(T a, T b) {                \
    const float x = a, y = b;                 \
    return expression;                        \
  }

#define EMULATOR_SHORT_FLOAT(T)                                                  \
  EMULATOR_BINARY(T, operator+, x + y)                                           \
  EMULATOR_BINARY(T, operator-, x - y)                                           \
  EMULATOR_BINARY(T, operator*, x * y)                                           \
  EMULATOR_BINARY(T, operator/, x / y)                                           \
  EMULATOR_UNARY(T, operator-, -x)                                               \
  EMULATOR_UNARY(T, operator+, x)                                                \
  inline T& operator+=(T& a, T b) { return a = a + b; }                          \
  inline T& operator-=(T& a, T b) { return a = a - b; }                          \
  inline T& operator*=(T& a, T b) { return a = a * b; }                          \
  inline T& operator/=(T& a, T b) { return a = a / b; }                          \
  EMULATOR_COMPARE(T, operator==, x == y)                                        \
  EMULATOR_COMPARE(T, operator!=, x != y)                                        \
  EMULATOR_COMPARE(T, operator<, x < y)                                          \
  EMULATOR_COMPARE(T, operator>, x > y)                                          \
  EMULATOR_COMPARE(T, operator<=, x <= y)                                        \
  EMULATOR_COMPARE(T, operator>=, x >= y)                                        \
  EMULATOR_COMPARE(T, __heq, x == y)                                             \
  EMULATOR_COMPARE(T, __hne, x == x && y == y && x != y) /* false for a NaN */   \
  EMULATOR_COMPARE(T, __hneu, x != y)                                            \
  EMULATOR_COMPARE(T, __hlt, x < y)                                              \
  EMULATOR_COMPARE(T, __hgt, x > y)                                              \
  EMULATOR_COMPARE(T, __hle, x <= y)                                             \
  EMULATOR_COMPARE(T, __hge, x >= y)                                             \
  EMULATOR_BINARY(T, __hadd, x + y)                                              \
  EMULATOR_BINARY(T, __hsub, x - y)                                              \
  EMULATOR_BINARY(T, __hmul, x * y)                                              \
  EMULATOR_BINARY(T, __hmul_rn, x * y)                                           \
  EMULATOR_BINARY(T, __hdiv, x / y)                                              \
  EMULATOR_BINARY(T, __hmax, fmaxf(x, y))                                        \
  EMULATOR_BINARY(T, __hmin, fminf(x, y))                                        \
  EMULATOR_BINARY(T, __hmax_nan, x != x ? x : y != y ? y : fmaxf(x, y))          \
  EMULATOR_BINARY(T, __hmin_nan, x != x ? x : y != y ? y : fminf(x, y))          \
  inline T __hfma(T a, T b, T c) {                                               \
    return T(fma(static_cast<double>(float(a)), static_cast<double>(float(b)),   \
                 static_cast<double>(float(c))));                                \
  }                                                                              \
  inline bool __hisnan(T a) { return float(a) != float(a); }                     \
  inline int __hisinf(T a) { return isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0; } \
  EMULATOR_UNARY(T, __habs, fabsf(x))                                            \
  EMULATOR_UNARY(T, __hneg, -x)                                                  \
  EMULATOR_UNARY(T, hexp, expf(x))                                               \
  EMULATOR_UNARY(T, hexp2, exp2f(x))                                             \
  EMULATOR_UNARY(T, hexp10, exp10f(x))                                           \
  EMULATOR_UNARY(T, hlog, logf(x))                                               \
  EMULATOR_UNARY(T, hlog2, log2f(x))                                             \
  EMULATOR_UNARY(T, hlog10, log10f(x))                                           \
  EMULATOR_UNARY(T, hsin, sinf(x))                                               \
  EMULATOR_UNARY(T, hcos, cosf(x))                                               \
  EMULATOR_UNARY(T, htanh, tanhf(x))                                             \
  EMULATOR_UNARY(T, htanh_approx, tanhf(x))                                      \
  EMULATOR_UNARY(T, hsqrt, sqrtf(x))                                             \
  EMULATOR_UNARY(T, hrsqrt, 1.0f / sqrtf(x))                                     \
  EMULATOR_UNARY(T, hrcp, 1.0f / x)                                              \
  EMULATOR_UNARY(T, hfloor, floorf(x))                                           \
  EMULATOR_UNARY(T, hceil, ceilf(x))                                             \
  EMULATOR_UNARY(T, htrunc, truncf(x))                                           \
  EMULATOR_UNARY(T, hrint, rintf(x))

EMULATOR_SHORT_FLOAT(__half)
EMULATOR_SHORT_FLOAT(__nv_bfloat16)

#define EMULATOR_PAIR(T, Pair)                                                    \
  struct alignas(4) Pair {                                                        \
    T x, y;                                                                       \
    Pair() = default;                                                             \
    Pair(T x, T y) : x(x), y(y) {}                                                \
  };                                                                              \
  inline Pair operator+(Pair a, Pair b) { return Pair(a.x + b.x, a.y + b.y); }    \
  inline Pair operator-(Pair a, Pair b) { return Pair(a.x - b.x, a.y - b.y); }    \
  inline Pair operator*(Pair a, Pair b) { return Pair(a.x * b.x, a.y * b.y); }    \
  inline Pair operator/(Pair a, Pair b) { return Pair(a.x / b.x, a.y / b.y); }    \
  inline Pair __hadd2(Pair a, Pair b) { return a + b; }                           \
  inline Pair __hsub2(Pair a, Pair b) { return a - b; }                           \
  inline Pair __hmul2(Pair a, Pair b) { return a * b; }                           \
  inline Pair __hfma2(Pair a, Pair b, Pair c) {                                   \
    return Pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                    \
  }                                                                               \
  inline Pair __hmax2(Pair a, Pair b) { return Pair(__hmax(a.x, b.x), __hmax(a.y, b.y)); } \
  inline Pair __hmin2(Pair a, Pair b) { return Pair(__hmin(a.x, b.x), __hmin(a.y, b.y)); }

EMULATOR_PAIR(__half, __half2)
EMULATOR_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;

EMULATOR_STREAM(half)
EMULATOR_STREAM(half2)
EMULATOR_STREAM(nv_bfloat16)
EMULATOR_STREAM(nv_bfloat162)

inline half2 make_half2(half x, half y) { return half2(x, y); }
inline half2 __halves2half2(half x, half y) { return half2(x, y); }
inline half2 __float22half2_rn(float2 x) { return half2(half(x.x), half(x.y)); }
inline half2 __floats2half2_rn(float x, float y) { return half2(half(x), half(y)); }
inline half2 __float2half2_rn(float x) { return half2(half(x), half(x)); }
inline half2 __half2half2(half x) { return half2(x, x); }
inline float2 __half22float2(half2 x) { return {float(x.x), float(x.y)}; }
inline half __low2half(half2 x) { return x.x; }
inline half __high2half(half2 x) { return x.y; }
inline nv_bfloat162 make_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return nv_bfloat162(x, y); }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return nv_bfloat162(x, y); }
inline nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return nv_bfloat162(nv_bfloat16(x.x), nv_bfloat16(x.y));
}
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return nv_bfloat162(nv_bfloat16(x), nv_bfloat16(y));
}
inline float2 __bfloat1622float2(nv_bfloat162 x) { return {float(x.x), float(x.y)}; }
