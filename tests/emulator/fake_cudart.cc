// The CUDA runtime (libcudart.so.13), as much of it as TVM calls: memory, streams, events.
//
// Everything is synchronous, so a stream is only a name and an event is a time.

#include <string.h>

#include <chrono>

#include "scheduler.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kNotSupported = 801;

// cudaDeviceAttr, and what an H100 answers: TVM's own checks then match the emulated limits.
int attribute(int which) {
  switch (which) {
    case 1: case 2: case 3: return 1024;     // threads in a block, its x and its y
    case 4: return 64;                       // its z
    case 5: return 0x7FFFFFFF;               // grid x
    case 6: case 7: return 65535;            // grid y and z
    case 8: return emulator::kSharedPerBlock;
    case 10: return emulator::kWarp;
    case 12: case 82: return 65536;          // registers of a block, of a multiprocessor
    case 13: return 1980000;                 // clock in kHz
    case 16: return 132;                     // multiprocessors
    case 38: return 50 << 20;                // second-level cache
    case 39: return 2048;                    // threads of a multiprocessor
    case 75: return 9;                       // compute capability
    case 76: return 0;
    case 97: return emulator::kSharedPerBlockOptIn;
    default: return 0;
  }
}

struct Event {
  std::chrono::steady_clock::time_point time;
};

int copy(void* to, const void* from, size_t size) {
  if (!emulator::in_bounds(to, size) || !emulator::in_bounds(from, size)) return kInvalidValue;
  memcpy(to, from, size);
  return kSuccess;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cudaSetDevice(int device) { return device == 0 ? kSuccess : kInvalidDevice; }
int cudaDeviceGetAttribute(int* value, int which, int) {
  *value = attribute(which);
  return kSuccess;
}
int cudaGetDeviceProperties(char* properties, int) {
  strcpy(properties, "CUDA emulator");  // the name is the first member
  return kSuccess;
}

int cudaMalloc(void** pointer, size_t size) {
  *pointer = emulator::allocate(size);
  return *pointer ? kSuccess : kOutOfMemory;
}
int cudaFree(void* pointer) {
  return !pointer || emulator::release(pointer) ? kSuccess : kInvalidValue;
}
int cudaMallocHost(void** pointer, size_t size) { return cudaMalloc(pointer, size); }
int cudaFreeHost(void* pointer) { return cudaFree(pointer); }
int cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{8} << 30;
  return kSuccess;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void*) {
  return copy(to, from, size);
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void*) {
  return copy(to, from, size);
}

int cudaStreamCreate(void** stream) {
  static char only;
  *stream = &only;
  return kSuccess;
}
int cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void*) { return kSuccess; }
int cudaStreamSynchronize(void*) { return kSuccess; }
int cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }

int cudaEventCreate(void** event) {
  *event = new Event();
  return kSuccess;
}
int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
int cudaEventRecord(void* event, void*) {
  static_cast<Event*>(event)->time = std::chrono::steady_clock::now();
  return kSuccess;
}
int cudaEventSynchronize(void*) { return kSuccess; }
int cudaEventElapsedTime(float* milliseconds, void* begin, void* end) {
  const auto elapsed = static_cast<Event*>(end)->time - static_cast<Event*>(begin)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(elapsed).count();
  return kSuccess;
}

int cudaStreamBeginCapture(void*, int) { return kNotSupported; }
int cudaStreamEndCapture(void*, void**) { return kNotSupported; }
int cudaGraphInstantiate(void**, void*, unsigned long long) { return kNotSupported; }
int cudaGraphLaunch(void*, void*) { return kNotSupported; }
int cudaGraphDestroy(void*) { return kNotSupported; }
int cudaGraphExecDestroy(void*) { return kNotSupported; }

int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }
const char* cudaGetErrorName(int error) {
  switch (error) {
    case kSuccess: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kOutOfMemory: return "cudaErrorMemoryAllocation";
    case kInvalidDevice: return "cudaErrorInvalidDevice";
    default: return "cudaErrorNotSupported";
  }
}
const char* cudaGetErrorString(int error) { return cudaGetErrorName(error); }

}
