// functions.py:40  a, b = x.chunk(2, -1)
// functions.py:41  return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
// x: float32[64, 128], cos: float32[64, 64], sin: float32[64, 64], rope: float32[64, 128]
// grid 8, block 256
extern "C" __global__ void __launch_bounds__(256) rope_kernel(float* __restrict__ cos_ptr, float* __restrict__ rope, float* __restrict__ sin_ptr, float* __restrict__ x) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  alignas(16) float rope_vector[4];
  #pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    float condval;
    if ((((block * 256 + thread) * 4 + lane) & 127) < 64) {
      condval = x[block * 1024 + thread * 4 + lane] * cos_ptr[block * 512 + ((thread * 4 + lane) >> 7) * 64 + ((thread * 4 + lane) & 127)] - x[block * 1024 + thread * 4 + lane + 64] * sin_ptr[block * 512 + ((thread * 4 + lane) >> 7) * 64 + ((thread * 4 + lane) & 127)];
    } else {
      condval = x[block * 1024 + thread * 4 + lane - 64] * sin_ptr[block * 512 + ((thread * 4 + lane) >> 7) * 64 + ((thread * 4 + lane) & 127) - 64] + x[block * 1024 + thread * 4 + lane] * cos_ptr[block * 512 + ((thread * 4 + lane) >> 7) * 64 + ((thread * 4 + lane) & 127) - 64];
    }
    rope_vector[lane] = condval;
  }
  *(float4*)(rope + block * 1024 + thread * 4) = *(float4*)rope_vector;
}
