// One block of threads at a time, as fibers of the calling thread: a thread runs until it waits for
// others of its warp or block, a warp until all of its threads do, and a block to its end, or until
// it waits for others (AwaitCount; these have dynamic shared memory each, and would share what is
// __shared__). What a GPU leaves undefined is made to show: shared memory begins as ones, and is
// ones from when a copy to it is enqueued until the copy is waited for, lanes that part at a warp's
// instruction abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace cuda_emulator {

// One block that waits for others has each to itself.
constexpr unsigned kMultiprocessors = 132;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// Say which thread runs.
extern Index thread_index, block_index, block_size, grid_size;
void* DynamicShared();  // at a multiple of 1,024
// As instructions and descriptors name shared memory; At aborts beyond what the block has.
uint32_t SharedAddress(const void* shared);
const std::byte* SharedAt(uint32_t address, int bytes);

struct Grid {
  Index blocks;
  int threads = 0;  // of a block
  int64_t shared_bytes = 0;
  // On a GPU its threads may start before the kernels enqueued before have ended, so each calls
  // WaitForEarlierKernels.
  bool early = false;
};

// Runs kernel() for every thread of every block.
void RunGrid(const Grid& grid, const std::function<void()>& kernel);

// What was read, and what was there.
struct EarlyRead {
  const void* from;
  int bytes;
  uint64_t hash;
};
// Runs each block's threads until they wait for earlier kernels, or for each other, and then no
// further; returns what they have enqueued copies of.
std::vector<EarlyRead> BeginGrid(const Grid& grid, const std::function<void()>& kernel);
// Aborts where something else is there now: then an earlier kernel writes what is read before it is
// waited for.
void CheckEarlyReads(const std::vector<EarlyRead>& reads);

// ---- called by a thread of a kernel ----

void WaitForEarlierKernels();
// Until all threads of the block are here; the sum of their values.
int MeetBlock(int value);
// The same of four warps.
int MeetWarpgroup(int value);
// Until all lanes of the warp are here, at the same instruction: the last one computes all results
// ([lane] of kLaneBytes) from all values.
constexpr int kLaneBytes = 64;
struct Lanes {
  alignas(16) std::byte bytes[32][kLaneBytes];
};
using Combine = void (*)(const Lanes& values, Lanes* results);
void MeetWarp(Combine combine, const void* value, int value_bytes, void* result, int result_bytes);
// Copies of 16 bytes (zeros if not read), aligned on both sides, that land when this thread has
// waited for all but the last `left` commits.
void CopyAsync(void* shared, const void* global, bool read);
void CommitCopies();
void WaitForCopies(int left);

// A barrier in shared memory, as mbarriers are: a phase ends when so many arrivals have come as it
// began with, and all bytes that are expected. Copies land when somebody waits for the barrier.
void InitBarrier(const void* barrier, int arrivals);
void ArriveAtBarrier(const void* barrier, int64_t expected_bytes);
void CopyAtBarrier(const void* barrier, int64_t bytes, std::function<void()> copy);
// That a copy of so many bytes is enqueued.
void NoteRead(const void* global, int bytes);
// Until a phase of that parity has ended.
void AwaitBarrier(const void* barrier, unsigned parity);

// Adds one to a number by which the blocks of a grid count; what it was.
unsigned CountOne(unsigned* number);
// Until it is so large, which takes other blocks of the grid.
void AwaitCount(const unsigned* number, unsigned count);

[[noreturn]] void Die(const char* why);

}  // namespace cuda_emulator
