// The picture of bench ttft.
#pragma once

#include <string>
#include <vector>

#include "bench/ttft_cell.h"

namespace kvcake::bench {

// Time to first token of each policy, and the bound, over the ratio of the cells.
std::string DrawTtft(const std::vector<TtftCell>& cells, const std::string& title);

}  // namespace kvcake::bench
