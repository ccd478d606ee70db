#include "cake/claims.h"

#include <utility>

#include "base/check.h"

namespace kvcake {

Claims::Claims(int chunks) : chunks_(chunks), absent_{{.tiers = 0, .chunks = chunks}} {}

void Claims::SetLoadable(int tier, const std::vector<bool>& chunks) {
  CHECK(tier >= 0 && tier < kTiersMax && chunks.size() == chunks_.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i]) AddLoadable(static_cast<int>(i), tier);
  }
}

Claim Claims::ClaimFront(int max_chunks, bool take_over, std::vector<int>* taken) {
  Claim claim{.first = first_missing_, .count = 0, .generation = ++generation_};
  for (int i = claim.first; i < size() && claim.count < max_chunks; ++i) {
    const bool owned = state(i) == ChunkState::kLoading || state(i) == ChunkState::kElsewhere;
    if (state(i) != ChunkState::kAbsent && !(take_over && owned)) break;
    if (owned && taken != nullptr) taken->push_back(i);
    SetState(i, ChunkState::kComputing);
    chunks_[i].generation = generation_;
    ++claim.count;
  }
  return claim;
}

Claim Claims::ClaimLoad(int chunk) {
  CHECK(state(chunk) == ChunkState::kAbsent);
  SetState(chunk, ChunkState::kLoading);
  chunks_[chunk].generation = ++generation_;
  return Claim{.first = chunk, .count = 1, .generation = generation_};
}

bool Claims::Valid(const Claim& claim) const {
  if (claim.count <= 0 || claim.first < 0 || claim.end() > size()) return false;
  for (int i = claim.first; i < claim.end(); ++i) {
    if (chunks_[i].generation != claim.generation) return false;
    if (state(i) != ChunkState::kLoading && state(i) != ChunkState::kComputing) return false;
  }
  return true;
}

void Claims::Publish(const Claim& claim) {
  CHECK(Valid(claim));
  for (int i = claim.first; i < claim.end(); ++i) SetState(i, ChunkState::kResident);
}

void Claims::Release(const Claim& claim) {
  CHECK(Valid(claim));
  for (int i = claim.first; i < claim.end(); ++i) SetState(i, ChunkState::kAbsent);
}

void Claims::Fail(const Claim& claim, int tier) {
  Release(claim);
  for (int i = claim.first; i < claim.end(); ++i) SetNotLoadable(i, tier);
}

void Claims::MarkElsewhere(int chunk) {
  CHECK(state(chunk) == ChunkState::kAbsent);
  SetState(chunk, ChunkState::kElsewhere);
}

void Claims::LoseLoad(int chunk) {
  CHECK(state(chunk) == ChunkState::kLoading);
  SetState(chunk, ChunkState::kElsewhere);
}

void Claims::Return(int chunk) {
  CHECK(state(chunk) == ChunkState::kElsewhere);
  SetState(chunk, ChunkState::kAbsent);
}

void Claims::Adopt(int chunk) {
  CHECK(state(chunk) == ChunkState::kAbsent || state(chunk) == ChunkState::kElsewhere);
  SetState(chunk, ChunkState::kResident);
}

Claim Claims::InheritLoad(int chunk) {
  CHECK(state(chunk) == ChunkState::kElsewhere);
  SetState(chunk, ChunkState::kLoading);
  chunks_[chunk].generation = ++generation_;
  return Claim{.first = chunk, .count = 1, .generation = generation_};
}

int Claims::AbsentIn(uint32_t tiers) const {
  int chunks = 0;
  for (const Absent& absent : absent_) {
    if ((absent.tiers & tiers) != 0) chunks += absent.chunks;
  }
  return chunks;
}

int& Claims::CountOf(uint32_t tiers) {
  for (Absent& absent : absent_) {
    if (absent.tiers == tiers) return absent.chunks;
  }
  absent_.push_back({.tiers = tiers, .chunks = 0});
  return absent_.back().chunks;
}

void Claims::SetTiers(int chunk, uint32_t tiers) {
  if (tiers == chunks_[chunk].tiers) return;
  if (state(chunk) == ChunkState::kAbsent) {
    --CountOf(chunks_[chunk].tiers);
    ++CountOf(tiers);
  }
  chunks_[chunk].tiers = tiers;
  ++revision_;
}

void Claims::SetState(int chunk, ChunkState state) {
  const auto loading = [](ChunkState s) {
    return s == ChunkState::kLoading || s == ChunkState::kElsewhere;
  };
  const ChunkState before = std::exchange(chunks_[chunk].state, state);
  if (before == ChunkState::kAbsent) --CountOf(tiers(chunk));
  if (state == ChunkState::kAbsent) {
    ++CountOf(tiers(chunk));
    ++revision_;
  }
  loading_ += loading(state) - loading(before);
  while (!done() && this->state(first_missing_) == ChunkState::kResident) ++first_missing_;
}

}  // namespace kvcake
