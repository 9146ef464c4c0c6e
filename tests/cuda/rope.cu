// functions.py:40  a, b = x.chunk(2, -1)
// functions.py:41  return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
// x: float32[64, 128], cos_ptr: float32[64, 64], sin_ptr: float32[64, 64], rope: float32[64, 128]
// grid 16, block 128
extern "C" __global__ void __launch_bounds__(128) rope_kernel(
    const float* __restrict__ x, const float* __restrict__ cos_ptr,
    const float* __restrict__ sin_ptr, float* __restrict__ rope) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  alignas(16) float rope_vector[4];
  if ((thread & 31) * 4 < 64) {
    alignas(16) float x_vector[4];
    *(float4*)x_vector = *(const float4*)(x + block * 512 + thread * 4);
    alignas(16) float cos_vector[4];
    *(float4*)cos_vector =
        *(const float4*)(cos_ptr + block * 256 + (thread >> 5) * 64 + (thread & 31) * 4);
    alignas(16) float x_other_vector[4];
    *(float4*)x_other_vector = *(const float4*)(x + block * 512 + thread * 4 + 64);
    alignas(16) float sin_vector[4];
    *(float4*)sin_vector =
        *(const float4*)(sin_ptr + block * 256 + (thread >> 5) * 64 + (thread & 31) * 4);
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      rope_vector[lane] = x_vector[lane] * cos_vector[lane]
          - x_other_vector[lane] * sin_vector[lane];
    }
  } else {
    alignas(16) float x_other_vector[4];
    *(float4*)x_other_vector = *(const float4*)(x + block * 512 + thread * 4 - 64);
    alignas(16) float sin_other_vector[4];
    *(float4*)sin_other_vector =
        *(const float4*)(sin_ptr + block * 256 + (thread >> 5) * 64 + (thread & 31) * 4 - 64);
    alignas(16) float x_other_vector_1[4];
    *(float4*)x_other_vector_1 = *(const float4*)(x + block * 512 + thread * 4);
    alignas(16) float cos_other_vector[4];
    *(float4*)cos_other_vector =
        *(const float4*)(cos_ptr + block * 256 + (thread >> 5) * 64 + (thread & 31) * 4 - 64);
    #pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      rope_vector[lane] = x_other_vector[lane] * sin_other_vector[lane]
          + x_other_vector_1[lane] * cos_other_vector[lane];
    }
  }
  *(float4*)(rope + block * 512 + thread * 4) = *(float4*)rope_vector;
}
