// functions.py:49  return x.T.contiguous()
// x: float32[100, 70], transpose: float32[70, 100]
// grid 4 x 3, block 32 x 8
extern "C" __global__ void __launch_bounds__(256) transpose_kernel(
    const float* __restrict__ x, float* __restrict__ transpose) {
  const int block = blockIdx.x;
  const int block_y = blockIdx.y;
  const int thread = threadIdx.x;
  const int thread_y = threadIdx.y;
  __shared__ alignas(16) float x_tile[1055];
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (block_y * 32 + thread < 70 && block * 32 + (step * 8 + thread_y) < 100) {
      x_tile[step * 264 + thread_y * 33 + thread] =
          x[block * 2240 + step * 560 + thread_y * 70 + block_y * 32 + thread];
    }
  }
  __syncthreads();
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (block_y * 32 + (step * 8 + thread_y) < 70 && block * 32 + thread < 100) {
      transpose[block_y * 3200 + step * 800 + thread_y * 100 + block * 32 + thread] =
          x_tile[thread * 33 + step * 8 + thread_y];
    }
  }
}
