// A decorator for tiers of encrypted chunks: the inner one knows chunks only by the names that the
// store's key gives them.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "codec/store_key.h"
#include "store/tier_decorator.h"

namespace kvcake {

class NamedTier : public TierDecorator {
 public:
  NamedTier(std::unique_ptr<Tier> inner, std::shared_ptr<const StoreKey> key)
      : TierDecorator(std::move(inner)), key_(std::move(key)) {}

  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  bool Keeps(const ChunkKey& key) override;
  bool Look(LookRequest request) override;
  void Pin(std::span<const ChunkKey> keys) override;
  void Unpin(std::span<const ChunkKey> keys) override;
  bool Claim(ClaimRequest request) override;
  void Disclaim(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override { inner().Cancel(id); }
  // A file whose header has the names.
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;

 private:
  std::vector<ChunkKey> Names(std::span<const ChunkKey> keys) const;

  const std::shared_ptr<const StoreKey> key_;
};

}  // namespace kvcake
