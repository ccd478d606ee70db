// What DiskTier does about a device that fails or does not answer; on the I/O thread.
#include <algorithm>
#include <utility>

#include "store/disk_tier.h"

namespace kvcake {
namespace {

constexpr uint64_t kProbeBytes = kDirectAlign;

}  // namespace

// The read of a block, outside the bounds of the tier's own reads.
struct DiskTier::Probe {
  struct alignas(kDirectAlign) Block {
    std::byte bytes[kProbeBytes];
  };
  std::string path;
  std::shared_ptr<File> file;  // once it is open
  std::unique_ptr<Block> block = std::make_unique<Block>();
};

// Opens the breaker for reads and looks that have become overdue, and starts a probe when one is
// due.
void DiskTier::CheckHealth() {
  const TimePoint now = Clock::Real().Now();
  std::optional<std::string> overdue;
  const auto check = [&](Started& started) {
    if (started.overdue || now - started.at < options_.overdue_after) return;
    started.overdue = true;
    overdue = started.path;
  };
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, read] : started_) check(read);
    if (look_) check(*look_);
    if (stop_) return;
  }
  if (overdue) breaker_.Overdue(*overdue);
  if (probe_ != nullptr) return;
  if (auto path = breaker_.TakeProbe(now)) StartProbe(std::move(*path));
}

// A file may be what is bad, not the device: every other probe tries another, each time one that is
// far from the last.
void DiskTier::StartProbe(std::string path) {
  constexpr uint64_t kStride = 0x9e3779b97f4a7c15;  // the golden ratio, and odd
  if (++probes_ % 2 == 0) {
    if (const auto other = catalogue_.Sample(probes_ * kStride >> 32)) {
      path = store_.ChunkPath(other->id);
    }
  }
  probe_ = std::make_shared<Probe>();
  probe_->path = path;
  files_.Soon([this, path] { Answer({kProbeTag, fs_.OpenRead(path, options_.direct)}); });
}

void DiskTier::OnProbeOpened(Result<std::shared_ptr<File>> file) {
  if (probe_ == nullptr) {  // cancelled
    if (file) Close(std::move(*file));
    return;
  }
  if (!file) {
    // What is wrong with the file, or with us, is an answer too.
    if (file.error().code == ErrorCode::kIo) {
      breaker_.Failed(probe_->path);
    } else {
      breaker_.Succeeded();
    }
    probe_.reset();
    return;
  }
  probe_->file = std::move(*file);
  IoOp op;
  op.file = probe_->file.get();
  op.buffer = probe_->block->bytes;
  op.user_data = kProbeTag;
  if (queue_->Submit(op)) return;
  Close(std::move(probe_->file));
  probe_.reset();
}

void DiskTier::CancelProbe() {
  if (probe_ == nullptr) return;
  if (probe_->file == nullptr) {
    probe_.reset();
  } else {
    queue_->Cancel(kProbeTag);
  }
}

void DiskTier::OnProbe(const IoCompletion& completion) {
  if (completion.bytes) {
    breaker_.Succeeded();
  } else if (completion.bytes.error().code != ErrorCode::kCancelled) {
    breaker_.Failed(probe_->path);
  }
  Close(std::move(probe_->file));
  probe_.reset();
}

// When the I/O thread has to look again although nothing came.
std::optional<TimePoint> DiskTier::NextCheck() const {
  std::optional<TimePoint> next;
  if (probe_ == nullptr) next = breaker_.next_probe();
  const auto consider = [&](const Started& started) {
    if (started.overdue) return;
    const TimePoint at = started.at + options_.overdue_after;
    next = next ? std::min(*next, at) : at;
  };
  std::lock_guard lock(mutex_);
  for (const auto& [id, read] : started_) consider(read);
  if (look_) consider(*look_);
  return next;
}

}  // namespace kvcake
