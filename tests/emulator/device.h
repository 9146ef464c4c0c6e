// What compiled kernels, the scheduler that runs them and the fake driver agree on.
//
// A kernel is a shared object built from CUDA source by g++ with cuda_shim.h in front. It calls
// the functions below, which live in the fake libcuda.so.1: the scheduler is compiled once, and
// the order in which threads run can change between two launches of the same kernel.

#pragma once

#include <stddef.h>

struct EmulatorIndex {
  unsigned x, y, z;
};

// What a kernel's shared object exports for each kernel, under the name emulated_<kernel>.
struct EmulatorKernel {
  void (*run)(void** arguments);
  unsigned char* shared_begin;  // its static shared memory; both null where it has none
  unsigned char* shared_end;
  unsigned launch_bound;  // the threads named by __launch_bounds__, or 0
  const char* parameters;  // '*' for each that is an address, '-' for each other
};

enum EmulatorCollective { EMULATOR_SYNC, EMULATOR_SHUFFLE, EMULATOR_BALLOT };

extern "C" {

// The thread that runs now. The scheduler writes these before it enters or resumes a thread.
extern EmulatorIndex emulator_thread_index, emulator_block_index;
extern EmulatorIndex emulator_block_size, emulator_grid_size;
extern unsigned emulator_lane;
extern unsigned char* emulator_dynamic_shared;

// Each may suspend the calling thread. `line` is the source line, for messages, and tells two
// barriers apart: threads of one block that wait on different lines have diverged.
void emulator_syncthreads(int line);
unsigned emulator_activemask(int line);

// Where a warp's lanes go in lockstep on hardware though CUDA does not promise it.
void emulator_converge(int line);

// One operation of the lanes in `mask`. Shuffle: replaces `value` by the value of `source`
// (a lane of the warp), or by 0xFF bytes where that lane takes no part: CUDA leaves it undefined.
// Ballot: `source` is the predicate. Returns the lanes of the warp whose predicate holds.
unsigned emulator_collective(EmulatorCollective kind, unsigned mask, void* value, size_t size,
                             unsigned source, int line);
}
