#include "store/late_tier.h"

#include <thread>
#include <utility>
#include <vector>

namespace kvcake {

LateTier::LateTier(std::unique_ptr<Tier> inner, LateTierOptions options)
    : TierDecorator(std::move(inner)), options_(options), random_(options.seed) {}

LateTier::~LateTier() {
  std::vector<ReadId> asked;
  {
    MutexLock lock(mutex_);
    asked.assign(asked_.begin(), asked_.end());
  }
  for (ReadId id : asked) ForwardCancel(id);
  MutexLock lock(mutex_);
  while (!asked_.empty()) idle_.Wait(mutex_);
}

bool LateTier::DrawLate(double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
}

Status LateTier::Put(const ChunkWrite& chunk) {
  bool late;
  {
    MutexLock lock(mutex_);
    late = DrawLate(options_.write_share);
  }
  if (late) std::this_thread::sleep_for(options_.write_delay);
  return TierDecorator::Put(chunk);
}

ReadId LateTier::Get(ReadRequest request) {
  ReadId id;
  bool late;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    late = DrawLate(options_.share);
    asked_.insert(id);
  }
  request.done = [this, id, late, done = std::move(request.done)](ReadResult result) mutable {
    OnInnerDone(id, late, std::move(done), std::move(result));
  };
  ForwardGet(id, std::move(request));
  return id;
}

void LateTier::OnInnerDone(ReadId id, bool late, Done done, ReadResult result) {
  if (late) {
    callbacks_.At(Clock::Real().Now() + options_.delay,
                  [done = std::move(done), result = std::move(result)]() mutable {
                    done(std::move(result));
                  });
  } else {
    done(std::move(result));
    done = nullptr;
  }
  MutexLock lock(mutex_);
  asked_.erase(id);
  if (asked_.empty()) idle_.NotifyAll();
}

}  // namespace kvcake
