// Who owns each chunk of one prompt while it is being restored.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcake {

// Every chunk has exactly one owner:
//
//   absent ----ClaimFront----> computing --Publish--> resident (final)
//     |                         ^      \--Release---> absent
//     |-------ClaimLoad----> loading --Publish-----> resident
//     |                      |  |  \---Release-----> absent
//     |                      |  \-------Fail-------> absent, and that tier is not asked again
//     |                      \--ClaimFront(take over)/LoseLoad: the late result is dropped
//     \--MarkElsewhere--> elsewhere --Adopt--> resident
//        (another restoration |  \--Return---> absent
//         owns this key)      \-----InheritLoad (its owner left) / ClaimFront(take over)
//
// A chunk's generation grows with every claim; a result whose generation is not the chunk's is
// late.
enum class ChunkState : uint8_t { kAbsent, kElsewhere, kLoading, kComputing, kResident };

// Chunks [first, first + count), claimed together.
struct Claim {
  int first = 0;
  int count = 0;
  uint32_t generation = 0;

  int end() const { return first + count; }
};

// Unsynchronised. Chunks are numbered from 0; tiers from 0 to kTiersMax - 1.
class Claims {
 public:
  static constexpr int kTiersMax = 32;

  explicit Claims(int chunks);

  int size() const { return static_cast<int>(chunks_.size()); }
  ChunkState state(int chunk) const { return chunks_[chunk].state; }
  // Bit t: tier t can still load this chunk.
  uint32_t tiers(int chunk) const { return chunks_[chunk].tiers; }
  bool IsHole(int chunk) const { return state(chunk) == ChunkState::kAbsent && tiers(chunk) == 0; }
  // It is absent, and the tier can load it.
  bool Wants(int chunk, int tier) const {
    return state(chunk) == ChunkState::kAbsent && (tiers(chunk) >> tier & 1) != 0;
  }
  // Chunks that are absent and that one of these tiers (bits) can load.
  int AbsentIn(uint32_t tiers) const;
  // Chunks that a load of this restoration owns, or another restoration.
  int loading() const { return loading_; }
  // Grows when a plan for these chunks has not foreseen what became of them: a chunk is absent
  // again, or tiers hold another number of chunks.
  uint64_t revision() const { return revision_; }
  // The first chunk that is not resident: where compute is.
  int first_missing() const { return first_missing_; }
  bool done() const { return first_missing_ == size(); }

  void SetLoadable(int tier, const std::vector<bool>& chunks);
  void AddLoadable(int chunk, int tier) { SetTiers(chunk, tiers(chunk) | 1u << tier); }
  void SetNotLoadable(int chunk, int tier) { SetTiers(chunk, tiers(chunk) & ~(1u << tier)); }

  // Claims for compute up to max_chunks absent chunks from first_missing(), which must be absent
  // (or owned by a load, with take_over). With take_over, chunks that a load owns, here or
  // elsewhere, are claimed too; `taken` lists them.
  Claim ClaimFront(int max_chunks, bool take_over = false, std::vector<int>* taken = nullptr);
  // Claims a chunk that is absent for a load.
  Claim ClaimLoad(int chunk);

  bool Valid(const Claim& claim) const;  // all its chunks still belong to it
  void Publish(const Claim& claim);      // claim must be Valid
  void Release(const Claim& claim);      // claim must be Valid
  void Fail(const Claim& claim, int tier);

  // What other restorations do to a key that this one wants as well.
  void MarkElsewhere(int chunk);  // absent -> elsewhere
  void LoseLoad(int chunk);       // loading -> elsewhere
  void Return(int chunk);         // elsewhere -> absent
  void Adopt(int chunk);          // absent or elsewhere -> resident
  Claim InheritLoad(int chunk);   // elsewhere -> loading

 private:
  struct Chunk {
    ChunkState state = ChunkState::kAbsent;
    uint32_t tiers = 0;
    uint32_t generation = 0;
  };
  struct Absent {
    uint32_t tiers;  // that can load them
    int chunks;
  };
  void SetState(int chunk, ChunkState state);
  void SetTiers(int chunk, uint32_t tiers);
  int& CountOf(uint32_t tiers);

  std::vector<Chunk> chunks_;
  std::vector<Absent> absent_;  // one of each set of tiers that was met
  int loading_ = 0;
  uint64_t revision_ = 0;
  uint32_t generation_ = 0;
  int first_missing_ = 0;
};

}  // namespace kvcake
