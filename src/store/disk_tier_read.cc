// The reading half of DiskTier. A read waits for its turn (waiting_), then for its file to be
// opened (at_files_), then for its bytes (in_flight_), and ends in Finish. The I/O thread does all
// of it but what may hang in a directory: opening, closing and moving away go by the files thread.
#include "store/disk_tier_read.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/check.h"
#include "store/chunk_format.h"
#include "store/disk_tier.h"

namespace kvcake {
namespace {

constexpr Seconds kBadFilePause{60};

tl::unexpected<Error> Cancelled() { return Fail(ErrorCode::kCancelled, "read cancelled"); }

tl::unexpected<Error> NoAnswer() { return Fail(ErrorCode::kIo, "the device does not answer"); }

}  // namespace

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
      completion.user_data >= kProbeTag ? OnProbe(completion) : OnCompletion(completion);
    }
  }
}

// Takes over what callers and the files thread have left; false when all is done and the tier is
// being destroyed.
bool DiskTier::TakeWork() {
  std::vector<ReadId> cancelled;
  std::vector<FileAnswer> answers;
  bool stop;
  {
    std::lock_guard lock(mutex_);
    for (auto& read : arrived_) waiting_.push_back(std::move(read));
    arrived_.clear();
    cancelled.swap(cancelled_);
    answers.swap(answers_);
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
  if (stop || !cancelled.empty()) DropUnread(is_cancelled, Cancelled());
  for (FileAnswer& answer : answers) OnFile(std::move(answer));
  if (stop) CancelProbes();
  return !stop || !in_flight_.empty() || !at_files_.empty() || !probes_.empty();
}

// Ends the reads of which the kernel has heard nothing, but for those whose file turned out to be
// bad: it must have been moved away when they are answered.
void DiskTier::DropUnread(const std::function<bool(const Read&)>& which, const Status& status) {
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(),
                                           [&](const auto& read) { return !which(*read); });
  std::vector<std::unique_ptr<Read>> dropped(std::make_move_iterator(first),
                                             std::make_move_iterator(waiting_.end()));
  waiting_.erase(first, waiting_.end());
  for (auto it = at_files_.begin(); it != at_files_.end();) {
    if (it->second->is_bad || !which(*it->second)) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second));
    it = at_files_.erase(it);
  }
  for (auto& read : dropped) Finish(std::move(read), status);
}

bool DiskTier::HasRoomFor(uint64_t reads) const {
  return reads <= static_cast<uint64_t>(options_.max_reads_in_flight) &&
         reads * options_.layout.page_bytes() <= options_.max_read_bytes_in_flight;
}

void DiskTier::StartReads() {
  lost_ = ReadsAreLost();
  if (breaker_.open() || lost_) {
    DropUnread([](const Read&) { return true; }, NoAnswer());
    return;
  }
  while (!waiting_.empty() && HasRoomFor(in_flight_.size() + at_files_.size() + 1)) {
    std::unique_ptr<Read> read = std::move(waiting_.front());
    waiting_.pop_front();
    read->watched = watch_.Begin(OverdueWatch::Kind::kRead, read->path);
    const bool direct = options_.direct && IsAligned(read->request.landing);
    files_.Soon([this, id = read->id, key = read->request.key, path = read->path, direct] {
      Answer({id, OpenChunk(key, path, direct)});
    });
    at_files_.emplace(read->id, std::move(read));
  }
}

// On the files thread. A corrupt file has been moved away when this returns.
Result<std::shared_ptr<File>> DiskTier::OpenChunk(const ChunkKey& key, const std::string& path,
                                                  bool direct) {
  if (Stopping()) return Cancelled();
  if (breaker_.open()) return NoAnswer();  // as the read has been told already
  const uint64_t bytes = options_.layout.page_bytes();
  Result<std::shared_ptr<File>> file = fs_.OpenRead(path, direct);
  if (!file) {
    if (file.error().code != ErrorCode::kCorrupt) return file;
    const auto info = fs_.Stat(path);
    if (info && info->kind != FileInfo::Kind::kRegular) MoveAway(key, path, file.error(), *info);
    return file;
  }
  ASSIGN_OR_RETURN(const FileInfo info, (*file)->Info());
  if (info.bytes == bytes) return file;
  const Error error{ErrorCode::kCorrupt,
                    fmt::format("it has {} bytes, must have {}", info.bytes, bytes)};
  MoveAway(key, path, error, info);
  return tl::unexpected(error);
}

// On the files thread.
void DiskTier::Answer(FileAnswer answer) {
  {
    std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
  }
  queue_->Wake();
}

void DiskTier::OnFile(FileAnswer answer) {
  if (answer.id >= kProbeTag) {
    OnProbeOpened(answer.id, std::move(answer.file));
    return;
  }
  auto node = at_files_.extract(answer.id);
  if (node.empty()) {  // it has been answered without
    if (answer.file) Close(std::move(*answer.file));
    return;
  }
  if (!answer.file) {
    Finish(std::move(node.mapped()), tl::unexpected(answer.file.error()));
    return;
  }
  Read& read = *node.mapped();
  read.file = std::move(*answer.file);
  in_flight_.insert(std::move(node));
  Submit(read);
}

void DiskTier::Close(std::shared_ptr<File> file) {
  if (file == nullptr) return;
  files_.Soon([file = std::move(file)] {});
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

// All that will come has come: the landing is ours again. A bad file is moved away before its read
// is answered: the answer may be a new file of that name.
void DiskTier::Land(Read& read) {
  auto node = in_flight_.extract(read.id);
  if (read.status) {
    if (const auto path = Verify(read)) {
      read.numeric_path = *path;
    } else {
      read.status = tl::unexpected(path.error());
    }
  }
  if (read.status || read.status.error().code != ErrorCode::kCorrupt) {
    const Status status = read.status;
    Close(std::move(read.file));
    Finish(std::move(node.mapped()), status);
    return;
  }
  read.is_bad = true;
  // Open until then, so that no other file can be taken for it.
  files_.Soon([this, id = read.id, key = read.request.key, path = read.path,
               file = std::move(read.file), error = read.status.error()] {
    if (const auto info = file->Info()) MoveAway(key, path, error, *info);
    Answer({id, tl::unexpected(error)});
  });
  at_files_.insert(std::move(node));
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

// With an ok status: what has landed was verified.
void DiskTier::Finish(std::unique_ptr<Read> read, Status status) {
  const ChunkId id{options_.root, read->request.key};
  ReadResult result;
  if (status) {
    result.numeric_path = read->numeric_path;
    result.bytes = ReadBytes(options_.layout, read->request);
  } else {
    Failed(*read, status.error());
    const ErrorCode code = status.error().code;
    if (code == ErrorCode::kResourceExhausted || code == ErrorCode::kInvalidArgument) {
      status = Fail(ErrorCode::kIo, "{}", status.error().message);  // no more of a tier's codes
    }
  }
  result.status = status;
  watch_.End(read->watched);
  if (status) {
    std::lock_guard lock(mutex_);
    ++stats_.reads;
    stats_.read_bytes += result.bytes;
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
  if (touch) upkeep_.Soon([this, path = read->path, now_s] { (void)fs_.Touch(path, now_s); });
}

void DiskTier::Failed(const Read& read, const Error& error) {
  if (error.code == ErrorCode::kCancelled) return;
  const bool missing = error.code == ErrorCode::kNotFound;
  if (!missing) {
    std::lock_guard lock(mutex_);
    ++stats_.reads_failed;
  }
  // The device's silence says nothing about this chunk; a corrupt one is forgotten already.
  if (error.code == ErrorCode::kCorrupt || (!missing && breaker_.open())) return;
  Forget(read.request.key);
  if (missing) return;
  read_faults_.Failed(error);
  const bool io = error.code == ErrorCode::kIo;
  if (io) breaker_.Failed(read.path);
  if (io || error.code == ErrorCode::kInvalidArgument) NoteUnreadable(read.request.key);
}

// Not looked for again at once: the caller computes it now and writes it anew.
void DiskTier::Forget(const ChunkKey& key) {
  catalogue_.Remove({options_.root, key});
  NoteMissing(key, options_.missing_ttl);
}

void DiskTier::MoveAway(const ChunkKey& key, const std::string& path, const Error& reason,
                        const FileInfo& bad) {
  Forget(key);  // before another file can have the name
  if (Quarantine(path, reason, bad)) return;
  // It will be as bad the next time: a new file may take its place, else it is left alone.
  NoteUnreadable(key);
  NoteMissing(key, kBadFilePause);
}

}  // namespace kvcake
