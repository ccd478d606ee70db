#include "store/disk_looker.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvcake {
namespace {

constexpr Seconds kLookPiece{2e-3};  // answers are not held back for longer

}  // namespace

bool DiskLooker::Look(LookRequest request) {
  if (!context_.health.MayLook()) return false;
  const auto missing = [&](const ChunkKey& key) { return context_.index.IsMissing(key); };
  if (std::all_of(request.keys.begin(), request.keys.end(), missing)) return false;
  thread_.Soon([this, request = std::move(request)] { LookFor(request); });
  return true;
}

void DiskLooker::LookFor(const LookRequest& request) {
  for (size_t first = 0; first < request.keys.size();) {
    const TimePoint until = Clock::Real().Now() + kLookPiece;
    std::vector<bool> held;
    do {
      held.push_back(!stop_ && context_.health.answers() &&
                     IsOnDisk(request.keys[first + held.size()]));
    } while (first + held.size() < request.keys.size() && Clock::Real().Now() < until);
    if (!request.found(first, held)) return;
    first += held.size();
  }
}

bool DiskLooker::IsOnDisk(const ChunkKey& key) {
  DiskIndex& index = context_.index;
  if (index.Contains(key)) return true;
  if (index.IsMissing(key)) return false;
  const std::string path = context_.PathOf(key);
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kLook, path);
  const auto info = context_.fs.Stat(path);
  if (info && context_.IsWhole(*info) && !index.IsExpired(info->mtime_s)) {
    index.Add(key, *info, context_.OwnerOf(path));
    return true;
  }
  index.NoteMissing(key);
  return false;
}

}  // namespace kvcake
