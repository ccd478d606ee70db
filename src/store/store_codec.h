// The codec that a store keeps its chunks by, with what it has to know of the model.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "codec/codec.h"
#include "store/chunk_form.h"

namespace kvcake {

struct StoreCodec {
  const CodecRow* row = &CodecRows()[0];      // raw
  std::shared_ptr<const CodecTables> tables;  // null: it has none, or they are not to be had
  Digest tables_digest{};                     // zeros without tables
  std::string tables_path = {};
  // Why chunks can be neither read nor written: nothing is found in such a store.
  Status usable;

  // Tables are those of `path`: a file, or a directory with <codec>-1.tables, as `kvcake codec fit`
  // makes them; empty: `store_dir`, if that is not empty. What is wrong with them is in `usable`.
  static StoreCodec Load(Codec codec, const std::string& path, const std::string& store_dir);

  // By the fastest instructions of this machine, for chunks of a model that TablesModel calls so.
  // kInvalidArgument, with their file, where the tables are another model's or codec's, kCorrupt
  // where they are none of the codec's; not of raw chunks.
  Result<std::unique_ptr<LayerCodec>> Make(const KvLayout& layout, uint32_t model = 0) const;
  ChunkForm Form(uint64_t part_bytes_max) const {
    return {.codec = row->codec, .tables = tables_digest, .part_bytes_max = part_bytes_max};
  }
};

}  // namespace kvcake
