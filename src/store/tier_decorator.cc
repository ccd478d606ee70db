#include "store/tier_decorator.h"

#include "base/check.h"

namespace kvcake {

TierDecorator::TierDecorator(std::unique_ptr<Tier> inner) : inner_(std::move(inner)) {
  CHECK(inner_ != nullptr);
}

bool TierDecorator::InnerKeeps(const ChunkKey& key) {
  if (!inner_->Keeps(key)) return false;
  inner_->Disclaim({&key, 1});
  return true;
}

void TierDecorator::ForwardGet(ReadId id, ReadRequest request) {
  {
    MutexLock lock(mutex_);
    forwarded_.emplace(id, Forwarded());
  }
  request.done = [this, id, done = std::move(request.done)](ReadResult result) {
    {
      MutexLock lock(mutex_);
      forwarded_.erase(id);
    }
    done(std::move(result));
  };
  const ReadId inner_id = inner_->Get(std::move(request));
  {
    MutexLock lock(mutex_);
    const auto it = forwarded_.find(id);
    if (it == forwarded_.end()) return;
    it->second.inner = inner_id;
    if (!it->second.cancelled) return;
  }
  inner_->Cancel(inner_id);
}

void TierDecorator::ForwardCancel(ReadId id) {
  std::optional<ReadId> inner_id;
  {
    MutexLock lock(mutex_);
    const auto it = forwarded_.find(id);
    if (it == forwarded_.end()) return;
    it->second.cancelled = true;
    inner_id = it->second.inner;
  }
  if (inner_id) inner_->Cancel(*inner_id);
}

}  // namespace kvcake
