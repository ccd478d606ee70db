#include "store/disk_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/cpu.h"
#include "store/chunk_format.h"
#include "store/disk_tier_read.h"
#include "store/quarantine.h"

namespace kvcake {
namespace {

constexpr int kOpenThreadsMax = 4;  // that look at the files when a tier is opened

// The header of a read of some layers is a piece of its own.
uint64_t PiecesMax(const DiskTierOptions& options) {
  return (options.layout.page_bytes() + options.io_bytes_max - 1) / options.io_bytes_max + 1;
}

Status CheckOptions(const DiskTierOptions& options) {
  RETURN_IF_ERROR(CheckStorable(options.layout));
  if (options.dir.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the store needs a directory: --store DIR");
  }
  if (options.capacity_bytes < options.layout.page_bytes()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--disk-capacity of {} bytes holds no chunk: one takes {} bytes",
                options.capacity_bytes, options.layout.page_bytes());
  }
  if (options.max_reads_in_flight < 1 || options.max_reads_in_flight > 1024) {
    return Fail(ErrorCode::kInvalidArgument, "max_reads_in_flight is {}, must be in [1, 1024]",
                options.max_reads_in_flight);
  }
  if (options.io_bytes_max < kDirectAlign || options.io_bytes_max % kDirectAlign != 0 ||
      options.io_bytes_max > (1u << 30)) {
    return Fail(ErrorCode::kInvalidArgument,
                "io_bytes_max is {}, must be a multiple of {} and at most 1 GiB",
                options.io_bytes_max, kDirectAlign);
  }
  return {};
}

}  // namespace

void DiskTier::FaultLog::Failed(const Error& error) {
  std::lock_guard lock(mutex_);
  const TimePoint now = Clock::Real().Now();
  if (failing_ || now < quiet_until_) return;
  failing_ = true;
  quiet_until_ = now + Seconds(60);
  spdlog::warn("store: {} fails: {}; further failures are only counted", what_, error.message);
}

void DiskTier::FaultLog::Succeeded() {
  if (!failing_) return;
  std::lock_guard lock(mutex_);
  if (failing_.exchange(false)) spdlog::info("store: {} works again", what_);
}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(DiskTierOptions options, FileSystem& fs) {
  RETURN_IF_ERROR(CheckOptions(options));
  const uint64_t page_bytes = options.layout.page_bytes();
  options.max_read_bytes_in_flight = std::max(options.max_read_bytes_in_flight, page_bytes);
  if (options.time_to_live.count() > 0) {
    options.touch_interval = std::min(options.touch_interval, options.time_to_live / 4);
  }
  const StoreDir store(options.dir);
  const auto made = options.durable ? MakeDirsDurably(fs, store.Base()) : fs.MakeDirs(store.Base());
  if (!made) {
    return Fail(made.error().code, "cannot use the store --store {}: {}", options.dir,
                made.error().message);
  }
  IoQueueOptions queue_options;
  queue_options.requests_max = options.max_reads_in_flight * static_cast<int>(PiecesMax(options));
  queue_options.requests_max += kProbesMax;
  queue_options.bytes_max = options.max_read_bytes_in_flight + kProbesMax * kProbeBytes;
  ASSIGN_OR_RETURN(auto queue, fs.NewQueue(queue_options));
  // Named as the temporary of a chunk, so that one left by a crash is swept like any other.
  const ChunkId probe{options.root, options.root};
  if (options.direct && CheckNoLinks(fs, store, probe) && fs.MakeDirs(store.ShardDir(probe))) {
    options.direct = DirectIoWorks(fs, store.ChunkPath(probe));
  }

  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options), fs));
  tier->queue_ = std::move(queue);
  tier->Prepare();
  tier->thread_ = std::thread([raw = tier.get()] { raw->Loop(); });
  // At once where the capacity is smaller than it was.
  const bool full = tier->catalogue_.bytes() > tier->options_.capacity_bytes;
  tier->upkeep_.At(Clock::Real().Now() + (full ? Seconds(0) : tier->options_.upkeep_interval),
                   [raw = tier.get()] { raw->Upkeep(); });
  return tier;
}

DiskTier::DiskTier(DiskTierOptions options, FileSystem& fs)
    : options_(std::move(options)),
      fs_(fs),
      store_(options_.dir),
      pieces_(PiecesMax(options_)),
      breaker_(options_.failures_max, options_.probe_interval),
      watch_(options_.overdue_after) {}

void DiskTier::Prepare() {
  // None of this is needed for reading: a read-only store serves what it has.
  auto status = CheckNoLinks(fs_, store_, {options_.root, options_.root});
  if (status) status = fs_.MakeDirs(store_.RootDir(options_.root));
  const std::string model_path = store_.ModelPath(options_.root);
  if (status && !options_.description.empty()) {
    auto text = ReadText(fs_, model_path, options_.description.size());
    if (!text || *text != options_.description) {
      status = WriteText(fs_, model_path, options_.description);
    }
  }
  if (!status) write_faults_.Failed(status.error());
  {
    std::lock_guard lock(eviction_mutex_);
    scanned_unix_s_ = UnixSeconds();
    RescanLocked(std::min(UsableCores(), kOpenThreadsMax));  // nobody computes yet
  }
  Expire();
}

DiskTier::~DiskTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queue_->Wake();
  if (thread_.joinable()) thread_.join();
  TierStats stats;
  {
    std::lock_guard lock(mutex_);  // upkeep may be under way
    stats = stats_;
  }
  if (stats.reads + stats.writes + stats.evicted + stats.quarantined == 0) return;
  if (breaker_.hangs() || watch_.overdue(OverdueWatch::Kind::kWrite) > 0) return;
  const auto added = AddUsage(fs_, store_, options_.root,
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

bool DiskTier::Quarantine(const std::string& path, const Error& reason, const FileInfo& bad) {
  const auto moved = MoveToQuarantine(
      fs_, store_, path, bad, {options_.quarantine_files_max, options_.quarantine_bytes_max});
  if (!moved) {
    quarantine_faults_.Failed({moved.error().code, fmt::format("{} ({}): {}", path, reason.message,
                                                               moved.error().message)});
    return false;
  }
  if (*moved == Quarantined::kGone) return true;  // another process was faster
  quarantine_faults_.Succeeded();
  spdlog::warn(
      "store: {} is not the chunk that its name says: {}; {}", path, reason.message,
      *moved == Quarantined::kMoved ? "moved to quarantine" : "removed, as the quarantine is full");
  std::lock_guard lock(mutex_);
  ++stats_.quarantined;
  return true;
}

TierStats DiskTier::Stats() const {
  const auto [chunks, bytes] = catalogue_.Totals(options_.root);
  std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = chunks;
  stats.bytes = bytes;
  stats.pinned = pins_.size();
  stats.reads_overdue = watch_.overdue(OverdueWatch::Kind::kRead);
  return stats;
}

}  // namespace kvcake
