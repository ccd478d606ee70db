// The answers to one request as one.
#pragma once

#include <span>

#include "engine/request.h"

namespace kvcake {

// What one answer did not have to compute of its prompt.
int CachedTokens(const Completion& completion);

// Adds the answers of a request up: `n` in a row are to the same prompt, whose tokens count once,
// as the one that had to compute most of them did. Answers count all, times as the longest. One is
// left as it is; there is one at least.
Completion SumOf(std::span<const Completion> completions, int n);

}  // namespace kvcake
