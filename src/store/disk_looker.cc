#include "store/disk_looker.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvcake {
namespace {

constexpr Seconds kLookPiece{2e-3};  // answers are not held back for longer
// A search that takes longer is shared by all threads: on a disk most take less, and more threads
// would only be in each other's way.
constexpr Seconds kAloneMax{5e-4};

}  // namespace

// One request: hands out its keys, and passes their answers on in order. Thread-safe.
class DiskLooker::Search {
 public:
  explicit Search(LookRequest request)
      : request_(std::move(request)), answers_(request_.keys.size(), Answer::kNone) {}

  const ChunkKey& key(size_t i) const { return request_.keys[i]; }
  // The number of a key that nobody looks for yet; nothing when there is none, or when nobody wants
  // to know any more.
  std::optional<size_t> Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (unwanted_ || taken_ == answers_.size()) return std::nullopt;
    return taken_++;
  }
  size_t left() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return unwanted_ ? 0 : answers_.size() - taken_;
  }
  // The answer for a key that was taken; may call `found`.
  void Found(size_t i, bool held) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    answers_[i] = held ? Answer::kHeld : Answer::kMissing;
    while (known_ < answers_.size() && answers_[known_] != Answer::kNone) ++known_;
    if (telling_) return;  // who tells goes on with it
    telling_ = true;
    while (!unwanted_ && IsTimeToTell()) {
      const size_t first = std::exchange(told_, known_);
      std::vector<bool> piece;
      for (size_t at = first; at < known_; ++at) piece.push_back(answers_[at] == Answer::kHeld);
      lock.Unlock();
      const bool wanted = request_.found(first, piece);
      lock.Lock();
      unwanted_ = !wanted;
      tell_at_ = Clock::Real().Now() + kLookPiece;
    }
    telling_ = false;
  }

 private:
  enum class Answer : uint8_t { kNone, kMissing, kHeld };

  bool IsTimeToTell() const REQUIRES(mutex_) {
    if (told_ == known_) return false;
    return known_ == answers_.size() || Clock::Real().Now() >= tell_at_;
  }

  const LookRequest request_;

  mutable Mutex mutex_;
  std::vector<Answer> answers_ GUARDED_BY(mutex_);
  size_t taken_ GUARDED_BY(mutex_) = 0;
  size_t known_ GUARDED_BY(mutex_) = 0;  // all answers before it are there
  size_t told_ GUARDED_BY(mutex_) = 0;   // all answers before it were passed on
  bool telling_ GUARDED_BY(mutex_) = false;
  bool unwanted_ GUARDED_BY(mutex_) = false;
  TimePoint tell_at_ GUARDED_BY(mutex_) = Clock::Real().Now() + kLookPiece;
};

bool DiskLooker::Look(LookRequest request) {
  if (!context_.health.MayLook()) return false;
  const auto missing = [&](const ChunkKey& key) { return context_.index.IsMissing(key); };
  if (std::all_of(request.keys.begin(), request.keys.end(), missing)) return false;
  threads_.Soon([this, search = std::make_shared<Search>(std::move(request))] { Begin(search); });
  return true;
}

void DiskLooker::Begin(const std::shared_ptr<Search>& search) {
  const TimePoint alone_until = Clock::Real().Now() + kAloneMax;
  bool alone = true;
  while (const auto i = search->Take()) {
    LookForNext(*search, *i);
    if (!alone || Clock::Real().Now() < alone_until) continue;
    alone = false;
    const size_t others = context_.options.call_threads - 1;
    for (size_t n = std::min(others, search->left()); n > 0; --n) {
      threads_.Soon([this, search] {
        while (const auto next = search->Take()) LookForNext(*search, *next);
      });
    }
  }
}

void DiskLooker::LookForNext(Search& search, size_t i) {
  search.Found(i, !stop_ && context_.health.answers() && IsOnDisk(search.key(i)));
}

bool DiskLooker::IsOnDisk(const ChunkKey& key) {
  DiskIndex& index = context_.index;
  if (index.Contains(key)) return true;
  if (index.IsMissing(key)) return false;
  const std::string path = context_.PathOf(key);
  const Watched watched = context_.health.Watch(OverdueWatch::Kind::kLook, path);
  const TimedCall timed(context_.looks);
  const auto info = context_.fs.Stat(path);
  if (info && context_.IsWhole(*info) && !index.IsExpired(info->mtime_s)) {
    index.Add(key, context_.Dated(path, *info), context_.OwnerOf(path));
    return true;
  }
  index.NoteMissing(key);
  return false;
}

}  // namespace kvcake
