// functions.py:23  return torch.softmax(x, -1)
// x: float32[64, 4096], softmax: float32[64, 4096]
// grid 64, block 256
extern "C" __global__ void __launch_bounds__(256) softmax_kernel(
    const float* __restrict__ x, float* __restrict__ softmax) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  __shared__ alignas(16) float top_of_warps[8];
  __shared__ alignas(16) float total_of_warps[8];
  float top_of_row = -3.4028235e+38f;
  alignas(16) float x_part[16];
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    *(float4*)(x_part + step * 4) = *(const float4*)(x + block * 4096 + step * 1024 + thread * 4);
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      top_of_row = max(top_of_row, x_part[step * 4 + lane]);
    }
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    top_of_row = max(top_of_row, __shfl_xor_sync(0xffffffff, top_of_row, 16 >> halving, 32));
  }
  if (thread % 32 == 0) {
    top_of_warps[thread >> 5] = top_of_row;
  }
  __syncthreads();
  top_of_row = top_of_warps[0];
  #pragma unroll
  for (int warp = 0; warp < 7; ++warp) {
    top_of_row = max(top_of_row, top_of_warps[warp + 1]);
  }
  float total_of_row = 0.0f;
  alignas(16) float exponential_part[16];
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      exponential_part[step * 4 + lane] = expf(x_part[step * 4 + lane] - top_of_row);
      total_of_row += exponential_part[step * 4 + lane];
    }
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
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    alignas(16) float softmax_vector[4];
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      softmax_vector[lane] = exponential_part[step * 4 + lane] * (1.0f / total_of_row);
    }
    *(float4*)(softmax + block * 4096 + step * 1024 + thread * 4) = *(float4*)softmax_vector;
  }
}
