// functions.py:27  scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
// functions.py:28  return x * scale * w
// x: float16[64, 1024], w: float16[1024], rms_norm: float16[64, 1024]
// grid 64, block 64
extern "C" __global__ void __launch_bounds__(64) rms_norm_kernel(
    const half* __restrict__ x, const half* __restrict__ w, half* __restrict__ rms_norm) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  __shared__ alignas(16) float mean_of_warps[2];
  float mean_of_row = 0.0f;
  alignas(16) half x_part[16];
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    *(uint4*)(x_part + step * 8) = *(const uint4*)(x + block * 1024 + step * 512 + thread * 8);
    #pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      mean_of_row += (float)(x_part[step * 8 + lane] * x_part[step * 8 + lane]);
    }
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    mean_of_row += __shfl_xor_sync(0xffffffff, mean_of_row, 16 >> halving, 32);
  }
  if (thread % 32 == 0) {
    mean_of_warps[thread >> 5] = mean_of_row;
  }
  __syncthreads();
  mean_of_row = mean_of_warps[0];
  mean_of_row += mean_of_warps[1];
  half scale_of_row = (half)rsqrtf((float)(half)((float)(half)(mean_of_row / 1024.0f) + 1e-06f));
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    alignas(16) half w_vector[8];
    *(uint4*)w_vector = *(const uint4*)(w + step * 512 + thread * 8);
    alignas(16) half rms_norm_vector[8];
    #pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      rms_norm_vector[lane] = x_part[step * 8 + lane] * scale_of_row * w_vector[lane];
    }
    *(uint4*)(rms_norm + block * 1024 + step * 512 + thread * 8) = *(uint4*)rms_norm_vector;
  }
}
