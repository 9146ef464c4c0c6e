// nvcuda::wmma, the tensor core interface of mma.h.
//
// CUDA leaves open which lane holds which part of a tile. Here a lane holds 32ths of the result:
// eight neighbouring elements of one row, and of the operands the row of A and the eight columns
// of B that these need. All elements are read, and each product is computed once.

#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

constexpr int kPerLane = 8;  // M * N is 256 in every shape

template <class Use, int M, int N, int K>
constexpr int fragment_size =
    std::is_same<Use, matrix_a>::value ? K : std::is_same<Use, matrix_b>::value ? K * kPerLane
                                                                                : kPerLane;

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M * N == 256, "a tile has 256 elements");
  static constexpr int num_elements = fragment_size<Use, M, N, K>;
  T x[num_elements];
};

template <int N>
int own_row() {
  return emulator_lane * kPerLane / N;
}
template <int N>
int own_column() {
  return emulator_lane * kPerLane % N;
}

// All lanes must take part. That orders nothing: a lane may still run ahead of the next.
#define EMULATOR_WARP_ALIGNED() emulator_collective(EMULATOR_SYNC, ~0u, nullptr, 0, 0, __LINE__)

template <class Use, int M, int N, int K, class T, class Layout, class Value>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& tile, Value value) {
  for (T& element : tile.x) element = T(value);
}

template <int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<matrix_a, M, N, K, T, Layout>& tile, const T* memory,
                      unsigned stride) {
  EMULATOR_WARP_ALIGNED();
  const int row = own_row<N>();
  for (int k = 0; k < K; ++k)
    tile.x[k] = std::is_same<Layout, row_major>::value ? memory[row * stride + k]
                                                       : memory[k * stride + row];
}

template <int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<matrix_b, M, N, K, T, Layout>& tile, const T* memory,
                      unsigned stride) {
  EMULATOR_WARP_ALIGNED();
  for (int k = 0; k < K; ++k)
    for (int i = 0; i < kPerLane; ++i) {
      const int column = own_column<N>() + i;
      tile.x[k * kPerLane + i] = std::is_same<Layout, row_major>::value
                                     ? memory[k * stride + column]
                                     : memory[column * stride + k];
    }
}

template <int M, int N, int K, class T>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& tile, const T* memory, unsigned stride,
                      layout_t layout) {
  EMULATOR_WARP_ALIGNED();
  const int row = own_row<N>(), column = own_column<N>();
  for (int i = 0; i < kPerLane; ++i)
    tile.x[i] = layout == mem_row_major ? memory[row * stride + column + i]
                                        : memory[(column + i) * stride + row];
}

template <int M, int N, int K, class T>
void store_matrix_sync(T* memory, const fragment<accumulator, M, N, K, T>& tile, unsigned stride,
                       layout_t layout) {
  EMULATOR_WARP_ALIGNED();
  const int row = own_row<N>(), column = own_column<N>();
  for (int i = 0; i < kPerLane; ++i)
    (layout == mem_row_major ? memory[row * stride + column + i]
                             : memory[(column + i) * stride + row]) = tile.x[i];
}

// Products and sums are exact or float, whatever the accumulator, which is rounded at the end.
template <int M, int N, int K, class T, class Operand, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, M, N, K, T>& result,
              const fragment<matrix_a, M, N, K, Operand, LayoutA>& a,
              const fragment<matrix_b, M, N, K, Operand, LayoutB>& b,
              const fragment<accumulator, M, N, K, T>& c) {
  using Sum = typename std::conditional<std::is_integral<T>::value, int, float>::type;
  Sum sums[kPerLane];
  for (int i = 0; i < kPerLane; ++i) sums[i] = static_cast<Sum>(c.x[i]);
  for (int k = 0; k < K; ++k) {
    const Sum left = static_cast<Sum>(a.x[k]);
    for (int i = 0; i < kPerLane; ++i) sums[i] += left * static_cast<Sum>(b.x[k * kPerLane + i]);
  }
  for (int i = 0; i < kPerLane; ++i) result.x[i] = T(sums[i]);
}

#undef EMULATOR_WARP_ALIGNED

}  // namespace wmma
}  // namespace nvcuda
