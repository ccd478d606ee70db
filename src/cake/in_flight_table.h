// Who computes or loads each key now, across all prompts that are being restored: ten requests on
// one document restore it once, and when the owner leaves another goes on.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "cake/board.h"

namespace kvcake {

// Unsynchronised: its Restorer's mutex guards it and the boards, which it borrows.
class InFlightTable {
 public:
  void Add(Board& board);
  void Remove(Board& board);
  const std::vector<Board*>& boards() const { return boards_; }  // in order of opening
  Board* Find(uint64_t serial) const;                            // null when it has ended

  struct ByRank {
    bool operator()(const Board* a, const Board* b) const {
      return std::pair(a->rank(), a->serial()) < std::pair(b->rank(), b->serial());
    }
  };
  using RankedBoards = std::set<Board*, ByRank>;
  // In the order in which they are loaded for.
  const RankedBoards& ranked() const { return ranked_; }
  void SetRank(Board& board, double rank);

  int chunks() const { return chunks_; }  // of all boards
  // Those that begin with this one's first chunk: keys are hashes of all before them, so that no
  // other wants a chunk of it, or is of its document.
  const std::vector<Board*>& Relatives(const Board& board) const;

  // Null: nobody computes or loads it.
  Board* OwnerOf(const ChunkKey& key) const;
  size_t size() const { return owners_.size(); }  // keys that have an owner

  // Looks for chunks [first, end) of the board, which are absent: it adopts those that memory has,
  // and those that somebody else makes are elsewhere.
  void FindMade(Board& board, int first, int end, PagePool& pool) const;
  // A claim has become the owner's: others that want its chunks see them elsewhere.
  void Claimed(Board& owner, const Claim& claim);
  // It is nobody's any more, without a result: others see its chunks absent.
  void Disown(Board& owner, const Claim& claim);
  // A chunk is resident: all who want it adopt its page, but its owner, who has it. Null: nobody
  // owned it.
  void Publish(int chunk, const ChunkKey& key, const PageHandle& page, const Board* owner);
  // A load of the owner's failed, and would fail for all who want the chunk.
  void FailLoad(Board& owner, const Claim& claim, int tier);

  struct Heir {
    Board* board;
    Claim claim;
  };
  // Hands a load that its owner has released to another prompt that wants it, if there is one.
  std::optional<Heir> Inherit(int chunk, const ChunkKey& key);

 private:
  std::vector<Board*> boards_;
  RankedBoards ranked_;
  std::unordered_map<ChunkKey, std::vector<Board*>> by_beginning_;
  int chunks_ = 0;
  std::unordered_map<ChunkKey, Board*> owners_;
};

}  // namespace kvcake
