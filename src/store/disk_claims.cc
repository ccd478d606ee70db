#include "store/disk_claims.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/hash.h"

namespace kvcake {
namespace {

constexpr size_t kSeenMax = 1024;
constexpr size_t kSweepMax = 1024;  // leftovers removed by one process
constexpr int kTriesMax = 3;        // when the file changes while it is looked at

bool IsSameClaim(const FileInfo& a, const FileInfo& b) {
  return a.device == b.device && a.inode == b.inode && a.mtime_s == b.mtime_s;
}

}  // namespace

DiskClaims::~DiskClaims() {
  Stop();
  thread_.reset();
  // Where the device does not answer, their files stay, and are nobody's.
  if (!context_.health.MayClaim()) return;
  try {
    while (!held_.empty()) End(ChunkKey(held_.begin()->first));
  } catch (const std::bad_alloc&) {  // likewise
  }
}

bool DiskClaims::Claim(ClaimRequest request) {
  if (stop_ || !context_.health.MayClaim()) return false;
  {
    MutexLock lock(mutex_);
    if (Clock::Real().Now() < paused_until_) return false;
  }
  thread_->Soon([this, request = std::move(request)] { Answer(request); });
  return true;
}

void DiskClaims::Disclaim(std::span<const ChunkKey> keys) {
  {
    MutexLock lock(mutex_);
    const bool comes = !disclaimed_.empty();
    for (const ChunkKey& key : keys) {
      if (claimed_.contains(key)) disclaimed_.insert(key);
    }
    if (comes || disclaimed_.empty()) return;
  }
  thread_->Soon([this] { EndDisclaimed(); });
}

void DiskClaims::Answer(const ClaimRequest& request) {
  EndExpired();
  std::vector<ClaimState> states(request.keys.size(), ClaimState::kNone);
  const Status fine = CheckDir();
  if (!fine) NoteFailed(fine.error());
  for (size_t i = 0; i < states.size() && fine && !stop_; ++i) {
    states[i] = StateOf(request.keys[i], request.lasts);
    if (states[i] == ClaimState::kTheirs || states[i] == ClaimState::kNone) break;
  }
  request.done(states);
  Sweep();
}

ClaimState DiskClaims::StateOf(const ChunkKey& key, Seconds lasts) {
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kClaim, PathOf(key));
  if (IsStored(key)) {
    End(key);
    return ClaimState::kStored;
  }
  const bool mine = held_.contains(key);
  if (!mine && held_.size() >= static_cast<size_t>(context_.options.claims_max)) {
    return ClaimState::kNone;
  }
  const auto state = Take(key, lasts);
  if (!state) {
    NoteFailed(state.error());
    return ClaimState::kNone;
  }
  // Whoever had claimed it may have kept it and ended the claim since it was looked for.
  if (*state == ClaimState::kMine && !mine && IsStored(key)) {
    End(key);
    return ClaimState::kStored;
  }
  return *state;
}

bool DiskClaims::IsStored(const ChunkKey& key) {
  DiskIndex& index = context_.index;
  if (index.Contains(key)) return true;
  const std::string path = context_.PathOf(key);
  const TimedCall timed(context_.looks);
  const auto info = context_.fs.Stat(path);
  if (!context_.IsKept(key, info)) return false;
  index.Add(key, context_.Dated(path, *info), context_.OwnerOf(path));
  return true;
}

Result<ClaimState> DiskClaims::Take(const ChunkKey& key, Seconds lasts) {
  FileSystem& fs = context_.fs;
  const std::string path = PathOf(key);
  const TimePoint until = Clock::Real().Now() + lasts;
  if (const auto held = held_.find(key); held != held_.end()) {
    const auto named = fs.Stat(path);
    if (named && named->inode == held->second.file.inode) {
      (void)fs.Touch(path, UnixSeconds());  // it is another claim now, to those who have seen it
      held->second.until = until;
      SetTimer();
      return ClaimState::kMine;
    }
    End(key);  // another process has taken it for expired
  }
  for (int tries = 0; tries < kTriesMax; ++tries) {
    auto lock = fs.TryLock(path);
    if (!lock && lock.error().code == ErrorCode::kNotFound) {
      RETURN_IF_ERROR(fs.MakeDirs(context_.store.ClaimsDir()));
      lock = fs.TryLock(path);
    }
    if (!lock) return tl::unexpected(lock.error());
    const auto named = fs.Stat(path);
    if (*lock == nullptr) {
      if (!named) continue;
      if (!HasExpired(key, *named, lasts)) return ClaimState::kTheirs;
      ASSIGN_OR_RETURN(const bool ended, EndTheirs(path, *named));
      if (!ended) return ClaimState::kTheirs;
      continue;
    }
    ASSIGN_OR_RETURN(const FileInfo locked, (*lock)->Info());
    // Whoever had it may have removed the file between its being opened and locked.
    if (!named || named->inode != locked.inode) continue;
    (void)fs.Touch(path, UnixSeconds());  // a dead process may have left it
    Hold(key, {.lock = std::move(*lock), .file = locked, .until = until});
    return ClaimState::kMine;
  }
  return ClaimState::kTheirs;
}

// Others may find it expired as well, and who is late would remove the new claim of who was first:
// so the directory's lock is held. False where another has it.
Result<bool> DiskClaims::EndTheirs(const std::string& path, const FileInfo& expired) {
  ASSIGN_OR_RETURN(const auto alone, context_.fs.TryLock(context_.store.LockPath()));
  if (!alone) return false;
  const auto named = context_.fs.Stat(path);
  if (!named || !IsSameClaim(*named, expired)) return true;
  const Status removed = context_.fs.Remove(path);
  if (!removed && removed.error().code != ErrorCode::kNotFound) {  // its owner may end it just now
    return tl::unexpected(removed.error());
  }
  return true;
}

bool DiskClaims::HasExpired(const ChunkKey& key, const FileInfo& file, Seconds lasts) {
  const TimePoint now = Clock::Real().Now();
  if (seen_.size() >= kSeenMax) {
    std::erase_if(seen_, [&](const auto& entry) { return entry.second.asked + lasts < now; });
    if (seen_.size() >= kSeenMax) seen_.clear();
  }
  const auto [it, first] = seen_.try_emplace(key, Seen{file, now, now});
  Seen& seen = it->second;
  seen.asked = now;
  if (first) return false;
  if (!IsSameClaim(seen.file, file)) {
    seen = {file, now, now};
    return false;
  }
  return now - seen.since >= lasts;
}

void DiskClaims::Hold(const ChunkKey& key, Held held) {
  seen_.erase(key);
  held_.insert_or_assign(key, std::move(held));
  {
    MutexLock lock(mutex_);
    claimed_.insert(key);
  }
  SetTimer();
}

void DiskClaims::End(const ChunkKey& key) {
  const auto it = held_.find(key);
  if (it == held_.end()) return;
  {
    MutexLock lock(mutex_);
    claimed_.erase(key);
    disclaimed_.erase(key);
  }
  const std::string path = PathOf(key);
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kClaim, path);
  // Another process may have taken it for expired, and have made its own.
  const auto named = context_.fs.Stat(path);
  if (named && named->inode == it->second.file.inode) (void)context_.fs.Remove(path);
  held_.erase(it);
}

void DiskClaims::EndDisclaimed() {
  std::unordered_set<ChunkKey> keys;
  {
    MutexLock lock(mutex_);
    keys.swap(disclaimed_);
  }
  for (const ChunkKey& key : keys) End(key);
}

void DiskClaims::EndExpired() {
  const TimePoint now = Clock::Real().Now();
  std::vector<ChunkKey> expired;
  for (const auto& [key, held] : held_) {
    if (held.until <= now) expired.push_back(key);
  }
  for (const ChunkKey& key : expired) End(key);
}

void DiskClaims::SetTimer() {
  if (stop_ || held_.empty()) return;
  const auto earlier = [](const auto& a, const auto& b) { return a.second.until < b.second.until; };
  const TimePoint first = std::min_element(held_.begin(), held_.end(), earlier)->second.until;
  if (timer_ && *timer_ <= first) return;  // it looks again then
  timer_ = first;
  thread_->At(first, [this] {
    timer_.reset();
    EndExpired();
    SetTimer();
  });
}

// Processes that were killed leave their files. Once, after the first claim.
void DiskClaims::Sweep() {
  if (swept_ || stop_ || held_.empty()) return;
  swept_ = true;
  const std::string dir = context_.store.ClaimsDir();
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kClaim, dir);
  const auto files = context_.fs.List(dir);
  if (!files) return;
  std::unordered_set<std::string> own;
  for (const auto& [key, held] : held_) own.insert(PathOf(ChunkKey(key)));
  for (const DirEntry& file : *files) {
    if (leftovers_.size() == kSweepMax) break;
    const auto name = ParseKeyHex(file.name);
    if (!name || file.info.kind != FileInfo::Kind::kRegular) continue;
    if (!own.contains(context_.store.ClaimPath(*name))) leftovers_.push_back(*name);
  }
  SweepNext();
}

// One at a time: who asks meanwhile waits for none but that.
void DiskClaims::SweepNext() {
  if (leftovers_.empty() || stop_) return;
  const std::string path = context_.store.ClaimPath(leftovers_.back());
  leftovers_.pop_back();
  RemoveLeftover(path);
  thread_->Soon([this] { SweepNext(); });
}

void DiskClaims::RemoveLeftover(const std::string& path) {
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kClaim, path);
  const auto there = context_.fs.Stat(path);
  if (!there) return;  // locking it would make it
  auto lock = context_.fs.TryLock(path);
  if (!lock || *lock == nullptr) return;
  const auto locked = (*lock)->Info();
  const auto named = context_.fs.Stat(path);
  if (locked && named && locked->inode == named->inode) (void)context_.fs.Remove(path);
}

// A raw chunk is of no use to who wants it in another form, and has its claim apart.
std::string DiskClaims::PathOf(const ChunkKey& key) const {
  const DiskTierOptions& options = context_.options;
  if (options.form.raw()) return context_.store.ClaimPath(key);
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(options.root.digest)));
  hash.Update(std::as_bytes(std::span(key.digest)));
  return context_.store.ClaimPath({hash.Finish()});
}

// What lies behind a link is not ours to lock and to remove.
Status DiskClaims::CheckDir() const {
  const std::string dir = context_.store.ClaimsDir();
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kClaim, dir);
  const auto info = context_.fs.Stat(dir);
  if (!info || info->kind == FileInfo::Kind::kDirectory) return {};  // it is made when it is wanted
  return Fail(ErrorCode::kInvalidArgument, "{} is no directory", dir);
}

void DiskClaims::NoteFailed(const Error& error) {
  spdlog::debug("store: chunks cannot be claimed: {}", error.message);
  MutexLock lock(mutex_);
  paused_until_ = Clock::Real().Now() + context_.options.claims_pause;
}

}  // namespace kvcake
