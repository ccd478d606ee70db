// fio, the yardstick of bench load: an outside program that this bench alone needs.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvcake::bench {

// kNotFound, with what to install, when there is no fio.
Status CheckFio();
struct FioRate {
  double bytes_per_s = 0;
  // Whether its buffers lay in pages of 2 MiB, as the store's do where the system has them: a
  // request of small pages is cut up on its way to the disk. Told from the system's count of such
  // pages, so that others may mislead it.
  bool large_pages = false;
};
// Returns when the file system of `dir` has done what was asked of it before: on one that discards
// what is removed, that would slow down the next pass.
void SettleFileSystem(const std::string& dir);
// One sequential pass over a file of `bytes`: 4 MiB requests, direct, io_uring, 16 in flight. A
// write begins with no file; a read makes it first when it is missing.
Result<FioRate> RunFio(const std::string& file, uint64_t bytes, bool write, bool large_pages);

}  // namespace kvcake::bench
