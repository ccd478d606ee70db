// fio, the yardstick of bench load: an outside program that this bench alone needs.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvcake::bench {

// kNotFound, with what to install, when there is no fio.
Status CheckFio();
// Bytes a second of one sequential pass over a file of `bytes`: 4 MiB requests, direct, io_uring,
// 16 in flight. A write begins with no file; a read makes it first when it is missing.
Result<double> FioRate(const std::string& file, uint64_t bytes, bool write);

}  // namespace kvcake::bench
