// The scheduler, and the device memory it reports on: the inside of the fake libcuda.so.1.

#pragma once

#include <cstddef>
#include <string>

#include "device.h"

namespace emulator {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kWarp = 32;
constexpr size_t kSharedPerBlock = 48 << 10;
constexpr size_t kSharedPerBlockOptIn = 227 << 10;  // of sm_90, static and dynamic together
constexpr unsigned char kUninitialized = 0xFF;      // a NaN in every float format

struct Launch {
  const EmulatorKernel* kernel;
  EmulatorIndex grid, block;
  size_t dynamic_shared;
  void** arguments;
};

// Runs every thread of every block. Empty if all went well, else what the device would not do.
std::string run_launch(const Launch& launch);

// Device memory, each buffer ending at a page no kernel may touch. See memory.cc.
void* allocate(size_t size);
bool release(void* pointer);
bool in_bounds(const void* pointer, size_t size);  // true also for memory that is not the device's
bool is_on_device(const void* pointer);              // or right behind a buffer there
std::string describe_address(const void* address);
std::string check_margins();

}  // namespace emulator
