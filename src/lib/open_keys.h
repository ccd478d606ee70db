// The keys of restorations that are open, each of which has one place.
#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>

#include "base/status.h"
#include "kv/chunk_key.h"

namespace kvcake {

// The Restorer takes for granted that a key, a hash of all that comes before it, is at the same
// place with the same key before it wherever it is. Callers may be wrong about that.
// Unsynchronised.
class OpenKeys {
 public:
  // kInvalidArgument, and nothing changed, when one of them is at another place here or in what is
  // open, or after another key.
  Status Add(const ChunkKey& parent, std::span<const ChunkKey> keys);
  // What was added.
  void Remove(std::span<const ChunkKey> keys);
  size_t size() const { return places_.size(); }

 private:
  struct Place {
    size_t position;
    ChunkKey parent;
    size_t restorations;
  };
  std::unordered_map<ChunkKey, Place> places_;
};

}  // namespace kvcake
