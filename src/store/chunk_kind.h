// What all chunks of a tier that keeps chunk files have in common.
#pragma once

#include <cstdint>

#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "store/chunk_form.h"
#include "store/chunk_format.h"
#include "store/tier.h"

namespace kvcake {

struct ChunkKind {
  ChunkKey root;  // of the files: FormRoot
  KvLayout layout;
  ChunkForm form = {};

  // As the options of a tier say.
  template <typename Options>
  static ChunkKind Of(const Options& options) {
    return {options.root, options.layout, options.form};
  }

  // The header of such a chunk, without checksums, sizes, position and numeric path.
  ChunkHeader HeaderOf(const ChunkKey& key, const ChunkKey& parent) const;
  // The most that a read lands; of an encoded chunk only its header tells how much there is.
  uint64_t LandingBytes(const ReadRequest& request) const;
  // CHECKs that the request names layers that there are, and that its landing has room.
  void CheckRequest(const ReadRequest& request) const;
};

}  // namespace kvcake
