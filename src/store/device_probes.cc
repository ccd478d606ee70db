#include "store/device_probes.h"

#include <algorithm>
#include <utility>

namespace kvcake {

struct DeviceProbes::Probe {
  struct alignas(kDirectAlign) Block {
    std::byte bytes[kProbeBytes];
  };
  std::string path;
  TimePoint started;
  std::shared_ptr<File> file;  // once it is open
  std::unique_ptr<Block> block = std::make_unique<Block>();
};

DeviceProbes::DeviceProbes(DeviceHealth& health, IoQueue& queue, Seconds overdue_after, Files files)
    : health_(health), queue_(queue), overdue_after_(overdue_after), files_(std::move(files)) {}

// A probe may be lost as any read may: it is put aside, and another tried.
bool DeviceProbes::MayStart(TimePoint now) const {
  if (probes_.size() >= kProbesMax) return false;
  return std::all_of(probes_.begin(), probes_.end(), [&](const auto& probe) {
    return now - probe.second->started >= overdue_after_;
  });
}

// A file may be what is bad, not the device: every other probe tries another, each time one that is
// far from the last.
void DeviceProbes::StartIfDue(TimePoint now) {
  constexpr uint64_t kStride = 0x9e3779b97f4a7c15;  // the golden ratio, and odd
  if (!MayStart(now)) return;
  auto path = health_.TakeProbe(now);
  if (!path) return;
  const uint64_t number = next_++;
  if (number % 2 != 0) {
    if (auto other = files_.sample(number * kStride >> 32)) path = std::move(other);
  }
  const uint64_t tag = kFirstTag + number;
  auto probe = std::make_shared<Probe>();
  probe->path = *path;
  probe->started = now;
  probes_.emplace(tag, std::move(probe));
  files_.open(tag, *path);
}

void DeviceProbes::Opened(uint64_t tag, Result<std::shared_ptr<File>> file) {
  const auto it = probes_.find(tag);
  if (it == probes_.end()) {  // cancelled
    if (file) files_.close(std::move(*file));
    return;
  }
  Probe& probe = *it->second;
  if (file) {
    probe.file = std::move(*file);
    IoOp op;
    op.file = probe.file.get();
    op.buffer = probe.block->bytes;
    op.user_data = tag;
    if (queue_.Submit(op)) return;
    files_.close(std::move(probe.file));
  } else if (file.error().code == ErrorCode::kIo) {
    health_.Failed(probe.path);
  } else {  // what is wrong with the file, or with us, is an answer too
    health_.Succeeded();
  }
  probes_.erase(it);
}

void DeviceProbes::Completed(const IoCompletion& completion) {
  const auto probe = probes_.extract(completion.user_data);
  if (completion.bytes) {
    health_.Succeeded();
  } else if (completion.bytes.error().code != ErrorCode::kCancelled) {
    health_.Failed(probe.mapped()->path);
  }
  files_.close(std::move(probe.mapped()->file));
}

void DeviceProbes::Cancel() {
  std::erase_if(probes_, [](const auto& probe) { return probe.second->file == nullptr; });
  for (const auto& [tag, probe] : probes_) queue_.Cancel(tag);
}

std::optional<TimePoint> DeviceProbes::NextStart(TimePoint now) const {
  const auto due = health_.next_probe();
  if (!due || MayStart(now)) return due;
  std::optional<TimePoint> next;
  if (probes_.size() >= kProbesMax) return next;
  for (const auto& [tag, probe] : probes_) {
    const TimePoint aside = probe->started + overdue_after_;
    if (aside <= now) continue;
    const TimePoint at = std::max(aside, *due);
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

}  // namespace kvcake
