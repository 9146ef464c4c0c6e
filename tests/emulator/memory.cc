// Device memory in which an access outside a buffer shows.
//
// A buffer ends at pages that no kernel may touch, so one step past it, or a few thousand, faults
// at once, read or write. It keeps the alignment of a vector load (16 bytes, not the 256 of CUDA), which can leave
// a few bytes behind it; those, and the rest of the page before it, hold a pattern that is
// compared after each launch. Fresh memory holds 0xFF bytes: what was never written shows as NaN.

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>

#include "scheduler.h"

namespace emulator {
namespace {

constexpr size_t kAlignment = 16;
constexpr size_t kGuardPages = 64;
constexpr unsigned char kMargin = 0xCA;

struct Buffer {
  unsigned char* mapping;  // pages that fault, the pages of the buffer, pages that fault
  size_t mapped;
  size_t guard;
  unsigned char* begin;
  size_t size;

  unsigned char* low() const { return mapping + guard; }
  unsigned char* high() const { return mapping + mapped - guard; }
  unsigned char* end() const { return begin + size; }
};

std::map<uintptr_t, Buffer> buffers;  // by the address of the first byte

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

std::string name(const Buffer& buffer) {
  return "a buffer of " + std::to_string(buffer.size) + " bytes";
}

// Compares, and repairs so that the next launch is not blamed for this one.
bool margin_changed(unsigned char* begin, unsigned char* end) {
  bool changed = false;
  for (unsigned char* byte = begin; byte < end; ++byte) {
    changed |= *byte != kMargin;
    *byte = kMargin;
  }
  return changed;
}

}  // namespace

void* allocate(size_t size) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  const size_t inner = (rounded / page + 1) * page;
  const size_t guard = kGuardPages * page;
  const size_t mapped = inner + 2 * guard;
  void* mapping =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  Buffer buffer{static_cast<unsigned char*>(mapping), mapped, guard, nullptr, size};
  mprotect(buffer.low(), inner, PROT_READ | PROT_WRITE);
  buffer.begin = buffer.high() - rounded;
  memset(buffer.low(), kMargin, buffer.begin - buffer.low());
  memset(buffer.begin, kUninitialized, size);
  memset(buffer.end(), kMargin, buffer.high() - buffer.end());
  buffers[number(buffer.begin)] = buffer;
  return buffer.begin;
}

bool release(void* pointer) {
  const auto found = buffers.find(number(pointer));
  if (found == buffers.end()) return false;
  munmap(found->second.mapping, found->second.mapped);
  buffers.erase(found);
  return true;
}

bool in_bounds(const void* pointer, size_t size) {
  auto next = buffers.upper_bound(number(pointer));
  if (next == buffers.begin()) return true;
  const Buffer& buffer = std::prev(next)->second;
  if (number(pointer) >= number(buffer.high())) return true;
  return number(pointer) + size <= number(buffer.end());
}

bool is_on_device(const void* pointer) {
  auto next = buffers.upper_bound(number(pointer));
  return next != buffers.begin() && number(pointer) <= number(std::prev(next)->second.end());
}

std::string describe_address(const void* address) {
  const uintptr_t at = number(address);
  for (const auto& [begin, buffer] : buffers) {
    if (at < number(buffer.mapping) || at >= number(buffer.mapping) + buffer.mapped) continue;
    if (at < begin) return std::to_string(begin - at) + " bytes before " + name(buffer);
    return "at byte " + std::to_string(at - begin) + " of " + name(buffer);
  }
  return "outside every buffer";
}

std::string check_margins() {
  for (const auto& [begin, buffer] : buffers) {
    if (margin_changed(buffer.low(), buffer.begin)) return "write before " + name(buffer);
    if (margin_changed(buffer.end(), buffer.high())) return "write past the end of " + name(buffer);
  }
  return "";
}

}  // namespace emulator
