// functions.py:55  for t in reversed(range(rewards.shape[0])):
// functions.py:56  running = rewards[t] + discount * running
// functions.py:57  out[t] = running
// rewards: float32[100, 70], returns: float32[100, 70], discount: float64
// grid 3, block 32
extern "C" __global__ void __launch_bounds__(32) returns_kernel(
    const float* __restrict__ rewards, float* __restrict__ returns, double discount) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  if (block * 32 + thread < 70) {
    float running = 0.0f;
    for (int step = 0; step < 100; ++step) {
      running = rewards[block * 32 + thread + 6930 - step * 70] + (float)discount * running;
      returns[block * 32 + thread + 6930 - step * 70] = running;
    }
  }
}
