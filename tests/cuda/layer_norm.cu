// functions.py:32  return F.layer_norm(x, (x.shape[-1],), w, b)
// x: float32[64, 1024], w: float32[1024], b: float32[1024], layer_norm: float32[64, 1024]
// grid 64, block 64
extern "C" __global__ void __launch_bounds__(64) layer_norm_kernel(
    const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
    float* __restrict__ layer_norm) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  __shared__ alignas(16) float sum_of_warps[2];
  __shared__ alignas(16) float squares_of_warps[2];
  float x_of_row = x[block * 1024];
  float sum_of_row = 0.0f;
  alignas(16) float x_part[16];
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    *(float4*)(x_part + step * 4) = *(const float4*)(x + block * 1024 + step * 256 + thread * 4);
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      sum_of_row += x_part[step * 4 + lane] - x_of_row;
    }
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    sum_of_row += __shfl_xor_sync(0xffffffff, sum_of_row, 16 >> halving, 32);
  }
  if (thread % 32 == 0) {
    sum_of_warps[thread >> 5] = sum_of_row;
  }
  __syncthreads();
  sum_of_row = sum_of_warps[0];
  sum_of_row += sum_of_warps[1];
  float squares_of_row = 0.0f;
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      float difference = x_part[step * 4 + lane] - (sum_of_row / 1024.0f + x_of_row);
      squares_of_row += difference * difference;
    }
  }
  #pragma unroll
  for (int halving = 0; halving < 5; ++halving) {
    squares_of_row += __shfl_xor_sync(0xffffffff, squares_of_row, 16 >> halving, 32);
  }
  if (thread % 32 == 0) {
    squares_of_warps[thread >> 5] = squares_of_row;
  }
  __syncthreads();
  squares_of_row = squares_of_warps[0];
  squares_of_row += squares_of_warps[1];
  float scale_of_row = rsqrtf(squares_of_row * 0.0009765625f + 1e-05f);
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    alignas(16) float w_vector[4];
    *(float4*)w_vector = *(const float4*)(w + step * 256 + thread * 4);
    alignas(16) float b_vector[4];
    *(float4*)b_vector = *(const float4*)(b + step * 256 + thread * 4);
    alignas(16) float layer_norm_vector[4];
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      layer_norm_vector[lane] =
          (x_part[step * 4 + lane] - (sum_of_row / 1024.0f + x_of_row)) * scale_of_row
          * w_vector[lane] + b_vector[lane];
    }
    *(float4*)(layer_norm + block * 1024 + step * 256 + thread * 4) = *(float4*)layer_norm_vector;
  }
}
