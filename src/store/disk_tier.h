// Chunks as files of one directory, read by direct I/O straight into pages.
//
//   DIR/v1/<root>/<aa>/<key>             one chunk (docs/format.md); aa: the key's first byte
//   DIR/v1/<root>/<aa>/<key>.tmp.<pid>.<n>  being written; renamed when complete
//   DIR/v1/<root>/model.json             what the root stands for, for people
//   DIR/v1/quarantine/                   files that failed verification
//   DIR/v1/lock                          held while evicting
//   DIR/v1/claims/<key>                  locked by who computes that chunk
//
// Several processes may share DIR. Nothing but the files is trusted: the catalogue is rebuilt from
// names and sizes, and every read is verified before `done`. A cache, not an archive: unless it is
// told to be durable nothing is synced, and what a power cut tears fails verification and is a
// miss.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "io/file_system.h"
#include "store/disk_tier_options.h"
#include "store/tier.h"

namespace kvcake {

class DiskClaims;
class DiskLooker;
class DiskReader;
class DiskRoom;
class DiskUpkeep;
class DiskWriter;
struct DiskContext;

// One I/O thread runs every read and calls every `done`, a few open files for it, a few look for
// the files of other processes when asked to, one makes claims, and one removes what is too old or
// too much. Put runs on its caller's thread; everything else but Evict only touches memory,
// whatever the device does. The destructor cancels what has not started and waits for what the
// kernel holds: a device that never answers makes it wait as long (such reads are counted in
// Stats().reads_overdue, and max_reads_in_flight caps them).
class DiskTier : public Tier {
 public:
  // kInvalidArgument, kUnsupported or kIo, naming the option or the path.
  static Result<std::unique_ptr<DiskTier>> Open(DiskTierOptions options,
                                                FileSystem& fs = FileSystem::Real());
  ~DiskTier() override;

  std::string_view name() const override;
  int max_reads_in_flight() const override;
  uint64_t max_read_bytes_in_flight() const override;
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  bool Keeps(const ChunkKey& key) override;
  bool Look(LookRequest request) override;
  void Pin(std::span<const ChunkKey> keys) override;
  void Unpin(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  bool Claim(ClaimRequest request) override;
  void Disclaim(std::span<const ChunkKey> keys) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;
  std::vector<OwnedBytes> Owners() const override;

 private:
  DiskTier(DiskTierOptions options, FileSystem& fs, std::unique_ptr<IoQueue> queue);

  // Each is thread-safe, and knows only of those before it.
  const std::unique_ptr<DiskContext> context_;
  const std::unique_ptr<DiskRoom> room_;
  const std::unique_ptr<DiskWriter> writer_;
  const std::unique_ptr<DiskUpkeep> upkeep_;
  std::unique_ptr<DiskReader> reader_;
  std::unique_ptr<DiskLooker> looker_;
  std::unique_ptr<DiskClaims> claims_;
};

}  // namespace kvcake
