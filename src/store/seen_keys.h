// A bounded memory of keys: whether this one has come up before.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <unordered_set>

#include "base/status.h"
#include "kv/chunk_key.h"

namespace kvcake {

// By 64 bits of the key: one in 10^14 is mistaken for another. Unsynchronised.
class SeenKeys {
 public:
  explicit SeenKeys(size_t keys_max) : keys_max_(keys_max) {}

  // Whether it was there; it is from now on, until as many others have come as are remembered.
  bool Add(const ChunkKey& key) { return Add(std::hash<ChunkKey>()(key)); }

  nlohmann::json ToJson() const;
  // Adds to what is remembered; kInvalidArgument (and nothing changed) if the text is not ours.
  [[nodiscard]] Status FromJson(const nlohmann::json& json);

 private:
  bool Add(uint64_t key);

  const size_t keys_max_;
  std::unordered_set<uint64_t> keys_;
  std::deque<uint64_t> order_;  // oldest first
};

}  // namespace kvcake
