// What decorators of tiers share: all goes to the inner tier, and reads that are forwarded can be
// cancelled by the decorator's own ids.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/tier.h"

namespace kvcake {

class TierDecorator : public Tier {
 public:
  explicit TierDecorator(std::unique_ptr<Tier> inner);

  std::string_view name() const override { return inner_->name(); }
  int max_reads_in_flight() const override { return inner_->max_reads_in_flight(); }
  uint64_t max_read_bytes_in_flight() const override { return inner_->max_read_bytes_in_flight(); }
  int max_writes_in_flight() const override { return inner_->max_writes_in_flight(); }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return inner_->Residency(keys);
  }
  bool Keeps(const ChunkKey& key) override { return inner_->Keeps(key); }
  bool Look(LookRequest request) override { return inner_->Look(std::move(request)); }
  void Pin(std::span<const ChunkKey> keys) override { inner_->Pin(keys); }
  void Unpin(std::span<const ChunkKey> keys) override { inner_->Unpin(keys); }
  bool Claim(ClaimRequest request) override { return inner_->Claim(std::move(request)); }
  void Disclaim(std::span<const ChunkKey> keys) override { inner_->Disclaim(keys); }
  Status Put(const ChunkWrite& chunk) override { return inner_->Put(chunk); }
  Status Evict(const ChunkKey& key) override { return inner_->Evict(key); }
  TierStats Stats() const override { return inner_->Stats(); }
  std::vector<OwnedBytes> Owners() const override { return inner_->Owners(); }

  Tier& inner() { return *inner_; }
  const Tier& inner() const { return *inner_; }

 protected:
  // Whether the inner tier keeps the chunk: then a Put of it, and with that its claim, ends before
  // it has begun.
  bool InnerKeeps(const ChunkKey& key);
  // Starts the inner read, which the decorator knows as `id`.
  void ForwardGet(ReadId id, ReadRequest request) EXCLUDES(mutex_);
  // Cancels it; also when ForwardGet has not returned yet. Of a read that has ended it does
  // nothing.
  void ForwardCancel(ReadId id) EXCLUDES(mutex_);

 private:
  struct Forwarded {
    std::optional<ReadId> inner;  // once the inner Get has returned
    bool cancelled = false;
  };

  Mutex mutex_;
  std::unordered_map<ReadId, Forwarded> forwarded_ GUARDED_BY(mutex_);
  const std::unique_ptr<Tier> inner_;  // last: its reads end before the rest goes
};

}  // namespace kvcake
