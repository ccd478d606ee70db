// A store of chunks of one size, written and read once per repeat, without a model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "engine/runtime_tiers.h"
#include "kv/page_pool.h"
#include "store/open_store.h"

namespace kvcake::bench {

class ChunkRun {
 public:
  // `bytes` in all, of chunks of `chunk_bytes` and a header, in pages of the path's memory.
  // kInvalidArgument: no chunk is that large.
  static Result<std::unique_ptr<ChunkRun>> Open(StoreOptions store, uint64_t chunk_bytes,
                                                uint64_t bytes, NumericPath path);

  uint64_t page_bytes() const { return pool_->layout().page_bytes(); }
  uint64_t bytes() const { return keys_.size() * page_bytes(); }
  const ChunkKey& root() const { return root_; }
  const std::vector<ChunkKey>& keys() const { return keys_; }
  Tier& tier() const { return *tiers_->stores()[0]; }

  // All of them, once none is there.
  Result<Rate> Write();
  Result<Rate> Read();
  // While as many other chunks wait to be written.
  Result<Rate> ReadBesideWrites();

 private:
  ChunkRun() = default;

  Status BesideWritesOf(const std::vector<ChunkKey>& keys, const std::function<Status()>& beside);
  void FillPool(Memory memory);
  // What is to be written has none before, and what was written before is on its device.
  Status MakeRoomFor(const std::vector<ChunkKey>& keys);

  std::string dir_;  // empty: the store is elsewhere
  ChunkKey root_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<RuntimeTiers> tiers_;  // one, whose reads land in the pool
  std::vector<PageHandle> sources_;
  std::vector<ChunkKey> keys_, others_;
};

}  // namespace kvcake::bench
