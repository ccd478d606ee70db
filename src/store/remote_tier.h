// A tier of chunks that a store elsewhere keeps.
//
// A chunk is one value, of the bytes of a chunk file (docs/format.md). It is verified on every read
// as a file is; what fails is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "store/call_times.h"
#include "store/chunk_kind.h"
#include "store/fault_log.h"
#include "store/known_keys.h"
#include "store/remote_store.h"
#include "store/tier.h"

namespace kvcake {

struct RemoteTierOptions {
  KvLayout layout = {};
  // What values have in their headers, and lie under: FormRoot of the model's.
  ChunkKey root = {};
  ChunkForm form = {};  // how they are encoded, and what is put and lands then: DiskTierOptions'
  std::string name = "remote";
  int max_reads_in_flight = 32;
  uint64_t max_read_bytes_in_flight = 256ull << 20;  // of whole chunks, but for kReadsMin of them
  size_t known_keys_max = 1 << 20;
  // Keys that are looked for at the same time. Where there is a bound, so many misses in a row end
  // a look: what follows is not held, as far as it says.
  size_t looks_at_once = std::numeric_limits<size_t>::max();
};

// The store's thread asks, verifies what comes, and calls `done`.
class RemoteTier : public Tier {
 public:
  static constexpr int kReadsMin = 4;  // may be in flight however large a chunk is
  // kUnsupported where a chunk's header has no room for so many layers.
  static Result<std::unique_ptr<RemoteTier>> Open(RemoteTierOptions options,
                                                  std::unique_ptr<RemoteStore> store);
  ~RemoteTier() override;

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.max_reads_in_flight; }
  uint64_t max_read_bytes_in_flight() const override { return options_.max_read_bytes_in_flight; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return known_.Contains(keys);
  }
  bool Look(LookRequest request) override;
  // Pins nothing: a use, which renews what would expire.
  void Unpin(std::span<const ChunkKey> keys) override;
  bool Claim(ClaimRequest request) override { return store_->Claim(std::move(request)); }
  void Disclaim(std::span<const ChunkKey> keys) override { store_->Disclaim(keys); }
  ReadId Get(ReadRequest request) override EXCLUDES(mutex_);
  void Cancel(ReadId id) override EXCLUDES(mutex_);
  Status Put(const ChunkWrite& chunk) override EXCLUDES(mutex_);
  Status Evict(const ChunkKey& key) override EXCLUDES(mutex_);
  TierStats Stats() const override EXCLUDES(mutex_);

 private:
  struct Read;
  struct Looking;
  using ReadPtr = std::shared_ptr<Read>;
  using LookingPtr = std::shared_ptr<Looking>;

  RemoteTier(RemoteTierOptions options, std::unique_ptr<RemoteStore> store);

  // On the store's thread.
  void Begin(const ReadPtr& read);
  void AskForPart(const ReadPtr& read, uint64_t offset, std::span<std::byte> landing);
  void OnPart(const ReadPtr& read, Result<uint64_t> landed);
  // The layers of an encoded chunk, whose header says where they are.
  void AskForParts(const ReadPtr& read);
  Status Verify(Read& read) const;
  void Finish(const ReadPtr& read) EXCLUDES(mutex_);
  void LookOn(const LookingPtr& looking);
  void OnLooked(const LookingPtr& looking, size_t i, Result<bool> answer);

  const RemoteTierOptions options_;
  const ChunkKind kind_;
  const std::string reading_, writing_;  // for the logs below
  KnownKeys known_;
  FaultLog read_faults_, write_faults_;
  CallTimes looks_;

  mutable Mutex mutex_;
  std::unordered_map<ReadId, ReadPtr> reads_ GUARDED_BY(mutex_);  // that have not ended
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  TierStats stats_ GUARDED_BY(mutex_);

  RemoteStore* const store_;
  std::unique_ptr<RemoteStore> owned_store_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
