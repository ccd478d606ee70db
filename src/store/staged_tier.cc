#include "store/staged_tier.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcake {

StagedTier::StagedTier(std::unique_ptr<Tier> inner, PageCopier& copier,
                       std::span<std::byte> staging, StagedTierOptions options)
    : TierDecorator(std::move(inner)), options_(options), copier_(copier) {
  CHECK(options_.layout.layers > 0 && options_.read_slots > 0 && options_.write_slots > 0);
  CHECK(reinterpret_cast<uintptr_t>(staging.data()) % kSlabAlign == 0);
  CHECK(staging.size() >= options_.staging_bytes());
  const uint64_t bytes = options_.layout.page_bytes();
  for (int i = 0; i < options_.read_slots + options_.write_slots; ++i) {
    if (i < options_.read_slots) {
      read_slots_.push_back(staging.first(bytes));
    } else {
      write_slots_.GiveBack(staging.first(bytes));
    }
    staging = staging.subspan(bytes);
  }
}

StagedTier::~StagedTier() {
  callbacks_.Soon([this] {
    std::vector<ReadId> ids;
    for (const auto& [id, read] : reads_) ids.push_back(id);
    for (ReadId id : ids) CancelRead(id);
  });
  MutexLock lock(mutex_);
  while (unanswered_ > 0) changed_.Wait(mutex_);
}

int StagedTier::max_reads_in_flight() const {
  return std::min(inner().max_reads_in_flight(), options_.read_slots);
}

uint64_t StagedTier::max_read_bytes_in_flight() const {
  return std::min(inner().max_read_bytes_in_flight(),
                  options_.read_slots * options_.layout.page_bytes());
}

int StagedTier::max_writes_in_flight() const {
  return std::min(inner().max_writes_in_flight(), options_.write_slots);
}

ReadId StagedTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  ReadId id;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    ++unanswered_;
  }
  callbacks_.Soon([this, id, request = std::move(request)]() mutable {
    reads_.emplace(id, Read{.request = std::move(request)});
    waiting_.push_back(id);
    StartWaiting();
  });
  return id;
}

void StagedTier::StartWaiting() {
  while (!waiting_.empty() && !read_slots_.empty()) {
    const ReadId id = waiting_.front();
    waiting_.pop_front();
    Read& read = reads_.at(id);
    read.slot = read_slots_.back();
    read_slots_.pop_back();
    const auto done = [this, id](ReadResult result) {
      callbacks_.Soon(
          [this, id, result = std::move(result)]() mutable { OnInnerDone(id, std::move(result)); });
    };
    const ReadRequest& request = read.request;
    ForwardGet(id, {.key = request.key,
                    .parent = request.parent,
                    .landing = read.slot.first(ReadBytes(options_.layout, request)),
                    .done = done,
                    .layers = request.layers});
  }
}

void StagedTier::OnInnerDone(ReadId id, ReadResult result) {
  Read& read = reads_.at(id);
  read.result = std::move(result);
  if (read.result.status && read.cancelled) {
    read.result = ReadResult{Fail(ErrorCode::kCancelled, "read cancelled")};
  }
  if (!read.result.status) {
    Finish(id);
    return;
  }
  const uint64_t bytes = ReadBytes(options_.layout, read.request);
  copier_.ToPage(read.request.landing.first(bytes), read.slot.first(bytes),
                 [this, id] { callbacks_.Soon([this, id] { Finish(id); }); });
}

void StagedTier::Cancel(ReadId id) {
  callbacks_.Soon([this, id] { CancelRead(id); });
}

void StagedTier::CancelRead(ReadId id) {
  const auto it = reads_.find(id);
  if (it == reads_.end()) return;
  Read& read = it->second;
  read.cancelled = true;
  if (!read.slot.empty()) {
    ForwardCancel(id);  // which does nothing to a read that is being copied
    return;
  }
  std::erase(waiting_, id);
  read.result = ReadResult{Fail(ErrorCode::kCancelled, "read cancelled")};
  Finish(id);
}

// Whoever had the slot has let go of it.
void StagedTier::Finish(ReadId id) {
  auto node = reads_.extract(id);
  Read& read = node.mapped();
  if (!read.slot.empty()) {
    read_slots_.push_back(read.slot);
    StartWaiting();  // first: the inner tier is not to wait for what `done` does
  }
  read.request.done(std::move(read.result));
  node = {};  // what `done` captured goes before the tier may
  MutexLock lock(mutex_);
  --unanswered_;
  changed_.NotifyAll();
}

Status StagedTier::Put(const ChunkWrite& chunk) {
  const uint64_t bytes = options_.layout.page_bytes();
  CHECK(chunk.page.size() >= bytes);
  if (InnerKeeps(chunk.key)) return {};  // before it is copied for nothing
  const Slot slot = write_slots_.Draw();
  CopyFromPage(copier_, slot, chunk.page.first(bytes));
  if (chunk.page_read) chunk.page_read();
  ChunkWrite staged = chunk;
  staged.page = slot;
  staged.page_read = nullptr;
  Status status = inner().Put(staged);
  write_slots_.GiveBack(slot);
  return status;
}

}  // namespace kvcake
