// How a Restorer learns what the tiers hold, while its restorations go on.
#include <algorithm>

#include "base/check.h"
#include "cake/restorer.h"

namespace kvcake {

// Asks each tier for what it is not known to hold and memory does not have.
void Restorer::LookFor(Restoration& r, Calls& calls) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (tiers_[t].stalled) continue;
    Look look{.restoration = r.serial_, .tier = static_cast<int>(t)};
    for (int i = 0; i < r.claims_.size(); ++i) {
      const bool known = (r.claims_.tiers(i) >> t & 1) != 0;
      if (known || r.claims_.state(i) == ChunkState::kResident) continue;
      look.chunks.push_back(i);
      look.keys.push_back(r.request_.keys[i]);
    }
    if (look.chunks.empty()) continue;
    r.looking_ |= 1u << t;
    ++looks_;
    if (tiers_[t].looks++ == 0) tiers_[t].look_progress = clock_.Now();
    calls.looks.push_back(std::move(look));
  }
  Seconds wait = options_.look_wait_max;
  if (r.FixedSplit()) {
    wait = options_.stall_timeout;  // what is stored decides what is computed
  } else if (const ComputeFit fit = cost_.fit(); fit.known()) {
    const double tokens = r.request_.chunk_tokens;
    const double first = r.claims_.first_missing() * tokens;
    const double share = options_.planner.blind_wait_chunks;
    wait = std::min(wait, Seconds(share * fit.SecondsFor(first, tokens)));
  }
  r.look_until_ = r.opened_ + wait;
}

// Not under the mutex.
void Restorer::StartLook(Look look) {
  LookRequest request{.keys = std::move(look.keys), .found = {}};
  const uint64_t serial = look.restoration;
  const int tier = look.tier;
  request.found = [this, look = std::move(look)](size_t first, const std::vector<bool>& held) {
    return OnFound(look, first, held);
  };
  if (tiers_[tier].tier->Look(std::move(request))) return;
  std::lock_guard lock(mutex_);
  EndLook(Find(serial), tier);
}

std::vector<bool> Restorer::Known(std::span<const ChunkKey> keys, bool stored) const {
  std::vector<bool> known(keys.size(), false);
  for (const TierState& tier : tiers_) {
    if (!stored) break;
    const std::vector<bool> held = tier.tier->Residency(keys);
    for (size_t i = 0; i < known.size(); ++i) known[i] = known[i] || held[i];
  }
  for (size_t i = 0; i < known.size(); ++i) known[i] = known[i] || pool_.Lookup(keys[i]);
  return known;
}

void Restorer::EndLook(Restoration* r, int tier) {
  --looks_;
  --tiers_[tier].looks;
  if (r != nullptr) r->looking_ &= ~(1u << tier);
  Event();
}

Restoration* Restorer::Find(uint64_t serial) const {
  const auto it =
      std::find_if(open_.begin(), open_.end(), [&](auto* r) { return r->serial_ == serial; });
  return it == open_.end() ? nullptr : *it;
}

bool Restorer::OnFound(const Look& look, size_t first, const std::vector<bool>& held) {
  std::unique_lock lock(mutex_);
  Restoration* r = Find(look.restoration);
  TierState& tier = tiers_[look.tier];
  tier.look_progress = clock_.Now();
  if (tier.queue.empty()) tier.stalled.reset();
  if (r != nullptr) {
    std::vector<ChunkKey> keys;
    for (size_t i = 0; i < held.size(); ++i) {
      if (!held[i]) continue;
      const int chunk = look.chunks[first + i];
      r->claims_.AddLoadable(chunk, look.tier);
      r->initial_[chunk].tiers |= 1u << look.tier;
      keys.push_back(r->request_.keys[chunk]);
    }
    // Under the mutex, so that it comes before the Unpin of Close; neither takes any time.
    tier.tier->Pin(keys);
    auto& pinned = r->pinned_[look.tier];
    pinned.insert(pinned.end(), keys.begin(), keys.end());
  }
  const bool goes_on = r != nullptr && first + held.size() < look.chunks.size();
  if (!goes_on) EndLook(r, look.tier);
  Event();
  Calls calls;
  Pump(calls);
  Make(calls, lock);
  if (looks_ == 0 && calling_ == 0) idle_.notify_all();
  return goes_on;
}

}  // namespace kvcake
