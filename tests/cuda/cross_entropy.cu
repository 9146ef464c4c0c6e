// functions.py:36  return F.cross_entropy(x, labels, reduction="none")
// x: float32[64, 1024], labels: int64[64], cross_entropy: float32[64]
// grid 64, block 64
extern "C" __global__ void __launch_bounds__(64) cross_entropy_kernel(
    const float* __restrict__ x, const int64_t* __restrict__ labels,
    float* __restrict__ cross_entropy) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  __shared__ alignas(16) float top_of_warps[2];
  __shared__ alignas(16) float total_of_warps[2];
  float top_of_row = -3.4028235e+38f;
  alignas(16) float x_part[16];
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    *(float4*)(x_part + step * 4) = *(const float4*)(x + block * 1024 + step * 256 + thread * 4);
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
  top_of_row = max(top_of_row, top_of_warps[1]);
  float total_of_row = 0.0f;
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      total_of_row += expf(x_part[step * 4 + lane] - top_of_row);
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
  total_of_row += total_of_warps[1];
  float log_total_of_row = logf(total_of_row);
  float chosen;
  if (labels[block] == -100) {
    chosen = 0.0f;
  } else {
    float chosen_1;
    if (0 <= labels[block] && labels[block] < 1024) {
      chosen_1 = 0.0f - (x[(int64_t)block * 1024 + labels[block]] - top_of_row - log_total_of_row);
    } else {
      chosen_1 = CUDART_NAN_F;
    }
    chosen = chosen_1;
  }
  float cross_entropy_of_row = chosen;
  if (thread == 0) {
    cross_entropy[block] = cross_entropy_of_row;
  }
}
