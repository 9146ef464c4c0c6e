// Runs the threads of a block as fibers on one CPU thread.
//
// A thread runs until it must wait for others (a barrier, a shuffle), so every interleaving that
// matters is one of order: which thread goes first between two barriers. A kernel that lacks a
// barrier gives a wrong result in at least one order; a correct one gives the same in all.

#include "scheduler.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

EmulatorIndex emulator_thread_index, emulator_block_index;
EmulatorIndex emulator_block_size, emulator_grid_size;
unsigned emulator_lane;
unsigned char* emulator_dynamic_shared;

namespace emulator {
namespace {

constexpr size_t kStackSize = 512 << 10;
constexpr size_t kMaxValue = 16;  // bytes a shuffle can move

enum class Order { kFixed, kReversed, kShuffled };
enum class State { kReady, kBarrier, kActiveMask, kCollective, kDone };

// A stack to run threads on. Most kernels need one: a fiber whose thread finishes takes the next,
// and only a thread that waits keeps its fiber.
struct Fiber {
  char* stack;
  bool entered;
  ucontext_t start;
  jmp_buf resume;
};

struct Thread {
  State state;
  Fiber* fiber;
  int line;  // where it waits
  EmulatorCollective kind;
  unsigned mask;    // the lanes it waits for; the answer, once it may go on
  unsigned source;  // the lane it reads, or its predicate
  size_t size;
  unsigned char value[kMaxValue], received[kMaxValue];
};

Order order = Order::kFixed;
unsigned order_seed = 0;
bool lockstep = true;

Launch launch;
unsigned thread_count;
Thread threads[kMaxThreads];
Thread* current;
std::vector<unsigned> turns;  // thread numbers, in the order they run in this round
size_t next_turn;             // first of `turns` that has not been entered yet
std::vector<unsigned> blocks;
std::mt19937 random_bits;

std::vector<Fiber*> idle_fibers;
std::vector<Fiber*> all_fibers;
jmp_buf scheduler;
sigjmp_buf fault_exit;
int fault_signal;
const void* fault_address;

size_t page_size() {
  static const size_t size = sysconf(_SC_PAGESIZE);
  return size;
}

// ---- Fibers ------------------------------------------------------------------------------------

void select(unsigned number) {
  current = &threads[number];
  emulator_thread_index = {number % launch.block.x, number / launch.block.x % launch.block.y,
                           number / (launch.block.x * launch.block.y)};
  emulator_lane = number % kWarp;
}

[[noreturn]] void return_to_scheduler() { _longjmp(scheduler, 1); }

void fiber_main() {
  for (;;) {
    Fiber* self = current->fiber;
    while (next_turn < turns.size()) {
      select(turns[next_turn++]);
      current->fiber = self;
      launch.kernel->run(launch.arguments);
      current->state = State::kDone;
    }
    idle_fibers.push_back(self);
    if (_setjmp(self->resume) == 0) return_to_scheduler();
  }
}

Fiber* make_fiber() {
  auto* fiber = new Fiber();
  // The lowest page stays unmapped for access: a stack overflow faults and does not corrupt.
  fiber->stack = static_cast<char*>(mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  mprotect(fiber->stack, page_size(), PROT_NONE);
  all_fibers.push_back(fiber);
  return fiber;
}

Fiber* take_fiber() {
  if (idle_fibers.empty()) return make_fiber();
  Fiber* fiber = idle_fibers.back();
  idle_fibers.pop_back();
  return fiber;
}

// Runs `fiber` until its thread waits, or until it has no more threads to run.
void enter(Fiber* fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber->entered) _longjmp(fiber->resume, 1);
  fiber->entered = true;
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = fiber->stack;
  // Stacks that all start at the same offset in a page would compete for the same cache lines.
  fiber->start.uc_stack.ss_size = kStackSize - all_fibers.size() % 32 * 128;
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, fiber_main, 0);
  setcontext(&fiber->start);
}

// A launch that failed leaves fibers in the middle of a thread: they start afresh.
void abandon_fibers() {
  idle_fibers = all_fibers;
  for (Fiber* fiber : all_fibers) fiber->entered = false;
}

void wait(State state, int line) {
  Thread* self = current;
  self->state = state;
  self->line = line;
  if (_setjmp(self->fiber->resume) == 0) return_to_scheduler();
}

// ---- Releasing threads that wait ---------------------------------------------------------------

// Lanes [begin, end) are one warp. Lanes that have returned are not waited for.
struct Warp {
  unsigned begin, end;

  unsigned lanes(State state) const {
    unsigned found = 0;
    for (unsigned number = begin; number < end; ++number)
      if (threads[number].state == state) found |= 1u << (number - begin);
    return found;
  }

  template <class Action>
  void each(unsigned mask, Action action) const {
    for (unsigned lane = 0; lane < end - begin; ++lane)
      if (mask >> lane & 1) action(threads[begin + lane], lane);
  }
};

void exchange(const Warp& warp, unsigned members) {
  unsigned ballot = 0;
  warp.each(members, [&](Thread& thread, unsigned lane) {
    if (thread.kind == EMULATOR_BALLOT && thread.source) ballot |= 1u << lane;
    if (thread.kind != EMULATOR_SHUFFLE) return;
    const unsigned source = thread.source;
    if (source < kWarp && members >> source & 1)
      memcpy(thread.received, threads[warp.begin + source].value, thread.size);
    else
      memset(thread.received, kUninitialized, thread.size);
  });
  warp.each(members, [&](Thread& thread, unsigned) {
    thread.mask = ballot;
    thread.state = State::kReady;
  });
}

// True if some lanes of the warp may go on.
bool release_warp(const Warp& warp) {
  const unsigned waiting = warp.lanes(State::kCollective);
  const unsigned live =
      ~warp.lanes(State::kDone) & (~0u >> (kWarp - (warp.end - warp.begin)));
  bool released = false;
  for (unsigned left = waiting; left != 0;) {
    const Thread& first = threads[warp.begin + __builtin_ctz(left)];
    unsigned members = 0;
    warp.each(left, [&](Thread& thread, unsigned lane) {
      if (thread.mask == first.mask && thread.kind == first.kind) members |= 1u << lane;
    });
    left &= ~members;
    if ((first.mask & live) != members) continue;
    exchange(warp, members);
    released = true;
  }
  if (released) return true;
  // __activemask() names the lanes that run together. It waits for all that can still come.
  const unsigned arrived = warp.lanes(State::kActiveMask);
  for (unsigned left = arrived; left != 0;) {
    const int line = threads[warp.begin + __builtin_ctz(left)].line;
    unsigned together = 0;
    warp.each(left, [&](Thread& thread, unsigned lane) {
      if (thread.line == line) together |= 1u << lane;
    });
    left &= ~together;
    warp.each(together, [&](Thread& thread, unsigned) {
      thread.mask = together;
      thread.state = State::kReady;
    });
  }
  return arrived != 0;
}

bool release_barrier() {
  for (unsigned number = 0; number < thread_count; ++number)
    if (threads[number].state != State::kBarrier || threads[number].line != threads[0].line)
      return false;
  for (unsigned number = 0; number < thread_count; ++number) threads[number].state = State::kReady;
  return true;
}

bool release_threads() {
  if (release_barrier()) return true;
  bool released = false;
  for (unsigned begin = 0; begin < thread_count; begin += kWarp)
    released |= release_warp({begin, std::min(begin + kWarp, thread_count)});
  return released;
}

std::string describe_divergence() {
  unsigned returned = 0;
  std::map<std::pair<int, bool>, unsigned> waiting;  // (line, at a barrier) -> threads
  for (unsigned number = 0; number < thread_count; ++number) {
    const Thread& thread = threads[number];
    if (thread.state == State::kDone) ++returned;
    else ++waiting[{thread.line, thread.state == State::kBarrier}];
  }
  std::string text = "divergent barrier: of " + std::to_string(thread_count) + " threads";
  for (const auto& [place, count] : waiting)
    text += ", " + std::to_string(count) + " wait at " +
            (place.second ? "__syncthreads()" : "a warp operation") + " on line " +
            std::to_string(place.first);
  if (returned) text += ", " + std::to_string(returned) + " have returned";
  return text;
}

// ---- Blocks ------------------------------------------------------------------------------------

void arrange(std::vector<unsigned>& numbers) {
  if (order == Order::kReversed) std::reverse(numbers.begin(), numbers.end());
  if (order != Order::kShuffled) return;
  // Not std::shuffle, which draws another order in another standard library.
  for (size_t left = numbers.size(); left > 1; --left)
    std::swap(numbers[left - 1], numbers[random_bits() % left]);
}

void fill_turns() {
  turns.resize(thread_count);
  std::iota(turns.begin(), turns.end(), 0u);
  arrange(turns);
}

// Empty, or why the block cannot finish.
std::string run_block() {
  const EmulatorKernel& kernel = *launch.kernel;
  if (kernel.shared_begin)
    memset(kernel.shared_begin, kUninitialized, kernel.shared_end - kernel.shared_begin);
  memset(emulator_dynamic_shared, kUninitialized, launch.dynamic_shared);
  for (unsigned number = 0; number < thread_count; ++number) threads[number].state = State::kReady;

  fill_turns();
  for (next_turn = 0; next_turn < turns.size();) {
    Fiber* fiber = take_fiber();
    current = &threads[turns[next_turn]];
    current->fiber = fiber;
    enter(fiber);
  }
  const auto done = [](const Thread& thread) { return thread.state == State::kDone; };
  while (!std::all_of(threads, threads + thread_count, done)) {
    if (!release_threads()) return describe_divergence();
    if (order == Order::kShuffled) fill_turns();  // another order after each barrier
    next_turn = turns.size();                     // every thread has been entered by now
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      if (threads[turns[turn]].state != State::kReady) continue;
      select(turns[turn]);
      enter(current->fiber);
    }
  }
  return "";
}

std::string run_grid() {
  const unsigned x = launch.grid.x, y = launch.grid.y, z = launch.grid.z;
  blocks.resize(static_cast<size_t>(x) * y * z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  arrange(blocks);
  for (unsigned block : blocks) {
    emulator_block_index = {block % x, block / x % y, block / (x * y)};
    const std::string problem = run_block();
    if (!problem.empty()) return problem;
  }
  return "";
}

// ---- Faults ------------------------------------------------------------------------------------

void on_fault(int signal, siginfo_t* info, void*) {
  fault_signal = signal;
  fault_address = info->si_addr;
  siglongjmp(fault_exit, 1);
}

std::string describe_fault() {
  // A GPU gives some number; no program may rely on it, and the CPU traps.
  if (fault_signal == SIGFPE) return "integer division by zero";
  if (fault_signal == SIGILL) return "misaligned address: not a multiple of the bytes of a vector";
  const char* address = static_cast<const char*>(fault_address);
  for (const Fiber* fiber : all_fibers)
    if (address >= fiber->stack && address < fiber->stack + page_size())
      return "a thread's local memory exceeds the emulator's stack";
  return "illegal memory access: " + describe_address(fault_address);
}

constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kFaultCount = sizeof kFaults / sizeof *kFaults;

// Takes the fault signals while kernels run: at other times they are Python's.
class FaultHandlers {
 public:
  FaultHandlers() {
    // On a stack of their own: the fiber's may be what overflowed.
    static char stack[64 << 10];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < kFaultCount; ++i) sigaction(kFaults[i], &action, &old_[i]);
  }
  ~FaultHandlers() {
    for (int i = 0; i < kFaultCount; ++i) sigaction(kFaults[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  struct sigaction old_[kFaultCount];
  stack_t old_stack_;
};

// The dynamic shared memory of a block ends at a page that faults.
void place_dynamic_shared() {
  static unsigned char* const end = [] {
    const size_t size = (kSharedPerBlockOptIn + page_size() - 1) / page_size() * page_size();
    auto* base = static_cast<unsigned char*>(mmap(nullptr, size + page_size(),
                                                  PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + size, page_size(), PROT_NONE);
    return base + size;
  }();
  constexpr size_t kAlignment = 128;
  const size_t units = (launch.dynamic_shared + kAlignment - 1) / kAlignment;
  emulator_dynamic_shared = end - units * kAlignment;
}

// A fault leaves run_grid without running destructors, so its vectors are globals.
std::string run_guarded() {
  if (sigsetjmp(fault_exit, 1) != 0) return describe_fault();
  return run_grid();
}

}  // namespace

std::string run_launch(const Launch& wanted) {
  launch = wanted;
  thread_count = launch.block.x * launch.block.y * launch.block.z;
  emulator_block_size = launch.block;
  emulator_grid_size = launch.grid;
  random_bits.seed(order_seed);
  place_dynamic_shared();
  std::string problem;
  {
    FaultHandlers handlers;
    problem = run_guarded();
  }
  if (!problem.empty()) abandon_fibers();
  const std::string overrun = check_margins();
  return problem.empty() ? overrun : problem;
}

}  // namespace emulator

extern "C" {

void emulator_syncthreads(int line) { emulator::wait(emulator::State::kBarrier, line); }

unsigned emulator_activemask(int line) {
  emulator::Thread* self = emulator::current;
  emulator::wait(emulator::State::kActiveMask, line);
  return self->mask;
}

void emulator_converge(int line) {
  if (emulator::lockstep) emulator::wait(emulator::State::kActiveMask, line);
}

unsigned emulator_collective(EmulatorCollective kind, unsigned mask, void* value, size_t size,
                             unsigned source, int line) {
  emulator::Thread* self = emulator::current;
  self->kind = kind;
  self->mask = mask;
  self->source = source;
  self->size = size;
  if (size) memcpy(self->value, value, size);
  emulator::wait(emulator::State::kCollective, line);
  if (size) memcpy(value, self->received, size);
  return self->mask;
}

// 0: threads run by their number, 1: from the last to the first, 2: shuffled anew after each
// barrier, from `seed`. Without `lockstep`, emulator_converge does nothing.
void emulator_set_order(int order, unsigned seed, int lockstep) {
  emulator::order = static_cast<emulator::Order>(order);
  emulator::order_seed = seed;
  emulator::lockstep = lockstep;
}

}
