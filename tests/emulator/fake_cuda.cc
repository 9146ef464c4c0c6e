// The CUDA driver (libcuda.so.1), as much of it as TVM calls: modules and launches.

#include <dlfcn.h>
#include <string.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "scheduler.h"

namespace {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kNotSupported = 801,
  kInvalidImage = 200,
  kNotFound = 500,
  kLaunchFailed = 719,
};

struct Function {
  std::string name;
  const EmulatorKernel* kernel;
  size_t dynamic_shared_limit;  // raised by cuFuncSetAttribute
};

// CUlaunchConfig: the layout is NVIDIA's.
struct LaunchConfig {
  EmulatorIndex grid, block;
  unsigned dynamic_shared;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

constexpr int kMaxDynamicSharedAttribute = 8;
constexpr char kImagePrefix[] = "\x7f" "EMULATED:";  // then the path of the shared object

unsigned long long launch_count = 0;
std::string last_error;

size_t static_shared(const EmulatorKernel& kernel) {
  return kernel.shared_end - kernel.shared_begin;
}

std::string text(const EmulatorIndex& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

// What the hardware refuses to launch, or an empty string.
std::string refusal(const LaunchConfig& config, const Function& function) {
  const EmulatorIndex grid = config.grid, block = config.block;
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  if (threads == 0 || threads > emulator::kMaxThreads || block.z > 64)
    return "illegal block size " + text(block);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFFu || grid.y > 65535 ||
      grid.z > 65535)
    return "illegal grid size " + text(grid);
  if (function.kernel->launch_bound && threads > function.kernel->launch_bound)
    return std::to_string(threads) + " threads exceed __launch_bounds__(" +
           std::to_string(function.kernel->launch_bound) + ")";
  const size_t fixed = static_shared(*function.kernel);
  if (config.dynamic_shared > function.dynamic_shared_limit ||
      fixed + config.dynamic_shared > emulator::kSharedPerBlockOptIn)
    return std::to_string(config.dynamic_shared) + " bytes of dynamic shared memory beside " +
           std::to_string(fixed) + " static ones";
  return "";
}

// Which parameter is an address of the host's memory, or an empty string.
std::string stray_address(const EmulatorKernel& kernel, void** arguments) {
  for (size_t i = 0; kernel.parameters[i]; ++i) {
    if (kernel.parameters[i] != '*') continue;
    const void* address = *static_cast<void**>(arguments[i]);
    if (address && !emulator::is_on_device(address))
      return "parameter " + std::to_string(i) + " is no address of the device's memory";
  }
  return "";
}

int fail(Result result, std::string message) {
  last_error = std::move(message);
  return result;
}

}  // namespace

extern "C" {

int cuModuleLoadData(void** module, const void* image) {
  const char* bytes = static_cast<const char*>(image);
  const size_t prefix = sizeof kImagePrefix - 1;
  if (strncmp(bytes, kImagePrefix, prefix) != 0)
    return fail(kInvalidImage, "not an image built by the emulator");
  *module = dlopen(bytes + prefix, RTLD_NOW | RTLD_LOCAL);
  return *module ? kSuccess : fail(kInvalidImage, dlerror());
}

int cuModuleUnload(void* module) {
  dlclose(module);
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const void* symbol = dlsym(module, ("emulated_" + std::string(name)).c_str());
  if (!symbol) return fail(kNotFound, "no kernel is named " + std::string(name));
  const auto* kernel = static_cast<const EmulatorKernel*>(symbol);
  const size_t fixed = static_shared(*kernel);
  // ptxas refuses this at compile time.
  if (fixed > emulator::kSharedPerBlock)
    return fail(kInvalidImage, std::string(name) + " declares " + std::to_string(fixed) +
                                   " bytes of static shared memory; 49152 are allowed");
  // TVM keeps functions for as long as the process: so do we.
  *function = new Function{name, kernel, emulator::kSharedPerBlock - fixed};
  return kSuccess;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != kMaxDynamicSharedAttribute) return kSuccess;
  auto* target = static_cast<Function*>(function);
  if (value < 0 || value + static_shared(*target->kernel) > emulator::kSharedPerBlockOptIn)
    return fail(kInvalidValue, "too much dynamic shared memory: " + std::to_string(value));
  target->dynamic_shared_limit = value;
  return kSuccess;
}

int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  const auto& target = *static_cast<const Function*>(function);
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  ++launch_count;
  const std::string refused = refusal(*config, target);
  if (!refused.empty()) return fail(kInvalidValue, target.name + ": " + refused);
  const std::string stray = stray_address(*target.kernel, arguments);
  if (!stray.empty()) return fail(kLaunchFailed, target.name + ": " + stray);
  const std::string problem = emulator::run_launch(
      {target.kernel, config->grid, config->block, config->dynamic_shared, arguments});
  if (!problem.empty()) return fail(kLaunchFailed, target.name + ": " + problem);
  return kSuccess;
}

// TVM prints the name of an error and nothing else, so the name carries the message.
int cuGetErrorName(int error, const char** name) {
  static std::string text;
  text = error ? "emulator: " + last_error : "CUDA_SUCCESS";
  *name = text.c_str();
  return kSuccess;
}

int cuGetErrorString(int error, const char** message) { return cuGetErrorName(error, message); }

int cuDeviceGetName(char* name, int size, int) {
  snprintf(name, size, "CUDA emulator");
  return kSuccess;
}

int cuTensorMapEncodeTiled() { return kNotSupported; }

unsigned long long emulator_launches() { return launch_count; }

}
