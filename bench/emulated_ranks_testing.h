// Ranks that tests play: their sleeps and links are never early.
#pragma once

#include "bench/emulated_ranks.h"

namespace kvcake::bench {

// So many ranks of a small model on such links.
inline EmulatedRanksOptions SmallRanks(int ranks, double link_bytes_per_s) {
  return {.profile = {.name = "small",
                      .layers = 4,
                      .kv_bytes_per_token = 1 << 16,
                      .max_positions = 4096,
                      .attention = EmulatedProfile::Attention::kDense,
                      .b = 5e-6,
                      .a = 1e-9},
          .ranks = ranks,
          .link = {.alpha_s = 100e-6, .bytes_per_s = link_bytes_per_s},
          .tokens_max = 4096};
}

}  // namespace kvcake::bench
