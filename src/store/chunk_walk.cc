#include "store/chunk_walk.h"

#include <atomic>

#include "base/mutex.h"
#include "base/on_threads.h"

namespace kvcake {

FoundChunks FindChunks(FileSystem& fs, const StoreDir& store) {
  FoundChunks found;
  found.status = ScanStore(fs, store,
                           {.chunk =
                                [&](const ChunkId& id, const FileInfo& info) {
                                  found.chunks.push_back({id, info});
                                },
                            .temporary = {}});
  return found;
}

void VisitChunks(FileSystem& fs, const std::vector<FoundChunk>& chunks, int threads,
                 const std::function<void(ChunkFileReader&, const FoundChunk&)>& visit,
                 const std::function<void(uint64_t, uint64_t)>& progress) {
  uint64_t total = 0, done = 0;
  for (const FoundChunk& chunk : chunks) total += chunk.info.bytes;
  Mutex mutex;  // of `done`, and of who tells
  std::atomic<size_t> next{0};
  OnThreads(threads, [&] {
    ChunkFileReader reader(fs);
    for (size_t i = next++; i < chunks.size(); i = next++) {
      visit(reader, chunks[i]);
      MutexLock lock(mutex);
      done += chunks[i].info.bytes;
      if (progress) progress(done, total);
    }
  });
}

Status CheckNamed(const ChunkHeader& header, const ChunkId& id) {
  if (header.key == id.key && header.root == id.root) return {};
  return Fail(ErrorCode::kCorrupt, "it belongs to another chunk: {} of root {}", header.key.Hex(),
              header.root.Hex());
}

Result<ChunkHeader> ReadChunk(ChunkFileReader& reader, const StoreDir& store, const ChunkId& id) {
  ASSIGN_OR_RETURN(const ChunkHeader header, reader.Read(store.ChunkPath(id)));
  RETURN_IF_ERROR(CheckNamed(header, id));
  return header;
}

}  // namespace kvcake
