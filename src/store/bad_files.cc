#include "store/bad_files.h"

#include <spdlog/spdlog.h>

namespace kvcake {

bool BadFiles::MoveAway(const std::string& path, const Error& reason, const FileInfo& bad) {
  const auto moved = MoveToQuarantine(fs_, store_, path, bad, bounds_);
  if (!moved) {
    faults_.Failed({moved.error().code,
                    fmt::format("{} ({}): {}", path, reason.message, moved.error().message)});
    return false;
  }
  if (*moved == Quarantined::kGone) return true;  // another process was faster
  faults_.Succeeded();
  spdlog::warn(
      "store: {} is not the chunk that its name says: {}; {}", path, reason.message,
      *moved == Quarantined::kMoved ? "moved to quarantine" : "removed, as the quarantine is full");
  ++count_;
  return true;
}

}  // namespace kvcake
