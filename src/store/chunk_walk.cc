#include "store/chunk_walk.h"

#include <atomic>
#include <thread>

namespace kvcake {

Result<std::vector<FoundChunk>> FindChunks(FileSystem& fs, const StoreDir& store) {
  std::vector<FoundChunk> found;
  RETURN_IF_ERROR(ScanStore(fs, store,
                            {.chunk =
                                 [&](const ChunkId& id, const FileInfo& info) {
                                   found.push_back({id, info});
                                 },
                             .temporary = {}}));
  return found;
}

void VisitChunks(FileSystem& fs, const std::vector<FoundChunk>& chunks, int threads,
                 const std::function<void(ChunkFileReader&, const FoundChunk&)>& visit) {
  std::atomic<size_t> next{0};
  const auto loop = [&] {
    ChunkFileReader reader(fs);
    for (size_t i = next++; i < chunks.size(); i = next++) visit(reader, chunks[i]);
  };
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) running.emplace_back(loop);
  for (std::thread& thread : running) thread.join();
}

Result<ChunkHeader> ReadChunk(ChunkFileReader& reader, const StoreDir& store, const ChunkId& id) {
  ASSIGN_OR_RETURN(const ChunkHeader header, reader.Read(store.ChunkPath(id)));
  if (header.key == id.key && header.root == id.root) return header;
  return Fail(ErrorCode::kCorrupt, "it belongs to another chunk: {} of root {}", header.key.Hex(),
              header.root.Hex());
}

}  // namespace kvcake
