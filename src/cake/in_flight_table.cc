#include "cake/in_flight_table.h"

#include <algorithm>

namespace kvcake {

void InFlightTable::Add(Board& board) {
  boards_.push_back(&board);
  ranked_.insert(&board);
  if (board.claims().size() > 0) by_beginning_[board.key(0)].push_back(&board);
  chunks_ += board.claims().size();
}

void InFlightTable::Remove(Board& board) {
  chunks_ -= board.claims().size();
  ranked_.erase(&board);
  boards_.erase(std::find(boards_.begin(), boards_.end(), &board));
  if (board.claims().size() == 0) return;
  const auto relatives = by_beginning_.find(board.key(0));
  std::erase(relatives->second, &board);
  if (relatives->second.empty()) by_beginning_.erase(relatives);
}

void InFlightTable::SetRank(Board& board, double rank) {
  if (rank == board.rank()) return;
  auto node = ranked_.extract(&board);
  board.set_rank(rank);
  ranked_.insert(std::move(node));
}

const std::vector<Board*>& InFlightTable::Relatives(const Board& board) const {
  static const std::vector<Board*> kNone;
  if (board.claims().size() == 0) return kNone;
  const auto it = by_beginning_.find(board.key(0));
  return it == by_beginning_.end() ? kNone : it->second;
}

Board* InFlightTable::Find(uint64_t serial) const {
  const auto it =
      std::find_if(boards_.begin(), boards_.end(), [&](auto* b) { return b->serial() == serial; });
  return it == boards_.end() ? nullptr : *it;
}

Board* InFlightTable::OwnerOf(const ChunkKey& key) const {
  const auto it = owners_.find(key);
  return it == owners_.end() ? nullptr : it->second;
}

void InFlightTable::FindMade(Board& board, int first, int end, PagePool& pool) const {
  for (int i = first; i < end; ++i) {
    if (auto page = pool.Lookup(board.key(i))) {
      board.Adopt(i, std::move(*page));
    } else if (OwnerOf(board.key(i)) != nullptr) {
      board.claims().MarkElsewhere(i);
    }
  }
}

void InFlightTable::Claimed(Board& owner, const Claim& claim) {
  for (int i = claim.first; i < claim.end(); ++i) {
    const ChunkKey& key = owner.key(i);
    owners_[key] = &owner;
    for (Board* other : Relatives(owner)) {
      if (other != &owner && other->Wants(i, key) &&
          other->claims().state(i) == ChunkState::kAbsent) {
        other->claims().MarkElsewhere(i);
      }
    }
  }
}

void InFlightTable::Disown(Board& owner, const Claim& claim) {
  for (int i = claim.first; i < claim.end(); ++i) {
    const ChunkKey& key = owner.key(i);
    owners_.erase(key);
    for (Board* other : Relatives(owner)) {
      if (other != &owner && other->Wants(i, key) &&
          other->claims().state(i) == ChunkState::kElsewhere) {
        other->claims().Return(i);
      }
    }
  }
}

void InFlightTable::Publish(int chunk, const ChunkKey& key, const PageHandle& page,
                            const Board* owner) {
  owners_.erase(key);
  for (Board* other : owner != nullptr ? Relatives(*owner) : boards_) {
    if (other != owner && other->Wants(chunk, key)) other->Adopt(chunk, page.Share());
  }
}

void InFlightTable::FailLoad(Board& owner, const Claim& claim, int tier) {
  owner.claims().Fail(claim, tier);
  Disown(owner, claim);
  for (Board* other : Relatives(owner)) {
    if (other->Wants(claim.first, owner.key(claim.first))) {
      other->claims().SetNotLoadable(claim.first, tier);
    }
  }
}

std::optional<InFlightTable::Heir> InFlightTable::Inherit(int chunk, const ChunkKey& key) {
  for (Board* other : boards_) {
    if (!other->WantsLoads() || !other->Wants(chunk, key)) continue;
    owners_[key] = other;
    return Heir{other, other->claims().InheritLoad(chunk)};
  }
  return std::nullopt;
}

}  // namespace kvcake
