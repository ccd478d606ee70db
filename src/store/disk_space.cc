#include "store/disk_space.h"

#include <algorithm>

namespace kvcake {

void DiskSpace::Refresh() {
  const auto space = context_.fs.Space(context_.store.Base());
  known_ = space.has_value();
  if (!space) return;
  const double share = context_.options.free_share_min;
  keep_ = static_cast<int64_t>(share * static_cast<double>(space->bytes));
  free_ = static_cast<int64_t>(space->free_bytes);
}

std::optional<uint64_t> DiskSpace::free_bytes() const {
  if (!known_) return std::nullopt;
  return static_cast<uint64_t>(std::max<int64_t>(free_, 0));
}

uint64_t DiskSpace::Missing(uint64_t bytes) const {
  if (!known_ || keep_ == 0) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(keep_ + static_cast<int64_t>(bytes) - free_, 0));
}

void UselessEvictions::Note(uint64_t removed, int64_t lost, uint64_t enough, TimePoint now) {
  removed_ += removed;
  lost_ += lost;
  if (removed_ < enough) return;
  if (2 * lost_ > static_cast<int64_t>(removed_)) {
    Useless(now);
  } else {
    Useful();
  }
  removed_ = 0;
  lost_ = 0;
}

void UselessEvictions::Useless(TimePoint now) {
  again_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongest);
}

}  // namespace kvcake
