// One read of a disk tier: what goes into which memory, and whether it is the chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "io/file_system.h"
#include "store/disk_tier_options.h"
#include "store/tier.h"

namespace kvcake {

// From Get until its `done`.
struct DiskRead {
  struct alignas(kDirectAlign) HeaderBlock {
    std::array<std::byte, kPageHeaderBytes> bytes;
  };
  // One request to the kernel.
  struct Piece {
    uint64_t offset;
    std::span<std::byte> buffer;
  };

  // Plans the pieces.
  DiskRead(ReadRequest read_request, const DiskTierOptions& options);

  ReadRequest request;
  std::unique_ptr<HeaderBlock> header;  // of a read of some layers; else it is in the landing
  std::vector<Piece> pieces;
  bool may_end_early = false;  // the file's length is not known; else each piece comes whole

  ReadId id = 0;
  uint64_t watched = 0;        // by the device's health, once it has begun
  std::shared_ptr<File> file;  // in flight only
  int pieces_queued = 0;       // of them, now
  uint64_t landed = 0;         // bytes of all pieces that have come
  bool cancelled = false;
  bool is_bad = false;                               // its file is being moved away
  Status status;                                     // the first failure
  NumericPath numeric_path = NumericPath::kUnknown;  // of what was verified
};

// The most pieces that a read of such a tier has.
uint64_t PiecesMax(const DiskTierOptions& options);
// kCorrupt, with what is wrong, unless all that the read asked for has landed.
Result<NumericPath> VerifyLanded(const DiskRead& read, const DiskTierOptions& options);

}  // namespace kvcake
