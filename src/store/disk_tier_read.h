// DiskTier's own.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/disk_tier.h"

namespace kvcake {

constexpr uint64_t kProbeBytes = kDirectAlign;
constexpr int kProbesMax = 4;  // that may be lost

// One read, from Get until its `done`.
struct DiskTier::Read {
  struct alignas(kDirectAlign) HeaderBlock {
    std::array<std::byte, kPageHeaderBytes> bytes;
  };
  struct Piece {
    uint64_t offset;
    std::span<std::byte> buffer;
  };

  ReadId id = 0;
  uint64_t watched = 0;  // by watch_, once it has begun
  ReadRequest request;
  std::string path;
  std::shared_ptr<File> file;           // in flight only
  std::unique_ptr<HeaderBlock> header;  // of a read of some layers; else it is in the landing
  std::vector<Piece> pieces;
  int pieces_queued = 0;  // of them, now
  bool cancelled = false;
  bool is_bad = false;                               // its file is being moved away
  Status status;                                     // the first failure
  NumericPath numeric_path = NumericPath::kUnknown;  // of what was verified

  // Says what to read into where.
  void Plan(const KvLayout& layout, uint64_t io_bytes_max);
};

}  // namespace kvcake
