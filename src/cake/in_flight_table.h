// Who computes or loads each key now, across all prompts that are being restored: ten requests on
// one document restore it once, and when the owner leaves another goes on.
#pragma once

#include <cstdint>
#include <optional>
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

  int chunks() const { return chunks_; }  // of all boards

  // Null: nobody computes or loads it.
  Board* OwnerOf(const ChunkKey& key) const;
  size_t size() const { return owners_.size(); }  // keys that have an owner

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
  // Those that begin with this one's first chunk: keys are hashes of all before them, so that no
  // other wants a chunk of it.
  const std::vector<Board*>& Relatives(const Board& board) const;

  std::vector<Board*> boards_;
  std::unordered_map<ChunkKey, std::vector<Board*>> by_beginning_;
  int chunks_ = 0;
  std::unordered_map<ChunkKey, Board*> owners_;
};

}  // namespace kvcake
