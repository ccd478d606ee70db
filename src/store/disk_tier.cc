#include "store/disk_tier.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "base/check.h"
#include "store/chunk_format.h"

namespace kvcake {
namespace {

struct alignas(kDirectAlign) HeaderBlock {
  std::array<std::byte, kPageHeaderBytes> bytes;
};

constexpr uint64_t kProbeBytes = kDirectAlign;  // room for one probe beside the reads

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

// One read, from Get until its `done`.
struct DiskTier::Read {
  ReadId id = 0;
  ReadRequest request;
  std::string path;
  std::unique_ptr<File> file;
  std::unique_ptr<HeaderBlock> header;  // of a read of some layers; else it is in the landing
  struct Piece {
    uint64_t offset;
    std::span<std::byte> buffer;
  };
  std::vector<Piece> pieces;
  int pieces_queued = 0;  // of them, now
  bool cancelled = false;
  Status status;  // the first failure

  void Plan(const KvLayout& layout, uint64_t io_bytes_max);
};

void DiskTier::Read::Plan(const KvLayout& layout, uint64_t io_bytes_max) {
  uint64_t offset = 0;
  if (request.layers) {
    header = std::make_unique<HeaderBlock>();
    pieces.push_back({0, header->bytes});
    offset = layout.slab_offset(request.layers->first);
  }
  const auto landing = request.landing.first(ReadBytes(layout, request));
  for (uint64_t at = 0; at < landing.size(); at += io_bytes_max) {
    const uint64_t bytes = std::min<uint64_t>(io_bytes_max, landing.size() - at);
    pieces.push_back({offset + at, landing.subspan(at, bytes)});
  }
}

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
  if (auto status = fs.MakeDirs(store.Base()); !status) {
    return Fail(status.error().code, "cannot use the store --store {}: {}", options.dir,
                status.error().message);
  }
  IoQueueOptions queue_options;
  queue_options.requests_max = options.max_reads_in_flight * static_cast<int>(PiecesMax(options));
  queue_options.requests_max += 1;  // a probe
  queue_options.bytes_max = options.max_read_bytes_in_flight + kProbeBytes;
  ASSIGN_OR_RETURN(auto queue, fs.NewQueue(queue_options));
  // Named as the temporary of a chunk, so that one left by a crash is swept like any other.
  const ChunkId probe{options.root, options.root};
  if (options.direct && fs.MakeDirs(store.ShardDir(probe))) {
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
      // Not from 0: a process that had our pid may have left temporaries.
      next_temporary_(
          static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())) {}

void DiskTier::Prepare() {
  // None of this is needed for reading: a read-only store serves what it has.
  auto status = fs_.MakeDirs(store_.RootDir(options_.root));
  const std::string model_path = store_.ModelPath(options_.root);
  if (status && !options_.description.empty()) {
    auto text = ReadText(fs_, model_path, options_.description.size());
    if (!text || *text != options_.description) {
      status = WriteText(fs_, model_path, options_.description);
    }
  }
  if (!status) write_faults_.Failed(status.error());
  if (auto bad = fs_.List(store_.QuarantineDir())) {
    for (const DirEntry& entry : *bad) {
      ++quarantine_files_;
      quarantine_bytes_ += entry.info.bytes;
    }
  }
  {
    std::lock_guard lock(eviction_mutex_);
    scanned_unix_s_ = UnixSeconds();
    RescanLocked();
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
  if (stats_.reads + stats_.writes + stats_.evicted + stats_.quarantined == 0) return;
  (void)AddUsage(fs_, store_, options_.root,
                 {.reads = stats_.reads,
                  .read_bytes = stats_.read_bytes,
                  .writes = stats_.writes,
                  .write_bytes = stats_.write_bytes,
                  .evicted = stats_.evicted,
                  .quarantined = stats_.quarantined});
}

ReadId DiskTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  auto read = std::make_unique<Read>();
  read->path = store_.ChunkPath({options_.root, request.key});
  read->request = std::move(request);
  read->Plan(options_.layout, options_.io_bytes_max);
  ReadId id;
  {
    std::lock_guard lock(mutex_);
    id = read->id = next_id_++;
    arrived_.push_back(std::move(read));
  }
  queue_->Wake();
  return id;
}

void DiskTier::Cancel(ReadId id) {
  {
    std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  queue_->Wake();
}

void DiskTier::Loop() {
  std::vector<IoCompletion> completions;
  while (TakeWork()) {
    CheckHealth();
    StartReads();
    completions.clear();
    if (auto status = queue_->Wait(completions, NextCheck()); !status) {
      // The ring is broken, and with it the only way to learn that a buffer is ours again.
      spdlog::critical("store: {}", status.error().message);
      CHECK(status.has_value());
    }
    for (const IoCompletion& completion : completions) {
      completion.user_data == kProbeTag ? OnProbe(completion) : OnCompletion(completion);
    }
  }
}

// Takes over what callers have left; false when all is done and the tier is being destroyed.
bool DiskTier::TakeWork() {
  std::vector<ReadId> cancelled;
  bool stop;
  {
    std::lock_guard lock(mutex_);
    for (auto& read : arrived_) waiting_.push_back(std::move(read));
    arrived_.clear();
    cancelled.swap(cancelled_);
    stop = stop_;
  }
  const auto is_cancelled = [&](const Read& read) {
    return stop || std::find(cancelled.begin(), cancelled.end(), read.id) != cancelled.end();
  };
  for (auto& [id, read] : in_flight_) {
    if (read->cancelled || !is_cancelled(*read)) continue;
    read->cancelled = true;
    for (uint64_t piece = 0; piece < pieces_; ++piece) queue_->Cancel(id * pieces_ + piece);
  }
  std::vector<std::unique_ptr<Read>> dropped;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (is_cancelled(**it)) {
      dropped.push_back(std::move(*it));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto& read : dropped) {
    Finish(std::move(read), Fail(ErrorCode::kCancelled, "read cancelled"));
  }
  if (stop && probe_ != nullptr) queue_->Cancel(kProbeTag);
  return !stop || !in_flight_.empty() || probe_ != nullptr;
}

void DiskTier::StartReads() {
  const uint64_t bytes = options_.layout.page_bytes();
  while (!waiting_.empty()) {
    if (breaker_.open()) {
      std::unique_ptr<Read> read = std::move(waiting_.front());
      waiting_.pop_front();
      Finish(std::move(read), Fail(ErrorCode::kIo, "the device does not answer"));
      continue;
    }
    const auto reads = static_cast<uint64_t>(in_flight_.size());
    if (reads >= static_cast<uint64_t>(options_.max_reads_in_flight) ||
        (reads + 1) * bytes > options_.max_read_bytes_in_flight) {
      return;
    }
    std::unique_ptr<Read> read = std::move(waiting_.front());
    waiting_.pop_front();
    {
      std::lock_guard lock(mutex_);
      started_.emplace(read->id, Started{Clock::Real().Now(), read->path});
    }
    if (auto status = OpenChunk(*read); !status) {
      Finish(std::move(read), status);
      continue;
    }
    Read& started = *read;
    in_flight_.emplace(started.id, std::move(read));
    Submit(started);
  }
}

Status DiskTier::OpenChunk(Read& read) {
  const uint64_t bytes = options_.layout.page_bytes();
  const bool direct = options_.direct && IsAligned(read.request.landing);
  ASSIGN_OR_RETURN(read.file, fs_.OpenRead(read.path, direct));
  ASSIGN_OR_RETURN(const FileInfo info, read.file->Info());
  if (info.bytes != bytes) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, must have {}", info.bytes, bytes);
  }
  return {};
}

void DiskTier::Submit(Read& read) {
  for (size_t i = 0; i < read.pieces.size() && read.status; ++i) {
    IoOp op;
    op.file = read.file.get();
    op.offset = read.pieces[i].offset;
    op.buffer = read.pieces[i].buffer;
    op.user_data = read.id * pieces_ + i;
    read.status = queue_->Submit(op);
    if (read.status) ++read.pieces_queued;
  }
  if (read.pieces_queued == 0) Land(read);
}

void DiskTier::OnCompletion(const IoCompletion& completion) {
  Read& read = *in_flight_.at(completion.user_data / pieces_);
  const uint64_t expected = read.pieces[completion.user_data % pieces_].buffer.size();
  if (read.status && !completion.bytes) {
    read.status = tl::unexpected(completion.bytes.error());
  } else if (read.status && *completion.bytes != expected) {
    read.status = Fail(ErrorCode::kCorrupt, "it ended while it was being read");
  }
  if (--read.pieces_queued == 0) Land(read);
}

// All that will come has come: the landing is ours again.
void DiskTier::Land(Read& read) {
  auto node = in_flight_.extract(read.id);
  const Status status = read.status;
  Finish(std::move(node.mapped()), status);
}

Result<NumericPath> DiskTier::Verify(const Read& read) {
  const auto landing = read.request.landing.first(ReadBytes(options_.layout, read.request));
  const auto bytes = read.header ? HeaderBytes(read.header->bytes)
                                 : HeaderBytes(landing.first<kPageHeaderBytes>());
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeHeader(bytes));
  ChunkHeader expected;
  expected.root = options_.root;
  expected.key = read.request.key;
  expected.parent = read.request.parent;
  expected.layout = options_.layout;
  RETURN_IF_ERROR(CheckSameChunk(header, expected));
  if (!read.request.layers) {
    RETURN_IF_ERROR(VerifySlabs(header, landing));
    return header.numeric_path;
  }
  const uint64_t slab_bytes = options_.layout.slab_bytes();
  for (int i = 0; i < read.request.layers->count; ++i) {
    RETURN_IF_ERROR(VerifySlab(header, read.request.layers->first + i,
                               landing.subspan(i * slab_bytes, slab_bytes)));
  }
  return header.numeric_path;
}

void DiskTier::Finish(std::unique_ptr<Read> read, Status status) {
  const ChunkId id{options_.root, read->request.key};
  read->file.reset();
  ReadResult result;
  if (status) {
    if (auto path = Verify(*read)) {
      result.numeric_path = *path;
      result.bytes = ReadBytes(options_.layout, read->request);
    } else {
      status = tl::unexpected(path.error());
    }
  }
  if (!status) Failed(*read, status.error());
  if (!status && status.error().code == ErrorCode::kResourceExhausted) {
    status = Fail(ErrorCode::kIo, "{}", status.error().message);  // no more of a tier's codes
  }
  result.status = status;
  {
    std::lock_guard lock(mutex_);
    started_.erase(read->id);
    if (status) {
      ++stats_.reads;
      stats_.read_bytes += result.bytes;
    }
  }
  const int64_t now_s = UnixSeconds();
  const bool touch =
      status && catalogue_.Use(id, now_s, static_cast<int64_t>(options_.touch_interval.count()));
  read->request.done(std::move(result));
  if (status) {
    read_faults_.Succeeded();
    breaker_.Succeeded();
  }
  // After `done`, off the read path. A read-only store keeps the mtimes that it has.
  if (touch) (void)fs_.Touch(read->path, now_s);
}

void DiskTier::Failed(const Read& read, const Error& error) {
  if (error.code == ErrorCode::kCancelled) return;
  if (error.code == ErrorCode::kIo && breaker_.open()) {  // says nothing about this chunk
    std::lock_guard lock(mutex_);
    ++stats_.reads_failed;
    return;
  }
  catalogue_.Remove({options_.root, read.request.key});
  // Not looked for again at once: the caller computes it now and writes it anew.
  NoteMissing(read.request.key);
  if (error.code == ErrorCode::kNotFound) return;
  {
    std::lock_guard lock(mutex_);
    ++stats_.reads_failed;
  }
  if (error.code == ErrorCode::kCorrupt) {
    Quarantine(read.path, error);
  } else {
    read_faults_.Failed(error);
    breaker_.Failed(read.path);
  }
}

void DiskTier::Quarantine(const std::string& path, const Error& reason) {
  const auto info = fs_.Stat(path);
  if (!info) return;  // another process was faster
  bool keep;
  {
    std::lock_guard lock(mutex_);
    ++stats_.quarantined;
    keep = quarantine_files_ < options_.quarantine_files_max &&
           quarantine_bytes_ + info->bytes <= options_.quarantine_bytes_max;
  }
  Status status;
  if (keep) {
    const std::string to =
        fmt::format("{}/{}.{}.{}", store_.QuarantineDir(), path.substr(path.rfind('/') + 1),
                    getpid(), next_temporary_.fetch_add(1));
    status = fs_.MakeDirs(store_.QuarantineDir());
    if (status) status = fs_.Rename(path, to);
    if (status) {
      std::lock_guard lock(mutex_);
      ++quarantine_files_;
      quarantine_bytes_ += info->bytes;
    }
  } else {
    status = info->kind == FileInfo::Kind::kDirectory ? fs_.RemoveDir(path) : fs_.Remove(path);
  }
  spdlog::warn("store: {} is not the chunk that its name says: {}; {}", path, reason.message,
               !status ? "it could not be moved away: " + status.error().message
               : keep  ? "moved to quarantine"
                       : "removed, as the quarantine is full");
}

TierStats DiskTier::Stats() const {
  const auto [chunks, bytes] = catalogue_.Totals(options_.root);
  const TimePoint now = Clock::Real().Now();
  std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = chunks;
  stats.bytes = bytes;
  stats.pinned = pins_.size();
  for (const auto& [id, read] : started_)
    stats.reads_overdue += now - read.at > options_.overdue_after;
  return stats;
}

}  // namespace kvcake
