#include "store/store_look.h"

#include <numeric>
#include <utility>

#include "base/mutex.h"

namespace kvcake {
namespace {

// Lives until the last store has answered, who may be later than anybody waits.
class Answers {
 public:
  explicit Answers(std::vector<bool> held) : held_(std::move(held)) {}

  void Expect() {
    MutexLock lock(mutex_);
    ++expected_;
  }
  void EndOne() {
    MutexLock lock(mutex_);
    if (--expected_ == 0) all_.NotifyAll();
  }
  // Whether the store is to go on.
  bool Add(std::span<const size_t> at, const std::vector<bool>& held) {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i]) held_[at[i]] = true;
    }
    return wanted_;
  }
  // What came until then; more is not wanted.
  StoreLook Await(TimePoint until) {
    MutexLock lock(mutex_);
    while (expected_ > 0 && all_.WaitUntil(mutex_, until)) {
    }
    wanted_ = false;
    return {.held = held_, .complete = expected_ == 0};
  }

 private:
  Mutex mutex_;
  CondVar all_;
  std::vector<bool> held_ GUARDED_BY(mutex_);
  int expected_ GUARDED_BY(mutex_) = 0;  // answers
  bool wanted_ GUARDED_BY(mutex_) = true;
};

// Asks for what is not held; false where the store knows all there is.
bool Look(Tier& store, std::span<const ChunkKey> keys, const std::vector<bool>& held,
          const std::shared_ptr<Answers>& answers) {
  LookRequest request;
  std::vector<size_t> at;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (held[i]) continue;
    at.push_back(i);
    request.keys.push_back(keys[i]);
  }
  if (at.empty()) return true;
  answers->Expect();
  request.found = [answers, at = std::move(at)](size_t first, const std::vector<bool>& found) {
    const bool wanted = answers->Add(std::span(at).subspan(first), found);
    const bool goes_on = wanted && first + found.size() < at.size();
    if (!goes_on) answers->EndOne();
    return goes_on;
  };
  const bool asked = store.Look(std::move(request));
  if (!asked) answers->EndOne();
  return asked;
}

}  // namespace

StoreLook LookInStores(std::span<Tier* const> stores, std::span<const ChunkKey> keys,
                       std::vector<bool> held, Seconds patience) {
  const TimePoint until = Clock::Real().Now() + patience;
  for (Tier* store : stores) {
    const std::vector<bool> known = store->Residency(keys);
    for (size_t i = 0; i < keys.size(); ++i) held[i] = held[i] || known[i];
  }
  if (patience.count() == 0) return {.held = std::move(held)};
  const auto answers = std::make_shared<Answers>(held);
  for (Tier* store : stores) Look(*store, keys, held, answers);
  return answers->Await(until);
}

StoreLook AskStores(std::span<Tier* const> stores, std::span<const ChunkKey> keys,
                    Seconds patience) {
  const TimePoint until = Clock::Real().Now() + patience;
  const std::vector<bool> none(keys.size());
  const auto answers = std::make_shared<Answers>(none);
  std::vector<size_t> all(keys.size());
  std::iota(all.begin(), all.end(), 0);
  for (Tier* store : stores) {
    if (!Look(*store, keys, none, answers)) answers->Add(all, store->Residency(keys));
  }
  return answers->Await(until);
}

}  // namespace kvcake
