#include "cake/claims.h"

#include "base/check.h"

namespace kvcake {

Claims::Claims(int chunks) : chunks_(chunks) {}

void Claims::SetLoadable(int tier, const std::vector<bool>& chunks) {
  CHECK(tier >= 0 && tier < kTiersMax && chunks.size() == chunks_.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i]) chunks_[i].tiers |= 1u << tier;
  }
}

Claim Claims::ClaimFront(int max_chunks, bool take_over, std::vector<int>* taken) {
  Claim claim{.first = first_missing_, .count = 0, .generation = ++generation_};
  for (int i = claim.first; i < size() && claim.count < max_chunks; ++i) {
    Chunk& chunk = chunks_[i];
    const bool owned = chunk.state == ChunkState::kLoading || chunk.state == ChunkState::kElsewhere;
    if (chunk.state != ChunkState::kAbsent && !(take_over && owned)) break;
    if (owned && taken != nullptr) taken->push_back(i);
    chunk.state = ChunkState::kComputing;
    chunk.generation = generation_;
    ++claim.count;
  }
  return claim;
}

std::optional<Claim> Claims::ClaimBack(int tier, std::span<const uint8_t> allowed) {
  int best = -1;
  for (int i = first_missing_; i < size(); ++i) {
    if (IsHole(i)) {
      if (best >= 0) break;
      continue;
    }
    if (state(i) == ChunkState::kAbsent && (tiers(i) >> tier & 1) != 0 &&
        (allowed.empty() || allowed[i])) {
      best = i;
    }
  }
  if (best < 0) return std::nullopt;
  chunks_[best].state = ChunkState::kLoading;
  chunks_[best].generation = ++generation_;
  return Claim{.first = best, .count = 1, .generation = generation_};
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
  for (int i = claim.first; i < claim.end(); ++i) SetResident(i);
}

void Claims::Release(const Claim& claim) {
  CHECK(Valid(claim));
  for (int i = claim.first; i < claim.end(); ++i) chunks_[i].state = ChunkState::kAbsent;
}

void Claims::Fail(const Claim& claim, int tier) {
  Release(claim);
  for (int i = claim.first; i < claim.end(); ++i) SetNotLoadable(i, tier);
}

void Claims::MarkElsewhere(int chunk) {
  CHECK(state(chunk) == ChunkState::kAbsent);
  chunks_[chunk].state = ChunkState::kElsewhere;
}

void Claims::LoseLoad(int chunk) {
  CHECK(state(chunk) == ChunkState::kLoading);
  chunks_[chunk].state = ChunkState::kElsewhere;
}

void Claims::Return(int chunk) {
  CHECK(state(chunk) == ChunkState::kElsewhere);
  chunks_[chunk].state = ChunkState::kAbsent;
}

void Claims::Adopt(int chunk) {
  CHECK(state(chunk) == ChunkState::kAbsent || state(chunk) == ChunkState::kElsewhere);
  SetResident(chunk);
}

Claim Claims::InheritLoad(int chunk) {
  CHECK(state(chunk) == ChunkState::kElsewhere);
  chunks_[chunk].state = ChunkState::kLoading;
  chunks_[chunk].generation = ++generation_;
  return Claim{.first = chunk, .count = 1, .generation = generation_};
}

void Claims::SetResident(int chunk) {
  chunks_[chunk].state = ChunkState::kResident;
  while (first_missing_ < size() && state(first_missing_) == ChunkState::kResident) {
    ++first_missing_;
  }
}

}  // namespace kvcake
