#include "store/chunk_kind.h"

#include "base/check.h"

namespace kvcake {

ChunkHeader ChunkKind::HeaderOf(const ChunkKey& key, const ChunkKey& parent) const {
  ChunkHeader header;
  header.root = root;
  header.key = key;
  header.parent = parent;
  header.layout = layout;
  header.codec = form.codec;
  header.tables = form.tables;
  if (form.encrypted) header.encryption.emplace();
  return header;
}

uint64_t ChunkKind::LandingBytes(const ReadRequest& request) const {
  return form.raw() ? ReadBytes(layout, request) : form.FileBytesMax(layout);
}

void ChunkKind::CheckRequest(const ReadRequest& request) const {
  const auto& layers = request.layers;
  CHECK(!layers || (layers->first >= 0 && layers->count > 0 &&
                    layers->first + layers->count <= layout.layers));
  CHECK(request.landing.size() >= LandingBytes(request));
}

}  // namespace kvcake
