// 1 / x for results of 16 bits; 0 where x is above 2 to the power of 126.
__device__ __forceinline__ float fast_reciprocal(float x) {
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(x));
  return quotient;
}

// e to the power of x for results of 16 bits; 0 where float32 would have less than 24 bits.
__device__ __forceinline__ float fast_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}

// functions.py:19  return F.silu(gate) * x
// gate: float16[64, 1024], x: float16[64, 1024], swiglu: float16[64, 1024]
// grid 64, block 128
extern "C" __global__ void __launch_bounds__(128) swiglu_kernel(
    const half* __restrict__ gate, const half* __restrict__ x, half* __restrict__ swiglu) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  alignas(16) half gate_vector[8];
  *(uint4*)gate_vector = *(const uint4*)(gate + block * 1024 + thread * 8);
  alignas(16) half x_vector[8];
  *(uint4*)x_vector = *(const uint4*)(x + block * 1024 + thread * 8);
  alignas(16) half swiglu_vector[8];
  #pragma unroll
  for (int lane = 0; lane < 8; ++lane) {
    swiglu_vector[lane] =
        (half)(0.25f * (float)gate_vector[lane]
        * fast_reciprocal(0.25f + 0.25f * fast_exp(-(float)gate_vector[lane]))) * x_vector[lane];
  }
  *(uint4*)(swiglu + block * 1024 + thread * 8) = *(uint4*)swiglu_vector;
}
