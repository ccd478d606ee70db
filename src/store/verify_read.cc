#include "store/verify_read.h"

namespace kvcake {
namespace {

// The slabs of some layers lie one after another in the landing, parts where they do in the file.
Status VerifyLayers(const ChunkHeader& header, const ReadRequest& request) {
  const LayerRange& layers = *request.layers;
  const uint64_t begin = header.encoded() ? 0 : header.layer_offset(layers.first);
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
    RETURN_IF_ERROR(VerifySlab(
        header, layer,
        request.landing.subspan(header.layer_offset(layer) - begin, header.layer_bytes(layer))));
  }
  return {};
}

}  // namespace

Result<ChunkHeader> DecodeHeaderFor(ConstHeaderBytes bytes, const ReadRequest& request,
                                    const ChunkKind& kind) {
  ASSIGN_OR_RETURN(ChunkHeader header, DecodeHeader(bytes));
  RETURN_IF_ERROR(CheckSameChunk(header, kind.HeaderOf(request.key, request.parent)));
  // Its file may be of another size, but no landing is.
  if (header.file_bytes() <= kind.form.FileBytesMax(kind.layout)) return header;
  return Fail(ErrorCode::kCorrupt, "its layers have {} bytes, more than any chunk",
              header.file_bytes());
}

Result<NumericPath> VerifyRead(ConstHeaderBytes bytes, const ReadRequest& request,
                               const ChunkKind& kind, uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeHeaderFor(bytes, request, kind));
  if (request.layers) {
    RETURN_IF_ERROR(VerifyLayers(header, request));
    return header.numeric_path;
  }
  RETURN_IF_ERROR(CheckFileBytes(header, file_bytes));
  RETURN_IF_ERROR(VerifySlabs(header, request.landing.first(file_bytes)));
  return header.numeric_path;
}

}  // namespace kvcake
