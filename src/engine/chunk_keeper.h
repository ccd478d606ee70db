// Makes the chunks that sequences fill findable by everyone, and offers them to the stores.
#pragma once

#include "engine/sequence.h"
#include "store/write_behind.h"

namespace kvcake {

// Engine thread only.
class ChunkKeeper {
 public:
  // Borrows both; `writes` may be null: chunks are kept in the page cache alone.
  ChunkKeeper(PagePool& pool, WriteBehind* writes) : pool_(pool), writes_(writes) {}

  // Publishes the full chunks that the suffix and generated tokens have filled since the last call;
  // those that are generated are offered to the stores.
  void PublishFull(Sequence& sequence);
  // Offers the sequence's chunks: once the prompt is done with, so that writing never delays the
  // first token. Each is offered once a request, however often that is preempted: a second use is
  // another request's.
  void Store(Sequence& sequence);
  // Offers those of the chunks of a slice that this process has claimed, before all others: other
  // processes may wait for them. Its restoration has just had it computed. What follows another
  // numeric path's chunks is not kept: who waits for it is done with that soon. What was computed
  // before one came is.
  void StoreClaimed(const Sequence& sequence, const Claim& slice);

 private:
  void Offer(const Sequence& sequence, size_t chunk, NumericPath path, PageHandle page,
             bool awaited);

  PagePool& pool_;
  WriteBehind* const writes_;
};

}  // namespace kvcake
