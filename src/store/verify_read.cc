#include "store/verify_read.h"

namespace kvcake {

Result<NumericPath> VerifyRead(ConstHeaderBytes bytes, const ReadRequest& request,
                               const ChunkKey& root, const KvLayout& layout) {
  const auto landing = request.landing.first(ReadBytes(layout, request));
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeHeader(bytes));
  ChunkHeader expected;
  expected.root = root;
  expected.key = request.key;
  expected.parent = request.parent;
  expected.layout = layout;
  RETURN_IF_ERROR(CheckSameChunk(header, expected));
  if (!request.layers) {
    RETURN_IF_ERROR(VerifySlabs(header, landing));
    return header.numeric_path;
  }
  const uint64_t slab_bytes = layout.slab_bytes();
  for (int i = 0; i < request.layers->count; ++i) {
    RETURN_IF_ERROR(
        VerifySlab(header, request.layers->first + i, landing.subspan(i * slab_bytes, slab_bytes)));
  }
  return header.numeric_path;
}

}  // namespace kvcake
