// Whose a chunk is, for quotas by tenant, and how a file says so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "io/file_system.h"

namespace kvcake {

// Stands for a tenant's name wherever chunks are kept.
using OwnerId = uint64_t;
inline constexpr OwnerId kNobody = 0;

struct OwnedBytes {
  OwnerId owner = kNobody;
  uint64_t bytes = 0;
  auto operator<=>(const OwnedBytes&) const = default;
};

// The same in every process; kNobody for "" alone.
OwnerId OwnerOf(std::string_view tenant);

// Notes it with the file, in the attribute user.kvcake.owner (docs/format.md). kUnsupported where
// the file system keeps none.
Status WriteOwner(File& file, OwnerId owner);
// What was noted; kNobody where nothing was, or nothing that can be read.
OwnerId ReadOwner(FileSystem& fs, const std::string& path);

}  // namespace kvcake
