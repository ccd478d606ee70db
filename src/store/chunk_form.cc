#include "store/chunk_form.h"

#include <fmt/core.h>

#include "codec/codec.h"

namespace kvcake {

uint64_t ChunkForm::FileBytesMax(const KvLayout& layout) const {
  if (raw()) return layout.page_bytes();
  const uint64_t parts = layout.layers * part_bytes_max;
  return kPageHeaderBytes + (parts + kSlabAlign - 1) / kSlabAlign * kSlabAlign;
}

bool ChunkForm::CanHave(const KvLayout& layout, uint64_t bytes) const {
  if (raw()) return bytes == layout.page_bytes();
  return bytes > kPageHeaderBytes && bytes <= FileBytesMax(layout) && bytes % kSlabAlign == 0;
}

std::string ChunkForm::FileBytesText(const KvLayout& layout) const {
  if (raw()) return fmt::format("{}", layout.page_bytes());
  return fmt::format("a multiple of {} from {} to {}", kSlabAlign, kPageHeaderBytes + kSlabAlign,
                     FileBytesMax(layout));
}

ChunkKey FormRoot(const ChunkKey& root, const ChunkForm& form) {
  if (form.codec == Codec::kRaw) return root;
  KvIdentity identity;
  identity.Add("chunk_form_of", root.Hex()).Add("codec", static_cast<int64_t>(form.codec));
  if (form.tables != Digest{}) identity.Add("tables", ToHex(form.tables));
  return identity.Root();
}

}  // namespace kvcake
