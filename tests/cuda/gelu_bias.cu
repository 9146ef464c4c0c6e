// functions.py:14  y = x + b
// functions.py:15  return torch.sigmoid(1.702 * y) * y
// x: float32[64, 1024], b: float32[1024], gelu_bias: float32[64, 1024]
// grid 128, block 128
extern "C" __global__ void __launch_bounds__(128) gelu_bias_kernel(
    const float* __restrict__ x, const float* __restrict__ b, float* __restrict__ gelu_bias) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  alignas(16) float x_vector[4];
  *(float4*)x_vector = *(const float4*)(x + block * 512 + thread * 4);
  alignas(16) float b_vector[4];
  *(float4*)b_vector = *(const float4*)(b + ((block * 512 + thread * 4) & 1023));
  alignas(16) float gelu_bias_vector[4];
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    float y = x_vector[lane] + b_vector[lane];
    gelu_bias_vector[lane] = 1.0f / (1.0f + expf(-(1.702f * y))) * y;
  }
  *(float4*)(gelu_bias + block * 512 + thread * 4) = *(float4*)gelu_bias_vector;
}
