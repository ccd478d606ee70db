#include "store/disk_read_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "store/encoded_read.h"

namespace kvcake {

DiskReadQueue::DiskReadQueue(DiskContext& context, IoQueue& queue, ChunkOpener& opener, Hooks hooks)
    : context_(context),
      queue_(queue),
      opener_(opener),
      hooks_(std::move(hooks)),
      pieces_(PiecesMax(context.options)) {}

void DiskReadQueue::Cancel(std::span<const ReadId> ids) {
  if (ids.empty()) return;
  CancelWhich([&](const DiskRead& read) {
    return std::find(ids.begin(), ids.end(), read.id) != ids.end();
  });
}

void DiskReadQueue::CancelAll() {
  CancelWhich([](const DiskRead&) { return true; });
}

void DiskReadQueue::CancelWhich(const Which& which) {
  for (auto& [id, read] : in_flight_) {
    if (read->cancelled || !which(*read)) continue;
    read->cancelled = true;
    for (uint64_t piece = 0; piece < pieces_; ++piece) queue_.Cancel(id * pieces_ + piece);
  }
  Drop(which, Fail(ErrorCode::kCancelled, "read cancelled"));
}

// Ends the reads of which the kernel has heard nothing, but for those whose file turned out to be
// bad: it must have been moved away when they are answered.
void DiskReadQueue::Drop(const Which& which, const Status& status) {
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(),
                                           [&](const auto& read) { return !which(*read); });
  std::vector<std::unique_ptr<DiskRead>> dropped(std::make_move_iterator(first),
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

bool DiskReadQueue::HasRoomFor(uint64_t reads) const {
  return reads <= static_cast<uint64_t>(context_.options.max_reads_in_flight) &&
         reads * context_.file_bytes_max() <= context_.options.max_read_bytes_in_flight;
}

// Each buffer that a read may have is the device's, which has forgotten it.
bool DiskReadQueue::AllAreLost() const {
  const auto overdue = static_cast<uint64_t>(context_.health.reads_overdue());
  return overdue > 0 && at_files_.empty() && overdue >= in_flight_.size() &&
         !HasRoomFor(in_flight_.size() + 1);
}

bool DiskReadQueue::is_reading() const {
  const auto lost = static_cast<uint64_t>(context_.health.reads_overdue());
  return waiting_.size() + at_files_.size() + in_flight_.size() > lost;
}

void DiskReadQueue::Start() {
  context_.health.SetReadsLost(AllAreLost());
  if (!context_.health.MayRead()) {
    Drop([](const DiskRead&) { return true; }, Fail(ErrorCode::kIo, "the device does not answer"));
    return;
  }
  while (!waiting_.empty() && HasRoomFor(in_flight_.size() + at_files_.size() + 1)) {
    std::unique_ptr<DiskRead> read = std::move(waiting_.front());
    waiting_.pop_front();
    const ReadId id = read->id;
    const ChunkKey& key = read->request.key;
    read->watched = context_.health.BeginRead(context_.PathOf(key));
    const bool direct = context_.options.direct && IsAligned(read->request.landing);
    opener_.Open(key, direct, AnswerTo(id));
    at_files_.emplace(id, std::move(read));
  }
}

ChunkOpener::Answer DiskReadQueue::AnswerTo(ReadId id) const {
  return [answer = hooks_.answer, id](auto file) { answer(id, std::move(file)); };
}

void DiskReadQueue::OnFile(ReadId id, Result<std::shared_ptr<File>> file) {
  auto node = at_files_.extract(id);
  if (node.empty()) {  // it has been answered without
    if (file) opener_.Close(std::move(*file));
    return;
  }
  if (!file) {
    Finish(std::move(node.mapped()), tl::unexpected(file.error()));
    return;
  }
  DiskRead& read = *node.mapped();
  read.file = std::move(*file);
  in_flight_.insert(std::move(node));
  Submit(read);
}

void DiskReadQueue::Submit(DiskRead& read) {
  for (size_t i = 0; i < read.pieces.size() && read.status; ++i) {
    IoOp op;
    op.file = read.file.get();
    op.offset = read.pieces[i].offset;
    op.buffer = read.pieces[i].buffer;
    op.user_data = read.id * pieces_ + i;
    read.status = queue_.Submit(op);
    if (read.status) ++read.pieces_queued;
  }
  if (read.pieces_queued == 0) Land(read);
}

void DiskReadQueue::OnCompletion(const IoCompletion& completion) {
  DiskRead& read = *in_flight_.at(completion.user_data / pieces_);
  const uint64_t expected = read.pieces[completion.user_data % pieces_].buffer.size();
  if (read.status && !completion.bytes) {
    read.status = tl::unexpected(completion.bytes.error());
  } else if (read.status && *completion.bytes != expected && !read.may_end_early) {
    read.status = Fail(ErrorCode::kCorrupt, "it ended while it was being read");
  }
  if (completion.bytes) read.landed += *completion.bytes;
  if (--read.pieces_queued > 0) return;
  if (!context_.options.form.raw() && PlanNextPieces(read, context_.options)) {
    Submit(read);
  } else {
    Land(read);
  }
}

// All that will come has come: the landing is ours again. A bad file is moved away before its read
// is answered: the answer may be a new file of that name.
void DiskReadQueue::Land(DiskRead& read) {
  auto node = in_flight_.extract(read.id);
  if (read.status) {
    if (const auto path = VerifyLanded(read, context_.options)) {
      read.numeric_path = *path;
    } else {
      read.status = tl::unexpected(path.error());
    }
  }
  if (read.status || read.status.error().code != ErrorCode::kCorrupt) {
    const Status status = read.status;
    opener_.Close(std::move(read.file));
    Finish(std::move(node.mapped()), status);
    return;
  }
  read.is_bad = true;
  opener_.MoveAway(read.request.key, std::move(read.file), read.status.error(), AnswerTo(read.id));
  at_files_.insert(std::move(node));
}

// With an ok status: what has landed was verified.
void DiskReadQueue::Finish(std::unique_ptr<DiskRead> read, Status status) {
  ReadResult result;
  if (status) {
    result.numeric_path = read->numeric_path;
    const DiskTierOptions& options = context_.options;
    result.bytes = options.form.raw() ? ReadBytes(options.layout, read->request) : read->landed;
  } else {
    Failed(*read, status.error());
    const ErrorCode code = status.error().code;
    if (code == ErrorCode::kResourceExhausted || code == ErrorCode::kInvalidArgument) {
      status = Fail(ErrorCode::kIo, "{}", status.error().message);  // no more of a tier's codes
    }
  }
  result.status = status;
  context_.health.EndRead(read->watched);
  if (status) {
    MutexLock lock(mutex_);
    ++reads_;
    read_bytes_ += result.bytes;
  }
  if (status) context_.index.NoteReadable(read->request.key);
  const int64_t now_s = UnixSeconds();
  const bool touch = status && context_.index.Use(read->request.key, now_s);
  read->request.done(std::move(result));
  if (status) {
    faults_.Succeeded();
    context_.health.Succeeded();
  }
  if (touch) hooks_.touch(context_.PathOf(read->request.key), now_s);
}

void DiskReadQueue::Failed(const DiskRead& read, const Error& error) {
  if (error.code == ErrorCode::kCancelled) return;
  const bool missing = error.code == ErrorCode::kNotFound;
  if (!missing) {
    MutexLock lock(mutex_);
    ++reads_failed_;
  }
  // The device's silence says nothing about this chunk; a corrupt one is forgotten already.
  if (error.code == ErrorCode::kCorrupt || (!missing && !context_.health.MayRead())) return;
  const ChunkKey& key = read.request.key;
  context_.index.Forget(key);  // not looked for at once: the caller computes it, and writes it anew
  if (missing) return;
  faults_.Failed(error);
  const bool io = error.code == ErrorCode::kIo;
  if (io) context_.health.Failed(context_.PathOf(key));
  if (io || error.code == ErrorCode::kInvalidArgument) context_.index.NoteUnreadable(key);
}

void DiskReadQueue::AddStats(TierStats& stats) const {
  MutexLock lock(mutex_);
  stats.reads += reads_;
  stats.read_bytes += read_bytes_;
  stats.reads_failed += reads_failed_;
}

}  // namespace kvcake
