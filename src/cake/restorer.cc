#include "cake/restorer.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace kvcake {

Restorer::Restorer(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost, const Clock& clock,
                   Options options)
    : pool_(pool), cost_(cost), clock_(clock), options_(options) {
  CHECK(tiers.size() <= Claims::kTiersMax);
  for (Tier* tier : tiers) {
    tiers_.emplace_back();
    tiers_.back().tier = tier;
  }
}

Restorer::~Restorer() {
  std::unique_lock lock(mutex_);
  CHECK(open_.empty());
  Calls calls;
  for (auto& [number, read] : reads_) CancelRead(number, calls);
  Make(calls, lock);
  idle_.wait(lock, [&] { return reads_.empty() && looks_ == 0 && calling_ == 0; });
}

std::shared_ptr<Restoration> Restorer::Open(RestoreRequest request) {
  CHECK(request.chunk_tokens > 0 && request.slice_chunks_max > 0);
  const int n = static_cast<int>(request.keys.size());
  std::vector<std::vector<bool>> residency;
  std::vector<std::vector<ChunkKey>> pinned(tiers_.size());
  if (request.policy != Policy::kCompute && n > 0) {
    for (size_t t = 0; t < tiers_.size(); ++t) {
      residency.push_back(tiers_[t].tier->Residency(request.keys));
      for (int i = 0; i < n; ++i) {
        if (residency[t][i]) pinned[t].push_back(request.keys[i]);
      }
      tiers_[t].tier->Pin(pinned[t]);
    }
  }
  std::shared_ptr<Restoration> opened(new Restoration(*this, std::move(request)));
  Restoration& r = *opened;

  std::unique_lock lock(mutex_);
  r.serial_ = next_serial_++;
  r.pinned_ = std::move(pinned);
  for (size_t t = 0; t < residency.size(); ++t) {
    r.claims_.SetLoadable(static_cast<int>(t), residency[t]);
  }
  r.initial_.resize(n);
  for (int i = 0; i < n; ++i) {
    r.initial_[i].tiers = r.claims_.tiers(i);
    if (auto page = pool_.Lookup(r.request_.keys[i])) {
      r.Adopt(i, std::move(*page));
    } else if (owners_.contains(r.request_.keys[i])) {
      r.claims_.MarkElsewhere(i);
    }
  }
  open_.push_back(&r);
  Calls calls;
  if (!residency.empty()) LookFor(r, calls);
  Pump(calls);
  Make(calls, lock);
  return opened;
}

void Restorer::WaitForEvent(TimePoint deadline) {
  using std::chrono::steady_clock;
  // An hour is forever, and safe to convert.
  const Seconds left = std::clamp<Seconds>(deadline - clock_.Now(), Seconds(0), Seconds(3600));
  const auto until = steady_clock::now() + std::chrono::ceil<steady_clock::duration>(left);
  std::unique_lock lock(mutex_);
  event_.wait_until(lock, until, [&] { return events_ != events_seen_; });
  events_seen_ = events_;
}

void Restorer::Wake() {
  std::lock_guard lock(mutex_);
  Event();
}

int Restorer::ReadsInFlight() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(reads_.size());
}

TierEstimate Restorer::Estimate(int tier) const {
  std::lock_guard lock(mutex_);
  return tiers_.at(tier).cost.estimate();
}

void Restorer::CheckInvariants() const {
  std::lock_guard lock(mutex_);
  size_t owned = 0, loading = 0;
  for (const Restoration* r : open_) {
    CHECK(!r->closed_);
    for (int i = 0; i < r->claims_.size(); ++i) {
      const auto it = owners_.find(r->request_.keys[i]);
      const bool mine = it != owners_.end() && it->second == r;
      const ChunkState state = r->claims_.state(i);
      const bool claimed = state == ChunkState::kLoading || state == ChunkState::kComputing;
      CHECK(mine == claimed);
      owned += claimed;
      loading += state == ChunkState::kLoading;
      if (state == ChunkState::kAbsent) CHECK(it == owners_.end());
      if (state == ChunkState::kElsewhere) CHECK(it != owners_.end());
      if (state == ChunkState::kComputing) CHECK(r->computing_ && r->claims_.Valid(*r->computing_));
      if (state == ChunkState::kComputing || state == ChunkState::kResident) {
        CHECK(static_cast<bool>(r->pages_[i]));
      }
    }
  }
  CHECK(owned == owners_.size());
  size_t reading = 0;
  for (const auto& [number, read] : reads_) {
    CHECK(static_cast<bool>(read.page) && read.cancel == (read.owner == nullptr));
    if (read.owner == nullptr) continue;
    ++reading;
    const int chunk = read.claim.first;
    CHECK(read.owner->claims_.Valid(read.claim) && read.claim.count == 1);
    CHECK(read.owner->claims_.state(chunk) == ChunkState::kLoading);
    CHECK(read.owner->request_.keys[chunk] == read.key);
  }
  CHECK(reading == loading);
}

nlohmann::json Restorer::TierCostToJson(int tier) const {
  std::lock_guard lock(mutex_);
  return tiers_.at(tier).cost.ToJson();
}

Status Restorer::TierCostFromJson(int tier, const nlohmann::json& json) {
  std::lock_guard lock(mutex_);
  return tiers_.at(tier).cost.FromJson(json);
}

void Restorer::Event() {
  ++events_;
  event_.notify_all();
}

void Restorer::Claimed(Restoration& owner, const Claim& claim) {
  for (int i = claim.first; i < claim.end(); ++i) {
    const ChunkKey& key = owner.request_.keys[i];
    owners_[key] = &owner;
    for (Restoration* other : open_) {
      if (other != &owner && other->Wants(i, key) &&
          other->claims_.state(i) == ChunkState::kAbsent) {
        other->claims_.MarkElsewhere(i);
      }
    }
  }
}

void Restorer::Disown(Restoration& owner, const Claim& claim) {
  for (int i = claim.first; i < claim.end(); ++i) {
    const ChunkKey& key = owner.request_.keys[i];
    owners_.erase(key);
    for (Restoration* other : open_) {
      if (other != &owner && other->Wants(i, key) &&
          other->claims_.state(i) == ChunkState::kElsewhere) {
        other->claims_.Return(i);
      }
    }
  }
}

void Restorer::PublishChunk(int chunk, const ChunkKey& key, const PageHandle& page,
                            Restoration* except) {
  owners_.erase(key);
  for (Restoration* other : open_) {
    if (other == except || !other->Wants(chunk, key)) continue;
    other->Adopt(chunk, page.Share());
  }
}

void Restorer::TakeOver(Restoration& taker, int chunk, Calls& calls) {
  const ChunkKey& key = taker.request_.keys[chunk];
  for (auto& [number, read] : reads_) {
    if (read.owner == nullptr || read.key != key) continue;
    Restoration& owner = *read.owner;
    if (&owner != &taker) owner.claims_.LoseLoad(chunk);
    owner.report_.AddReason(
        fmt::format("load of chunk {} cancelled: compute got there first", chunk));
    owner.report_.AddTimeline({.lane = std::string(tiers_[read.tier].tier->name()),
                               .first_token = chunk * owner.request_.chunk_tokens,
                               .tokens = owner.request_.chunk_tokens,
                               .start_s = owner.At(read.start),
                               .end_s = owner.At(clock_.Now()),
                               .outcome = Outcome::kLate});
    CancelRead(number, calls);
    return;
  }
  CHECK(!"a chunk that is loading has its read in the table");
}

void Restorer::CancelRead(uint64_t number, Calls& calls) {
  Read& read = reads_.at(number);
  read.owner = nullptr;
  if (read.cancel) return;
  read.cancel = true;
  tiers_[read.tier].cost.OnCancel();
  if (read.id) calls.cancels.emplace_back(read.tier, *read.id);
}

void Restorer::Close(Restoration& r, Calls& calls) {
  if (r.closed_) return;
  r.closed_ = true;
  open_.erase(std::find(open_.begin(), open_.end(), &r));
  if (r.computing_) {
    r.claims_.Release(*r.computing_);
    Disown(r, *r.computing_);
    r.computing_.reset();
  }
  for (auto& [number, read] : reads_) {
    if (read.owner != &r) continue;
    const int chunk = read.claim.first;
    const ChunkKey key = read.key;
    r.claims_.Release(read.claim);
    const auto heir = std::find_if(open_.begin(), open_.end(), [&](Restoration* other) {
      return other->WantsLoads() && other->Wants(chunk, key);
    });
    if (heir != open_.end()) {  // it goes on as theirs
      read.owner = *heir;
      read.claim = (*heir)->claims_.InheritLoad(chunk);
      owners_[key] = *heir;
    } else {
      Disown(r, read.claim);
      CancelRead(number, calls);
    }
  }
  for (size_t t = 0; t < r.pinned_.size(); ++t) {
    if (!r.pinned_[t].empty()) {
      calls.unpins.emplace_back(static_cast<int>(t), std::move(r.pinned_[t]));
    }
  }
  r.pages_.clear();
  Event();
  Pump(calls);
}

void Restorer::Make(Calls& calls, std::unique_lock<std::mutex>& lock) {
  if (calls.gets.empty() && calls.cancels.empty() && calls.looks.empty() && calls.unpins.empty()) {
    return;
  }
  ++calling_;
  lock.unlock();
  for (size_t i = 0; i < calls.gets.size(); ++i) {
    auto& [tier, request] = calls.gets[i];
    const ReadId id = tiers_[tier].tier->Get(std::move(request));
    lock.lock();
    if (const auto it = reads_.find(calls.get_reads[i]); it != reads_.end()) {
      it->second.id = id;
      if (it->second.cancel) calls.cancels.emplace_back(tier, id);
    }
    lock.unlock();
  }
  for (const auto& [tier, id] : calls.cancels) tiers_[tier].tier->Cancel(id);
  for (const auto& [tier, keys] : calls.unpins) tiers_[tier].tier->Unpin(keys);
  for (Look& look : calls.looks) StartLook(std::move(look));
  lock.lock();
  --calling_;
  if (calling_ == 0) idle_.notify_all();
}

}  // namespace kvcake
