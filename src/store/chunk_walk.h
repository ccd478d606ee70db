// All chunks of a store directory, one after another, for what people do to it by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store/chunk_file.h"
#include "store/store_dir.h"

namespace kvcake {

struct FoundChunk {
  ChunkId id;
  FileInfo info;
};

// ScanStore's, with the chunks of every root, in no order.
struct FoundChunks {
  std::vector<FoundChunk> chunks;
  Status status;  // the first error; without what could not be listed
};
FoundChunks FindChunks(FileSystem& fs, const StoreDir& store);

// Calls `visit` for each of them, on several threads, as OnThreads has them; a reader is one
// thread's. Then `progress`, which may be null, from any of the threads, one at a time.
void VisitChunks(FileSystem& fs, const std::vector<FoundChunk>& chunks, int threads,
                 const std::function<void(ChunkFileReader&, const FoundChunk&)>& visit,
                 const std::function<void(uint64_t bytes_done, uint64_t bytes_total)>& progress);

// kCorrupt where the header is that of another chunk than its name says.
Status CheckNamed(const ChunkHeader& header, const ChunkId& id);

// What the file says it is; kCorrupt when a byte is wrong, or it is not the chunk of its name.
Result<ChunkHeader> ReadChunk(ChunkFileReader& reader, const StoreDir& store, const ChunkId& id);

}  // namespace kvcake
