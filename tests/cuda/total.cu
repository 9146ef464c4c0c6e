// functions.py:45  return x.sum()
// x: float32[512, 1024], total_of_pieces: float32[128]
// grid 128, block 256
extern "C" __global__ void __launch_bounds__(256) total_kernel(
    const float* __restrict__ x, float* __restrict__ total_of_pieces) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  __shared__ alignas(16) float total_of_warps[8];
  float total_of_piece = 0.0f;
  for (int step = 0; step < 4; ++step) {
    alignas(16) float x_vector[4];
    *(float4*)x_vector = *(const float4*)(x + step * 131072 + block * 1024 + thread * 4);
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      total_of_piece += x_vector[lane];
    }
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    total_of_piece += __shfl_xor_sync(0xffffffff, total_of_piece, 16 >> halving, 32);
  }
  if (thread % 32 == 0) {
    total_of_warps[thread >> 5] = total_of_piece;
  }
  __syncthreads();
  total_of_piece = total_of_warps[0];
  #pragma unroll
  for (int warp = 0; warp < 7; ++warp) {
    total_of_piece += total_of_warps[warp + 1];
  }
  if (thread == 0) {
    total_of_pieces[block] = total_of_piece;
  }
}

// functions.py:45  return x.sum()
// total_of_pieces: float32[128], total: float32[]
// grid 1, block 256
extern "C" __global__ void __launch_bounds__(256) total_kernel_1(
    const float* __restrict__ total_of_pieces, float* __restrict__ total) {
  const int thread = threadIdx.x;
  __shared__ alignas(16) float total_of_warps[8];
  float total_of_row = 0.0f;
  if (thread < 128) {
    total_of_row += total_of_pieces[thread];
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    total_of_row += __shfl_xor_sync(0xffffffff, total_of_row, 16 >> halving, 32);
  }
  if (thread % 32 == 0) {
    total_of_warps[thread >> 5] = total_of_row;
  }
  __syncthreads();
  total_of_row = total_of_warps[0];
  #pragma unroll
  for (int warp = 0; warp < 7; ++warp) {
    total_of_row += total_of_warps[warp + 1];
  }
  if (thread == 0) {
    total[0] = total_of_row;
  }
}
