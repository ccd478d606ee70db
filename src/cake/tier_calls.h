// Calls to tiers, collected under a Restorer's mutex and made without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/chunk_key.h"
#include "store/tier.h"

namespace kvcake {

// Chunks that a tier is asked for on behalf of a prompt, which may have ended by the answer.
struct LookCall {
  uint64_t serial = 0;  // the prompt's
  int tier = 0;
  std::vector<int> chunks = {};
  std::vector<ChunkKey> keys = {};
};

// Chunks that are claimed at a tier for a prompt.
struct ClaimCall {
  uint64_t serial = 0;  // the prompt's
  std::vector<int> chunks = {};
  std::vector<ChunkKey> keys = {};
  Seconds lasts{0};
};

struct TierCalls {
  struct Get {
    int tier = 0;
    uint64_t number = 0;  // the read's, in its lane
    ChunkKey key;
    ChunkKey parent;
    std::span<std::byte> landing;
  };
  struct Cancel {
    int tier = 0;
    ReadId id = 0;
  };
  struct Unpin {
    int tier = 0;
    std::vector<ChunkKey> keys;
  };
  // Made in this order: an Unpin comes after all that was read.
  std::vector<Get> gets;
  std::vector<Cancel> cancels;
  std::vector<Unpin> unpins;
  std::vector<LookCall> looks;
  std::vector<ClaimCall> claims;
  std::vector<ChunkKey> disclaims;

  bool empty() const {
    return gets.empty() && cancels.empty() && unpins.empty() && looks.empty() && claims.empty() &&
           disclaims.empty();
  }
};

}  // namespace kvcake
