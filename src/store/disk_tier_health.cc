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
  std::unique_ptr<File> file;
  std::unique_ptr<Block> block = std::make_unique<Block>();
};

// Opens the breaker for reads that have become overdue, and starts a probe when one is due.
void DiskTier::CheckHealth() {
  const TimePoint now = Clock::Real().Now();
  std::optional<std::string> overdue;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, read] : started_) {
      if (read.overdue || now - read.at < options_.overdue_after) continue;
      read.overdue = true;
      overdue = read.path;
    }
    if (stop_) return;
  }
  if (overdue) breaker_.Overdue(*overdue);
  if (probe_ != nullptr) return;
  if (auto path = breaker_.TakeProbe(now)) StartProbe(std::move(*path));
}

// A file may be what is bad, not the device: every other probe tries one that has not failed.
void DiskTier::StartProbe(std::string path) {
  if (++probes_ % 2 == 0) {
    if (const auto other = catalogue_.Coldest()) path = store_.ChunkPath(other->id);
  }
  auto probe = std::make_shared<Probe>();
  probe->path = path;
  auto file = fs_.OpenRead(path, options_.direct);
  if (!file) {
    // A missing file is an answer too.
    if (file.error().code == ErrorCode::kNotFound) {
      breaker_.Succeeded();
    } else {
      breaker_.Failed(path);
    }
    return;
  }
  probe->file = std::move(*file);
  IoOp op;
  op.file = probe->file.get();
  op.buffer = probe->block->bytes;
  op.user_data = kProbeTag;
  if (queue_->Submit(op)) probe_ = std::move(probe);
}

void DiskTier::OnProbe(const IoCompletion& completion) {
  if (completion.bytes) {
    breaker_.Succeeded();
  } else if (completion.bytes.error().code != ErrorCode::kCancelled) {
    breaker_.Failed(probe_->path);
  }
  probe_.reset();
}

// When the I/O thread has to look again although nothing came.
std::optional<TimePoint> DiskTier::NextCheck() const {
  std::optional<TimePoint> next;
  if (probe_ == nullptr) next = breaker_.next_probe();
  std::lock_guard lock(mutex_);
  for (const auto& [id, read] : started_) {
    if (read.overdue) continue;
    const TimePoint at = read.at + options_.overdue_after;
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

}  // namespace kvcake
