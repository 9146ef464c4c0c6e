// functions.py:10  return x + y
// x: float32[64, 1024], y: float32[64, 1024], add: float32[64, 1024]
// grid 128, block 128
extern "C" __global__ void __launch_bounds__(128) add_kernel(
    const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ add) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  alignas(16) float x_vector[4];
  *(float4*)x_vector = *(const float4*)(x + block * 512 + thread * 4);
  alignas(16) float y_vector[4];
  *(float4*)y_vector = *(const float4*)(y + block * 512 + thread * 4);
  alignas(16) float add_vector[4];
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    add_vector[lane] = x_vector[lane] + y_vector[lane];
  }
  *(float4*)(add + block * 512 + thread * 4) = *(float4*)add_vector;
}
