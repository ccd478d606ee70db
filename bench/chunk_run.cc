#include "bench/chunk_run.h"

#include <algorithm>
#include <utility>

#include "bench/chunk_loader.h"
#include "bench/load_fio.h"
#include "ops/cuda_page_copier.h"
#include "store/write_behind.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kPoolBytes = 256 << 20;  // at least

constexpr uint64_t kHeadBytes = 4 * 128 * 64;  // keys and values of one head, at one layer
constexpr uint64_t kFewLayers = 8, kManyLayers = 32;

// A model whose chunks are `chunk_bytes` and a header: 128 tokens, layers of 32 KiB or more.
Result<KvLayout> LayoutOf(uint64_t chunk_bytes) {
  const bool many = chunk_bytes > (1 << 20) && chunk_bytes % (kManyLayers * kHeadBytes) == 0;
  const uint64_t layers = many ? kManyLayers : kFewLayers;
  if (chunk_bytes % (layers * kHeadBytes) != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--chunk-bytes {}: a chunk is whole heads of {} layers, a multiple of {} KiB",
                chunk_bytes, layers, layers * kHeadBytes >> 10);
  }
  return KvLayout{.layers = static_cast<int>(layers),
                  .kv_heads = static_cast<int>(chunk_bytes / layers / kHeadBytes),
                  .head_dim = 64,
                  .chunk_tokens = 128};
}

}  // namespace

Result<std::unique_ptr<ChunkRun>> ChunkRun::Open(StoreOptions store, uint64_t chunk_bytes,
                                                 uint64_t bytes, NumericPath path) {
  std::unique_ptr<ChunkRun> run(new ChunkRun);
  ASSIGN_OR_RETURN(const KvLayout layout, LayoutOf(chunk_bytes));
  ASSIGN_OR_RETURN(PageMemory memory, PageMemoryOf(path));
  run->dir_ = store.dir;
  run->root_ = KvIdentity().Add("bench", static_cast<int64_t>(chunk_bytes)).Root();
  store.capacity_bytes = 1ull << 50;
  RuntimeTiersOptions tiers;
  tiers.shared.layout = layout;
  tiers.shared.root = run->root_;
  tiers.stores = {std::move(store)};
  tiers.staging_capacity_bytes = RuntimeOptions{}.staging_capacity_bytes;
  ASSIGN_OR_RETURN(run->tiers_, RuntimeTiers::Open(std::move(tiers),
                                                   OnCuda(path) ? NewCudaPageCopier() : nullptr));
  // Three quarters of it are for what is read.
  const uint64_t pool_bytes = std::max(kPoolBytes, 2 * run->tier().max_read_bytes_in_flight());
  ASSIGN_OR_RETURN(run->pool_, PagePool::Create(layout, pool_bytes, std::move(memory)));
  const uint64_t chunks = std::max<uint64_t>(bytes / run->page_bytes(), 1);
  const auto keys = [&](int seed) {
    return ChunkKeys(run->root_, RandomPrompt(static_cast<int>(chunks), 1 << 16, seed), 1);
  };
  run->keys_ = keys(1);
  run->others_ = keys(2);
  run->FillPool(MemoryOf(path));
  return run;
}

Status ChunkRun::MakeRoomFor(const std::vector<ChunkKey>& keys) {
  for (const ChunkKey& key : keys) RETURN_IF_ERROR(tier().Evict(key));
  if (!dir_.empty()) SettleFileSystem(dir_);
  return {};
}

Result<Rate> ChunkRun::Write() {
  RETURN_IF_ERROR(MakeRoomFor(keys_));
  const Stopwatch watch;
  RETURN_IF_ERROR(BesideWritesOf(keys_, [] { return Status(); }));
  return watch.Of(bytes());
}

Result<Rate> ChunkRun::Read() {
  pool_->DropCached();
  const Stopwatch watch;
  RETURN_IF_ERROR(LoadChunks(tier(), *pool_, root_, keys_));
  return watch.Of(bytes());
}

Result<Rate> ChunkRun::ReadBesideWrites() {
  RETURN_IF_ERROR(MakeRoomFor(others_));
  Rate rate;
  RETURN_IF_ERROR(BesideWritesOf(others_, [&]() -> Status {
    ASSIGN_OR_RETURN(rate, Read());
    return {};
  }));
  return rate;
}

// By the engine's writer, from pages of which each is written again and again; calls `beside` when
// all wait, and returns when all are written.
Status ChunkRun::BesideWritesOf(const std::vector<ChunkKey>& keys,
                                const std::function<Status()>& beside) {
  const double share = static_cast<double>(keys.size()) / static_cast<double>(pool_->pages());
  WriteBehind writer({&tier()}, *pool_, {.queue_share = std::max(1.0, share)});
  for (size_t i = 0; i < keys.size(); ++i) {
    writer.Offer({keys[i], i == 0 ? root_ : keys[i - 1], static_cast<int>(i), NumericPath::kF32,
                  sources_[i % sources_.size()].Share()});
  }
  RETURN_IF_ERROR(beside());
  writer.Flush();
  if (const auto stats = writer.Stats(); stats.written != keys.size()) {
    return Fail(ErrorCode::kIo, "{} of {} chunks were written", stats.written, keys.size());
  }
  return {};
}

// A quarter of the pool holds what is written, the rest is where reads land; every page is touched.
void ChunkRun::FillPool(Memory memory) {
  std::vector<PageHandle> rest;
  std::vector<uint64_t> words(page_bytes() / sizeof(uint64_t));
  while (auto page = pool_->Draw()) {
    uint64_t random = page->id();
    for (uint64_t& word : words) {
      word = random = random * 6364136223846793005 + 1442695040888963407;
    }
    WriteTo(memory, pool_->Data(page->id()), std::as_bytes(std::span(words)));
    (sources_.size() <= rest.size() / 3 ? sources_ : rest).push_back(std::move(*page));
  }
}

}  // namespace kvcake::bench
