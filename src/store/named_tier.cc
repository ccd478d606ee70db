#include "store/named_tier.h"

#include "store/chunk_seal.h"

namespace kvcake {

std::vector<ChunkKey> NamedTier::Names(std::span<const ChunkKey> keys) const {
  std::vector<ChunkKey> names;
  names.reserve(keys.size());
  for (const ChunkKey& key : keys) names.push_back(NameOf(*key_, key));
  return names;
}

std::vector<bool> NamedTier::Residency(std::span<const ChunkKey> keys) {
  return inner().Residency(Names(keys));
}

bool NamedTier::Keeps(const ChunkKey& key) { return inner().Keeps(NameOf(*key_, key)); }

bool NamedTier::Look(LookRequest request) {
  request.keys = Names(request.keys);
  return inner().Look(std::move(request));
}

void NamedTier::Pin(std::span<const ChunkKey> keys) { inner().Pin(Names(keys)); }

void NamedTier::Unpin(std::span<const ChunkKey> keys) { inner().Unpin(Names(keys)); }

bool NamedTier::Claim(ClaimRequest request) {
  request.keys = Names(request.keys);
  return inner().Claim(std::move(request));
}

void NamedTier::Disclaim(std::span<const ChunkKey> keys) { inner().Disclaim(Names(keys)); }

ReadId NamedTier::Get(ReadRequest request) {
  request.key = NameOf(*key_, request.key);
  request.parent = NameOf(*key_, request.parent);
  return inner().Get(std::move(request));
}

Status NamedTier::Put(const ChunkWrite& chunk) {
  ChunkWrite named = chunk;
  named.key = NameOf(*key_, chunk.key);
  named.parent = NameOf(*key_, chunk.parent);
  return inner().Put(named);
}

Status NamedTier::Evict(const ChunkKey& key) { return inner().Evict(NameOf(*key_, key)); }

}  // namespace kvcake
