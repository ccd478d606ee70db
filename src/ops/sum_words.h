// Reads memory once: what the rate of reading it is measured by.
#pragma once

#include <cstdint>
#include <span>

#include "ops/compute.h"

namespace kvcake {

// *sum += all words, modulo 2^64. A multiple of 16 words, 64-byte aligned; both are the path's
// memory.
void SumWords(const Compute& compute, std::span<const uint64_t> words, uint64_t* sum);

}  // namespace kvcake
