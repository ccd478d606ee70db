#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace cuda_emulator {

Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr int kThreadsMax = 1024;
constexpr int kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;
constexpr int kWarpgroup = 128;
constexpr int64_t kGuardBytes = 64;
constexpr int64_t kSharedAlignment = 1024;
constexpr uint32_t kSharedAddress = 1024;  // where it begins, as on an H100

struct Copy {
  void* to;
  const void* from;
  bool read;
};

struct Meeting {
  int arrived = 0;
  unsigned generation = 0;
  int sum = 0, result = 0;
  Combine combine = nullptr;
  Lanes values, results;
};

struct Fiber {
  char* stack = nullptr;
  void* stack_pointer = nullptr;
  bool done = false;
  bool waited = false;             // for earlier kernels
  const Meeting* waits = nullptr;  // for its next generation
  unsigned generation = 0;
  std::vector<Copy> copies;  // not committed yet
  std::deque<std::vector<Copy>> commits;
};

struct Barrier {
  int arrivals = 0, left = 0;  // of a phase
  int64_t bytes = 0;           // that are expected and not there
  Meeting phase = {};          // its generation: how many have ended
  std::vector<std::pair<int64_t, std::function<void()>>> copies = {};
  bool awaited = false;  // by some thread, in this phase
};

struct Block {
  std::map<const void*, Barrier> barriers;
  std::vector<Fiber> fibers = std::vector<Fiber>(kThreadsMax);
  std::vector<Meeting> warps = std::vector<Meeting>(kThreadsMax / kWarp);
  std::vector<Meeting> warpgroups = std::vector<Meeting>(kThreadsMax / kWarpgroup);
  Meeting all;
  std::vector<std::byte> shared_memory;  // aligned and guarded inside
  std::byte* shared = nullptr;
  int64_t shared_bytes = 0;
  const std::function<void()>* kernel = nullptr;
  Index index;
  void* scheduler = nullptr;  // its stack pointer
  int threads = 0, current = 0;
  bool early = false;
  bool begins = false;  // BeginGrid: threads stay where they wait for earlier kernels
  std::vector<EarlyRead> reads;

  Block() {
    void* const stacks = mmap(nullptr, kThreadsMax * kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) Die("there is no memory for stacks");
    for (int i = 0; i < kThreadsMax; ++i) {
      fibers[i].stack = static_cast<char*>(stacks) + i * kStackBytes;
    }
  }
};

Block* the_block = nullptr;  // that runs
Block& TheBlock() { return *the_block; }

// The numbers by which blocks count each other: its generation grows with each.
Meeting counts;

// Saves what calls preserve and the stack pointer, and goes on at another. (swapcontext would call
// the kernel each time, for the signal mask.)
extern "C" void CudaEmulatorSwitch(void** save, void* to);
asm(R"(
.text
.globl CudaEmulatorSwitch
CudaEmulatorSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

extern "C" void CudaEmulatorThread() {
  Block& block = TheBlock();
  (*block.kernel)();
  Fiber& fiber = block.fibers[block.current];
  if (block.early && !fiber.waited) Die("a thread that starts early waits for no earlier kernel");
  fiber.done = true;
  CudaEmulatorSwitch(&fiber.stack_pointer, block.scheduler);
  Die("a thread ran on after its end");
}

void Yield() {
  Block& block = TheBlock();
  const Index mine = thread_index;
  CudaEmulatorSwitch(&block.fibers[block.current].stack_pointer, block.scheduler);
  thread_index = mine;
}

void Prepare(Fiber* fiber) {
  fiber->done = fiber->waited = false;
  fiber->waits = nullptr;
  fiber->copies.clear();
  fiber->commits.clear();
  auto** top = reinterpret_cast<void**>(fiber->stack + kStackBytes);
  *--top = nullptr;  // a call leaves the stack so aligned
  *--top = reinterpret_cast<void*>(&CudaEmulatorThread);
  for (int registers = 0; registers < 6; ++registers) *--top = nullptr;
  fiber->stack_pointer = top;
}

// Those of the threads that can run, each until it waits. False if there is none.
bool RunThreads(int first, int end) {
  Block& block = TheBlock();
  bool ran = false;
  for (int i = first; i < end; ++i) {
    Fiber& fiber = block.fibers[i];
    const bool waits = fiber.waits != nullptr && fiber.waits->generation == fiber.generation;
    if (fiber.done || waits) continue;
    block.current = i;
    thread_index = {static_cast<unsigned>(i), 0, 0};
    CudaEmulatorSwitch(&block.scheduler, fiber.stack_pointer);
    ran = true;
  }
  return ran;
}

// Each warp as far as it comes without the others: where it should have waited for them shows.
bool RunWarps(int threads) {
  bool ran = false;
  for (int first = 0; first < threads; first += kWarp) {
    while (RunThreads(first, std::min(first + kWarp, threads))) ran = true;
  }
  return ran;
}

// One of those that are there at the same time.
Block& BlockAt(size_t i) {
  static auto* const blocks = new std::vector<std::unique_ptr<Block>>();
  while (blocks->size() <= i) blocks->push_back(std::make_unique<Block>());
  return *(*blocks)[i];
}

void BeginBlock(Block* block, const Grid& grid, const Index& index,
                const std::function<void()>& kernel) {
  block->index = index;
  block->threads = grid.threads;
  block->early = grid.early;
  block->kernel = &kernel;
  block->shared_memory.resize(grid.shared_bytes + kGuardBytes + kSharedAlignment);
  const auto begin = reinterpret_cast<uintptr_t>(block->shared_memory.data());
  block->shared = block->shared_memory.data() + (kSharedAlignment - begin % kSharedAlignment);
  block->shared_bytes = grid.shared_bytes;
  std::fill_n(block->shared, grid.shared_bytes + kGuardBytes, std::byte{0xff});
  for (Meeting& warp : block->warps) warp.arrived = 0;
  for (Meeting& warpgroup : block->warpgroups) warpgroup.arrived = warpgroup.sum = 0;
  block->all.arrived = block->all.sum = 0;
  block->barriers.clear();
  for (int i = 0; i < grid.threads; ++i) Prepare(&block->fibers[i]);
}

// As far as it comes without the other blocks; false if that is nowhere.
bool AdvanceBlock(Block* block) {
  the_block = block;
  block_index = block->index;
  bool ran = false;
  while (RunWarps(block->threads)) ran = true;
  return ran;
}

// False if it waits for other blocks.
bool EndBlock(const Block& block) {
  if (block.begins) return true;
  bool waits_for_blocks = false, done = true;
  for (int i = 0; i < block.threads; ++i) {
    const Fiber& fiber = block.fibers[i];
    waits_for_blocks |= fiber.waits == &counts;
    done &= fiber.done;
  }
  if (!done && !waits_for_blocks) Die("threads wait for each other");
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    if (block.shared[block.shared_bytes + i] != std::byte{0xff}) Die("shared memory was overrun");
  }
  return done;
}

// Waits for the others; the last one to come calls `last` before it lets them go.
template <typename Last>
void Meet(Meeting* meeting, int size, Last last) {
  if (++meeting->arrived == size) {
    last();
    meeting->arrived = 0;
    ++meeting->generation;
    return;
  }
  Fiber& fiber = TheBlock().fibers[TheBlock().current];
  fiber.waits = meeting;
  fiber.generation = meeting->generation;
  Yield();
}

Barrier& BarrierAt(const void* barrier) {
  const auto found = TheBlock().barriers.find(barrier);
  if (found == TheBlock().barriers.end()) Die("a barrier that nobody has begun");
  return found->second;
}

void EndPhase(Barrier* barrier) {
  if (barrier->left > 0 || barrier->bytes > 0) return;
  if (barrier->bytes < 0) Die("more bytes were copied than were expected");
  barrier->left = barrier->arrivals;
  barrier->awaited = false;
  ++barrier->phase.generation;
}

void LandCopies(Barrier* barrier) {
  if (barrier->copies.empty()) return;
  for (const auto& [bytes, copy] : std::exchange(barrier->copies, {})) {
    copy();
    barrier->bytes -= bytes;
  }
  EndPhase(barrier);
}

bool IsAligned(const void* memory, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(memory) % bytes == 0;
}

int MeetSum(Meeting* meeting, int size, int value) {
  meeting->sum += value;
  Meet(meeting, size, [meeting] { meeting->result = std::exchange(meeting->sum, 0); });
  return meeting->result;
}

uint64_t HashOf(const void* memory, int bytes) {
  return std::hash<std::string_view>()(
      {static_cast<const char*>(memory), static_cast<size_t>(bytes)});
}

}  // namespace

void Die(const char* why) {
  std::fprintf(stderr, "the emulated CUDA device: %s\n", why);
  std::abort();
}

void* DynamicShared() { return TheBlock().shared; }

uint32_t SharedAddress(const void* shared) {
  return kSharedAddress +
         static_cast<uint32_t>(static_cast<const std::byte*>(shared) - TheBlock().shared);
}

const std::byte* SharedAt(uint32_t address, int bytes) {
  const int64_t offset = int64_t{address} - kSharedAddress;
  if (offset < 0 || offset + bytes > TheBlock().shared_bytes) Die("that is no shared memory");
  return TheBlock().shared + offset;
}

void RunGrid(const Grid& grid, const std::function<void()>& kernel) {
  if (grid.threads < 1 || grid.threads > kThreadsMax) Die("a block has 1 to 1024 threads");
  block_size = {static_cast<unsigned>(grid.threads), 1, 1};
  grid_size = grid.blocks;
  std::vector<Block*> waiting;
  for (unsigned y = 0; y < grid.blocks.y; ++y) {
    for (unsigned x = 0; x < grid.blocks.x; ++x) {
      Block& block = BlockAt(waiting.size());
      BeginBlock(&block, grid, {x, y, 0}, kernel);
      AdvanceBlock(&block);
      if (!EndBlock(block)) waiting.push_back(&block);
      if (waiting.size() > kMultiprocessors)
        Die("more blocks wait for each other than there is room for");
    }
  }
  while (!waiting.empty()) {
    bool ran = false;
    for (Block* block : waiting) ran |= AdvanceBlock(block);
    if (!ran) Die("blocks wait for each other");
    std::erase_if(waiting, [](const Block* block) { return EndBlock(*block); });
  }
}

std::vector<EarlyRead> BeginGrid(const Grid& grid, const std::function<void()>& kernel) {
  Block& block = BlockAt(0);
  block.begins = true;
  RunGrid(grid, kernel);
  block.begins = false;
  return std::exchange(block.reads, {});
}

void CheckEarlyReads(const std::vector<EarlyRead>& reads) {
  for (const auto& [from, bytes, hash] : reads) {
    if (HashOf(from, bytes) != hash) Die("a kernel reads too early what one before it writes");
  }
}

void WaitForEarlierKernels() {
  Block& block = TheBlock();
  Fiber& fiber = block.fibers[block.current];
  fiber.waited = true;
  if (!block.begins) return;
  static const Meeting never = {};
  fiber.waits = &never;
  fiber.generation = never.generation;
  Yield();
}

void NoteRead(const void* global, int bytes) {
  Block& block = TheBlock();
  if (block.begins) block.reads.push_back({global, bytes, HashOf(global, bytes)});
}

int MeetBlock(int value) { return MeetSum(&TheBlock().all, TheBlock().threads, value); }

int MeetWarpgroup(int value) {
  return MeetSum(&TheBlock().warpgroups[thread_index.x / kWarpgroup], kWarpgroup, value);
}

void InitBarrier(const void* barrier, int arrivals) {
  if (!IsAligned(barrier, 8)) Die("a barrier is not aligned");
  if (TheBlock().barriers.contains(barrier)) Die("a barrier is begun twice");
  TheBlock().barriers[barrier] = {.arrivals = arrivals, .left = arrivals};
}

void ArriveAtBarrier(const void* barrier, int64_t expected_bytes) {
  Barrier& of = BarrierAt(barrier);
  of.bytes += expected_bytes;
  if (--of.left < 0) Die("more threads arrive than a barrier's phase has");
  EndPhase(&of);
}

void CopyAtBarrier(const void* barrier, int64_t bytes, std::function<void()> copy) {
  Barrier& of = BarrierAt(barrier);
  of.copies.emplace_back(bytes, std::move(copy));
  if (of.awaited) LandCopies(&of);
}

void AwaitBarrier(const void* barrier, unsigned parity) {
  Barrier& of = BarrierAt(barrier);
  while (of.phase.generation % 2 == parity) {
    LandCopies(&of);
    if (of.phase.generation % 2 != parity) return;
    of.awaited = true;
    Fiber& fiber = TheBlock().fibers[TheBlock().current];
    fiber.waits = &of.phase;
    fiber.generation = of.phase.generation;
    Yield();
  }
}

void MeetWarp(Combine combine, const void* value, int value_bytes, void* result, int result_bytes) {
  Meeting& warp = TheBlock().warps[thread_index.x / kWarp];
  const unsigned lane = thread_index.x % kWarp;
  if (warp.arrived == 0) warp.combine = combine;
  if (warp.combine != combine) Die("lanes of a warp are at different instructions");
  std::memcpy(warp.values.bytes[lane], value, value_bytes);
  Meet(&warp, kWarp, [&warp] { warp.combine(warp.values, &warp.results); });
  std::memcpy(result, warp.results.bytes[lane], result_bytes);
}

unsigned CountOne(unsigned* number) {
  ++counts.generation;
  return (*number)++;
}

void AwaitCount(const unsigned* number, unsigned count) {
  while (*number < count) {
    Fiber& fiber = TheBlock().fibers[TheBlock().current];
    fiber.waits = &counts;
    fiber.generation = counts.generation;
    Yield();
    fiber.waits = nullptr;
  }
}

void CopyAsync(void* shared, const void* global, bool read) {
  if (!IsAligned(shared, 16) || !IsAligned(global, 16)) Die("a copy of 16 bytes is not aligned");
  if (read) NoteRead(global, 16);
  std::memset(shared, 0xff, 16);  // who still reads it comes too late
  TheBlock().fibers[TheBlock().current].copies.push_back({shared, global, read});
}

void CommitCopies() {
  Fiber& fiber = TheBlock().fibers[TheBlock().current];
  fiber.commits.push_back(std::move(fiber.copies));
  fiber.copies.clear();
}

void WaitForCopies(int left) {
  Fiber& fiber = TheBlock().fibers[TheBlock().current];
  while (static_cast<int>(fiber.commits.size()) > left) {
    for (const Copy& copy : fiber.commits.front()) {
      if (copy.read) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
    fiber.commits.pop_front();
  }
}

}  // namespace cuda_emulator
