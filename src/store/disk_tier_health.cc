// What DiskTier does about a device that fails or does not answer; on the I/O thread.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "store/disk_tier.h"
#include "store/disk_tier_read.h"

namespace kvcake {

// The read of a block, outside the bounds of the tier's own reads.
struct DiskTier::Probe {
  struct alignas(kDirectAlign) Block {
    std::byte bytes[kProbeBytes];
  };
  std::string path;
  TimePoint started;
  std::shared_ptr<File> file;  // once it is open
  std::unique_ptr<Block> block = std::make_unique<Block>();
};

// Opens the breaker for what has become overdue, and starts a probe when one is due.
void DiskTier::CheckHealth() {
  const TimePoint now = Clock::Real().Now();
  if (const auto silent = watch_.Check(now)) breaker_.Overdue(*silent);
  if (Stopping() || !MayProbe(now)) return;
  if (auto path = breaker_.TakeProbe(now)) StartProbe(std::move(*path));
}

// Each buffer that a read may have is the device's, which has forgotten it: until one comes back,
// nothing can be read.
bool DiskTier::ReadsAreLost() const {
  const auto overdue = static_cast<uint64_t>(watch_.overdue(OverdueWatch::Kind::kRead));
  return overdue > 0 && at_files_.empty() && overdue >= in_flight_.size() &&
         !HasRoomFor(in_flight_.size() + 1);
}

// A probe may be lost as any read may: it is put aside, and another tried. Not while one is being
// opened: the next would wait for it.
bool DiskTier::MayProbe(TimePoint now) const {
  if (probes_.size() >= kProbesMax) return false;
  return std::all_of(probes_.begin(), probes_.end(), [&](const auto& probe) {
    return probe.second->file != nullptr && now - probe.second->started >= options_.overdue_after;
  });
}

// A file may be what is bad, not the device: every other probe tries another, each time one that is
// far from the last.
void DiskTier::StartProbe(std::string path) {
  constexpr uint64_t kStride = 0x9e3779b97f4a7c15;  // the golden ratio, and odd
  const uint64_t number = next_probe_++;
  if (number % 2 != 0) {
    if (const auto other = catalogue_.Sample(number * kStride >> 32)) {
      path = store_.ChunkPath(other->id);
    }
  }
  const uint64_t tag = kProbeTag + number;
  auto probe = std::make_shared<Probe>();
  probe->path = path;
  probe->started = Clock::Real().Now();
  probes_.emplace(tag, std::move(probe));
  files_.Soon([this, tag, path] {
    auto file = fs_.OpenRead(path, options_.direct);
    // Or the operating system's cache would answer for the device.
    if (file && !(*file)->direct() && (*file)->fd() >= 0) {
      (void)posix_fadvise((*file)->fd(), 0, kProbeBytes, POSIX_FADV_DONTNEED);
    }
    Answer({tag, std::move(file)});
  });
}

void DiskTier::OnProbeOpened(uint64_t tag, Result<std::shared_ptr<File>> file) {
  const auto it = probes_.find(tag);
  if (it == probes_.end()) {  // cancelled
    if (file) Close(std::move(*file));
    return;
  }
  Probe& probe = *it->second;
  if (file) {
    probe.file = std::move(*file);
    IoOp op;
    op.file = probe.file.get();
    op.buffer = probe.block->bytes;
    op.user_data = tag;
    if (queue_->Submit(op)) return;
    Close(std::move(probe.file));
  } else if (file.error().code == ErrorCode::kIo) {
    breaker_.Failed(probe.path);
  } else {  // what is wrong with the file, or with us, is an answer too
    breaker_.Succeeded();
  }
  probes_.erase(it);
}

void DiskTier::CancelProbes() {
  std::erase_if(probes_, [](const auto& probe) { return probe.second->file == nullptr; });
  for (const auto& [tag, probe] : probes_) queue_->Cancel(tag);
}

void DiskTier::OnProbe(const IoCompletion& completion) {
  const auto probe = probes_.extract(completion.user_data);
  if (completion.bytes) {
    breaker_.Succeeded();
  } else if (completion.bytes.error().code != ErrorCode::kCancelled) {
    breaker_.Failed(probe.mapped()->path);
  }
  Close(std::move(probe.mapped()->file));
}

// When the I/O thread has to look again although nothing came. Looks and writes begin without
// waking it: they cannot be overdue sooner than this.
TimePoint DiskTier::NextCheck() const {
  const TimePoint now = Clock::Real().Now();
  TimePoint next = now + options_.overdue_after;
  if (const auto overdue = watch_.next_check()) next = std::min(next, *overdue);
  if (const auto probe = breaker_.next_probe(); probe && !Stopping()) {
    if (MayProbe(now)) {
      next = std::min(next, *probe);
    } else if (probes_.size() < kProbesMax) {
      for (const auto& [tag, other] : probes_) {
        const TimePoint aside = other->started + options_.overdue_after;
        if (aside > now) next = std::min(next, std::max(aside, *probe));
      }
    }
  }
  return next;
}

}  // namespace kvcake
