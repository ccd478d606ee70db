// The front of a disk tier: opens its parts and hands over to them what its callers ask for.
//
//   DiskReader    Get, Cancel; the I/O thread. Its parts: DiskReadQueue (the reads it has taken
//                 on), DeviceProbes (of a device that does not answer), ChunkOpener (the threads
//                 that open files)
//   DiskLooker    Look; the threads that look for files
//   DiskClaims    Claim, Disclaim; the claims thread
//   DiskUpkeep    when to look for other processes' files, and to remove; the upkeep thread
//   DiskWriter    Put, on its callers' threads
//   DiskRoom      Evict; capacity, expiry, and DiskScan (what is in the directory, all of it)
//   DiskContext   what all of them share: the options, DiskIndex (what is known of the directory),
//                 DeviceHealth (whether the device is worth asking), BadFiles
//
// Each knows only those below it; what goes up is a callback.
#include "store/disk_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "store/chunk_format.h"
#include "store/disk_claims.h"
#include "store/disk_context.h"
#include "store/disk_looker.h"
#include "store/disk_reader.h"
#include "store/disk_room.h"
#include "store/disk_upkeep.h"
#include "store/disk_writer.h"

namespace kvcake {
namespace {

Status CheckOptions(const DiskTierOptions& options) {
  RETURN_IF_ERROR(CheckStorable(options.layout, options.form.codec, options.form.encrypted));
  if (options.dir.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the store needs a directory: --store DIR");
  }
  if (options.capacity_bytes < options.form.FileBytesMax(options.layout)) {
    return Fail(ErrorCode::kInvalidArgument,
                "--disk-capacity of {} bytes holds no chunk: one takes {} bytes",
                options.capacity_bytes, options.form.FileBytesMax(options.layout));
  }
  if (options.max_reads_in_flight < 1 || options.max_reads_in_flight > 1024) {
    return Fail(ErrorCode::kInvalidArgument, "max_reads_in_flight is {}, must be in [1, 1024]",
                options.max_reads_in_flight);
  }
  if (options.call_threads < 1 || options.call_threads > 256) {
    return Fail(ErrorCode::kInvalidArgument, "call_threads is {}, must be in [1, 256]",
                options.call_threads);
  }
  if (options.io_bytes_max < kDirectAlign || options.io_bytes_max % kDirectAlign != 0 ||
      options.io_bytes_max > (1u << 30)) {
    return Fail(ErrorCode::kInvalidArgument,
                "io_bytes_max is {}, must be a multiple of {} and at most 1 GiB",
                options.io_bytes_max, kDirectAlign);
  }
  return {};
}

// What this process did, for `kvcake store ls`.
void CountUsage(DiskContext& context, const TierStats& stats) {
  if (stats.reads + stats.writes + stats.evicted + stats.quarantined == 0) return;
  if (!context.health.MayWrite()) return;
  const auto added = AddUsage(context.fs, context.store, context.options.root,
                              {.reads = stats.reads,
                               .read_bytes = stats.read_bytes,
                               .writes = stats.writes,
                               .write_bytes = stats.write_bytes,
                               .evicted = stats.evicted,
                               .quarantined = stats.quarantined});
  if (!added && added.error().code != ErrorCode::kNotFound) {  // or the directory was cleared
    spdlog::warn("store: the hits and writes of this process are not counted: {}",
                 added.error().message);
  }
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::Open(DiskTierOptions options, FileSystem& fs) {
  RETURN_IF_ERROR(CheckOptions(options));
  const uint64_t file_bytes = options.form.FileBytesMax(options.layout);
  const int reads_min = std::clamp(options.reads_in_flight_min, 1, options.max_reads_in_flight);
  options.max_read_bytes_in_flight =
      std::max(options.max_read_bytes_in_flight, static_cast<uint64_t>(reads_min) * file_bytes);
  if (options.time_to_live.count() > 0) {
    options.touch_interval = std::min(options.touch_interval, options.time_to_live / 4);
  }
  const StoreDir store(options.dir);
  const auto made = options.durable ? MakeDirsDurably(fs, store.Base()) : fs.MakeDirs(store.Base());
  if (!made) {
    return Fail(made.error().code, "cannot use the store --store {}: {}", options.dir,
                made.error().message);
  }
  // The lock is made while there may be room for it: without it no room is made.
  (void)fs.TryLock(store.LockPath());
  ASSIGN_OR_RETURN(auto queue, fs.NewQueue(DiskReader::QueueOptions(options)));
  // Named as the temporary of a chunk, so that one left by a crash is swept like any other.
  const ChunkId probe{options.root, options.root};
  if (options.direct && CheckNoLinks(fs, store, probe) &&
      MakeShardDir(fs, store, probe, /*durable=*/false)) {
    options.direct = DirectIoWorks(fs, store.ChunkPath(probe));
  }

  return std::unique_ptr<DiskTier>(new DiskTier(std::move(options), fs, std::move(queue)));
}

DiskTier::DiskTier(DiskTierOptions options, FileSystem& fs, std::unique_ptr<IoQueue> queue)
    : context_(std::make_unique<DiskContext>(std::move(options), fs)),
      room_(std::make_unique<DiskRoom>(*context_)),
      writer_(std::make_unique<DiskWriter>(*context_, *room_)),
      upkeep_(std::make_unique<DiskUpkeep>(*context_, *room_)) {
  writer_->DescribeRoot();
  const auto touch = [this](std::string path, int64_t now_s) {
    upkeep_->Touch({std::move(path)}, now_s);
  };
  reader_ = std::make_unique<DiskReader>(*context_, std::move(queue), touch);
  looker_ = std::make_unique<DiskLooker>(*context_);
  claims_ = std::make_unique<DiskClaims>(*context_);
  upkeep_->Start(context_->options.open_wait);
}

DiskTier::~DiskTier() {
  upkeep_->Stop();
  claims_->Stop();
  looker_->Stop();
  reader_->Stop();
  try {
    CountUsage(*context_, Stats());
  } catch (const std::bad_alloc&) {  // counts only
  }
}

std::string_view DiskTier::name() const { return context_->options.name; }

int DiskTier::max_reads_in_flight() const { return context_->options.max_reads_in_flight; }

uint64_t DiskTier::max_read_bytes_in_flight() const {
  return context_->options.max_read_bytes_in_flight;
}

std::vector<bool> DiskTier::Residency(std::span<const ChunkKey> keys) {
  if (!context_->health.MayRead()) return std::vector<bool>(keys.size());
  return context_->index.Contains(keys);
}

bool DiskTier::Keeps(const ChunkKey& key) {
  return Tier::Keeps(key) && !context_->index.IsUnreadable(key);
}

bool DiskTier::Look(LookRequest request) { return looker_->Look(std::move(request)); }

void DiskTier::Pin(std::span<const ChunkKey> keys) { context_->index.pins().Add(keys); }

void DiskTier::Unpin(std::span<const ChunkKey> keys) {
  context_->index.pins().Remove(keys);
  const int64_t now_s = UnixSeconds();
  std::vector<std::string> touched;
  for (const ChunkKey& key : keys) {
    if (context_->index.Use(key, now_s)) touched.push_back(context_->PathOf(key));
  }
  if (!touched.empty()) upkeep_->Touch(std::move(touched), now_s);
}

ReadId DiskTier::Get(ReadRequest request) { return reader_->Get(std::move(request)); }

void DiskTier::Cancel(ReadId id) { reader_->Cancel(id); }

bool DiskTier::Claim(ClaimRequest request) { return claims_->Claim(std::move(request)); }

void DiskTier::Disclaim(std::span<const ChunkKey> keys) { claims_->Disclaim(keys); }

// Kept or not, nobody need wait for it any more.
Status DiskTier::Put(const ChunkWrite& chunk) {
  const Status status = writer_->Put(chunk);
  claims_->Disclaim({&chunk.key, 1});
  return status;
}

Status DiskTier::Evict(const ChunkKey& key) { return room_->Evict(key); }

TierStats DiskTier::Stats() const {
  TierStats stats;
  std::tie(stats.chunks, stats.bytes) = context_->index.Totals();
  stats.quarantined = context_->bad_files.count();
  stats.reads_overdue = static_cast<uint64_t>(context_->health.reads_overdue());
  stats.opens = context_->opens.totals();
  stats.looks = context_->looks.totals();
  stats.scans = context_->scans.totals();
  reader_->AddStats(stats);
  writer_->AddStats(stats);
  room_->AddStats(stats);
  return stats;
}

std::vector<OwnedBytes> DiskTier::Owners() const { return context_->index.files().Owners(); }

}  // namespace kvcake
