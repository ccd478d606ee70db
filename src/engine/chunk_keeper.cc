#include "engine/chunk_keeper.h"

#include <span>
#include <utility>

namespace kvcake {
namespace {

const ChunkKey& ParentOf(const Sequence& sequence, size_t chunk) {
  return chunk == 0 ? sequence.root : sequence.keys[chunk - 1];
}

}  // namespace

void ChunkKeeper::PublishFull(Sequence& sequence) {
  const size_t chunk = pool_.layout().chunk_tokens;
  if (sequence.unproven) return;
  while ((sequence.keys.size() + 1) * chunk <= static_cast<size_t>(sequence.kv_tokens)) {
    const size_t i = sequence.keys.size();
    const auto tokens = std::span(sequence.tokens).subspan(i * chunk, chunk);
    const ChunkKey key = ChunkKeys(ParentOf(sequence, i), tokens, static_cast<int>(chunk))[0];
    sequence.keys.push_back(key);
    sequence.table[i] = pool_.Publish(std::move(sequence.table[i]), key, sequence.numeric_path);
    // Another's page of this key was there before: the tokens that follow see that one.
    if (pool_.path(sequence.table[i].id()) != sequence.numeric_path) sequence.MixPaths();
  }
  if (sequence.state == Sequence::State::kDecoding) Store(sequence);
}

void ChunkKeeper::Store(Sequence& sequence) {
  for (size_t& i = sequence.chunks_offered; i < sequence.keys.size(); ++i) {
    Offer(sequence, i, sequence.numeric_path, sequence.table[i].Share(), /*awaited=*/false);
  }
}

void ChunkKeeper::StoreClaimed(const Sequence& sequence, const Claim& slice) {
  for (int i = slice.first; i < slice.end(); ++i) {
    if (!sequence.restoration->IsClaimed(i)) continue;
    PageHandle page = sequence.restoration->PageOf(i);
    if (!page) continue;
    const NumericPath path = pool_.path(page.id());
    if (path == NumericPath::kUnknown) continue;
    Offer(sequence, i, path, std::move(page), /*awaited=*/true);
  }
}

void ChunkKeeper::Offer(const Sequence& sequence, size_t chunk, NumericPath path, PageHandle page,
                        bool awaited) {
  if (writes_ == nullptr || !sequence.request.store) return;
  writes_->Offer({.key = sequence.keys[chunk],
                  .parent = ParentOf(sequence, chunk),
                  .position = static_cast<int>(chunk),
                  .path = path,
                  .page = std::move(page),
                  .owner = OwnerOf(sequence.request.tenant),
                  .awaited = awaited});
}

}  // namespace kvcake
