#include "lib/cache.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/available_memory.h"
#include "base/change.h"
#include "base/check.h"
#include "base/dump_json.h"
#include "cake/cost_file.h"
#include "store/chunk_format.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

KvIdentity IdentityOf(const CacheOptions& options) {
  KvIdentity identity;  // an engine's has other names: they share no chunks
  identity.Add("library_name_space", options.name_space)
      .Add("layers", options.layers)
      .Add("chunk_tokens", options.chunk_tokens)
      .Add("slab_bytes", static_cast<int64_t>(options.slab_bytes));
  return identity;
}

// As `kvcake store ls` shows it.
std::string Describe(const KvIdentity& identity) {
  // Field by field: an object of nlohmann's wants memory to be destroyed, and ends the process
  // where there is none.
  std::string fields = "\"model\": " + DumpJson(nlohmann::json(identity.fields().front().second));
  for (const auto& [name, value] : identity.fields()) {
    fields += fmt::format(",\n  \"{}\": {}", name, DumpJson(nlohmann::json(value)));
  }
  return fmt::format("{{\n  {}\n}}", fields);
}

Status CheckMemory(const CacheOptions& options, const KvLayout& layout) {
  if (options.memory_bytes < layout.page_bytes()) {
    return Fail(ErrorCode::kInvalidArgument,
                "memory_bytes of {} holds no chunk: one takes {} bytes", options.memory_bytes,
                layout.page_bytes());
  }
  if (const uint64_t available = AvailableMemoryBytes(); options.memory_bytes > available) {
    return Fail(ErrorCode::kResourceExhausted,
                "memory_bytes of {} is more than the {} bytes that this process may still take",
                options.memory_bytes, available);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::Open(const CacheOptions& options) {
  const KvLayout layout =
      KvLayout::OfBytes(options.layers, options.slab_bytes, options.chunk_tokens);
  RETURN_IF_ERROR(CheckStorable(layout));
  RETURN_IF_ERROR(CheckMemory(options, layout));
  std::unique_ptr<Cache> cache(new Cache(options));
  PageMemory memory = PageMemory::Host();
  memory.populate_ahead_bytes = options.memory_bytes;  // while the host starts, not while it serves
  auto pool = PagePool::Create(layout, options.memory_bytes, std::move(memory));
  if (!pool) return Fail(pool.error().code, "memory_bytes: {}", pool.error().message);
  cache->pool_ = std::move(*pool);
  RETURN_IF_ERROR(cache->OpenStores());
  cache->Wire();
  return cache;
}

Cache::Cache(const CacheOptions& options) : options_(options), identity_(IdentityOf(options)) {}

Status Cache::OpenStores() {
  RETURN_IF_ERROR(CheckDistinct(options_.stores));
  const SharedStoreOptions shared{.layout = pool_->layout(),
                                  .root = identity_.Root(),
                                  .description = Describe(identity_),
                                  .time_to_live = options_.store_ttl};
  for (size_t i = 0; i < options_.stores.size(); ++i) {
    auto store = OpenStore(i, options_.stores[i], shared);
    if (!store) return Fail(store.error().code, "stores[{}]: {}", i, store.error().message);
    stores_.push_back(std::move(*store));
  }
  return {};
}

void Cache::Wire() {
  std::vector<Tier*> tiers;
  for (const auto& store : stores_) tiers.push_back(store.get());
  restorer_ =
      NewRestorer(*pool_, tiers, cost_, Clock::Real(), {.stall_timeout = options_.stall_timeout});
  if (!tiers.empty()) {
    writes_ = std::make_unique<WriteBehind>(
        WrittenStores(options_.stores, stores_, StoreWrites::kAlways), *pool_,
        WriteBehindOptions{.queue_share = options_.write_queue_share});
  }
  if (options_.device.empty()) return;
  std::vector<KeptCosts> kept;
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (!options_.stores[i].keeps_files()) continue;
    kept.push_back({CostPathOf(i), {cost_, *restorer_, static_cast<int>(i)}});
  }
  LoadCosts(kept);
  if (!kept.empty()) cost_keeper_ = std::make_unique<CostKeeper>(std::move(kept));
}

Cache::~Cache() {
  MutexLock lock(mutex_);
  CHECK(chunks_.empty() && restorations_.empty());
}

bool Cache::Settle() {
  try {
    WaitForPuts();
    {
      MutexLock lock(mutex_);
      if (lost_) return false;
      const Change change(lost_);
      for (auto& [number, opened] : restorations_) Finish(opened);
      restorations_.clear();
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  cost_keeper_.reset();  // saves what was learnt once more
  return true;
}

std::string Cache::CostPathOf(size_t store) const {
  const StoreOptions& options = options_.stores[store];
  const std::string device =
      fmt::format("library|{}|{} B/s|{} s", options_.device,
                  options.load_rate_bytes_per_s.value_or(0), options.load_latency.count());
  const Codec codec = options.codec.value_or(Codec::kRaw);
  const std::string encoded =
      codec == Codec::kRaw ? "" : fmt::format("|codec {}", FindCodec(codec)->name);
  return CostPath(options.dir, FilesRoot(options, identity_.Root()), device + encoded);
}

HeldIn Cache::Lookup(std::span<const ChunkKey> keys, Seconds patience) {
  std::vector<Tier*> stores;
  for (const auto& store : stores_) stores.push_back(store.get());
  return {.memory = restorer_->Known(keys, /*stored=*/false),
          .stores = LookInStores(stores, keys, std::vector<bool>(keys.size()), patience).held};
}

Result<uint64_t> Cache::Begin(CacheRequest request) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckNotLost());
  const Change change(lost_);
  RETURN_IF_ERROR(keys_.Add(request.parent, request.keys));
  RestoreRequest restore{
      .keys = request.keys,
      .root = request.parent,
      .chunk_tokens = options_.chunk_tokens,
      .prompt_tokens = static_cast<int>(request.keys.size()) * options_.chunk_tokens,
      .policy = request.policy,
      .slice_chunks_max = request.slice_chunks_max,
      .private_slices = true};
  const uint64_t number = next_number_++;
  restorations_.emplace(number, Opened{.restoration = restorer_->Open(std::move(restore)),
                                       .keys = std::move(request.keys),
                                       .slice_chunks_max = request.slice_chunks_max});
  return number;
}

Status Cache::CheckNotLost() const {
  if (!lost_) return {};
  return Fail(ErrorCode::kCancelled,
              "memory ran out in the midst of an earlier call, and the restorations of this cache "
              "are lost: close it, and open another one");
}

Result<Cache::Opened*> Cache::Find(uint64_t restoration) {
  RETURN_IF_ERROR(CheckNotLost());
  const auto it = restorations_.find(restoration);
  if (it == restorations_.end()) {
    return Fail(ErrorCode::kNotFound, "there is no such restoration, or it has ended");
  }
  return &it->second;
}

Result<Cache::Opened*> Cache::FindUnclaimed(uint64_t restoration) {
  ASSIGN_OR_RETURN(Opened* const opened, Find(restoration));
  if (opened->slice.count == 0) return opened;
  return Fail(ErrorCode::kResourceExhausted,
              "chunks [{}, {}) are claimed: say first how many of them were computed",
              opened->slice.first, opened->slice.end());
}

// A restoration that is complete teaches what the lanes cost each other.
void Cache::Finish(Opened& opened) {
  if (opened.restoration->done()) {
    opened.restoration->TakePages();
  } else {
    opened.restoration->Abandon();
  }
  keys_.Remove(opened.keys);
}

Status Cache::End(uint64_t restoration) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Opened* const opened, Find(restoration));
  const Change change(lost_);
  Finish(*opened);
  restorations_.erase(restoration);
  return {};
}

Result<CacheProgress> Cache::Progress(uint64_t restoration) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const Opened* const opened, Find(restoration));
  return CacheProgress{.restored = opened->restoration->Progress(),
                       .chunks = static_cast<int>(opened->keys.size()),
                       .slice = opened->slice};
}

CacheTurn Cache::Note(Opened& opened, const ComputeTurn& turn) {
  CacheTurn noted{.kind = turn.kind};
  if (turn.kind == ComputeTurn::Kind::kSlice) opened.slice = noted.claim = turn.claim;
  if (turn.kind == ComputeTurn::Kind::kWait) {
    noted.wait = std::max(Seconds(0), turn.wait_until - Clock::Real().Now());
  }
  return noted;
}

Result<CacheTurn> Cache::ClaimPlanned(uint64_t restoration, const ComputeBudget& budget) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Opened* const opened, FindUnclaimed(restoration));
  const Change change(lost_);
  ComputeTurn turn = opened->restoration->NextTurn(budget);
  // What there is no memory to load into is computed, or nobody would ever make room.
  if (turn.kind == ComputeTurn::Kind::kWait && turn.lacks_pages &&
      opened->restoration->Progress().loading == 0) {
    turn = opened->restoration->ClaimFront(std::min(budget.chunks, opened->slice_chunks_max));
  }
  return Note(*opened, turn);
}

Result<CacheTurn> Cache::Claim(uint64_t restoration, int chunks) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Opened* const opened, FindUnclaimed(restoration));
  const Change change(lost_);
  return Note(*opened, opened->restoration->ClaimFront(chunks));
}

Status Cache::Computed(uint64_t restoration, int chunks, Seconds took) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Opened* const opened, Find(restoration));
  if (opened->slice.count == 0) {
    return Fail(ErrorCode::kInvalidArgument, "no slice is claimed");
  }
  if (chunks > opened->slice.count) {
    return Fail(ErrorCode::kInvalidArgument, "count is {}, but {} chunks are claimed", chunks,
                opened->slice.count);
  }
  const Change change(lost_);
  kvcake::Claim computed = std::exchange(opened->slice, {});
  computed.count = chunks;
  cost_.Add(computed.first * options_.chunk_tokens, chunks * options_.chunk_tokens, took);
  opened->restoration->Computed(computed);
  return {};
}

Result<HeldChunk> Cache::Acquire(uint64_t restoration, int chunk) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const Opened* const opened, Find(restoration));
  if (chunk < 0 || static_cast<size_t>(chunk) >= opened->keys.size()) {
    return Fail(ErrorCode::kInvalidArgument, "chunk is {}, the restoration has {}", chunk,
                opened->keys.size());
  }
  PageHandle page = opened->restoration->PageOf(chunk);
  if (!page) return Fail(ErrorCode::kNotFound, "chunk {} is not in memory", chunk);
  const HeldChunk held{.number = next_number_++,
                       .data = pool_->Data(page.id()) + layout().slab_offset(0),
                       .stride = layout().slab_bytes()};
  chunks_.emplace(held.number, std::move(page));
  return held;
}

Status Cache::Release(uint64_t chunk) {
  MutexLock lock(mutex_);
  if (chunks_.erase(chunk) > 0) return {};
  return Fail(ErrorCode::kNotFound, "there is no such chunk, or it was released");
}

uint64_t Cache::acquired() const {
  MutexLock lock(mutex_);
  return chunks_.size();
}

Status Cache::Put(const CacheWrite& write) {
  return Put(write.key, write.parent, write.position, [&](int layer, std::byte* slab) {
    std::memcpy(slab, write.data + static_cast<uint64_t>(layer) * write.stride, slab_bytes());
  });
}

Status Cache::Put(const ChunkKey& key, const ChunkKey& parent, int position,
                  const std::function<void(int layer, std::byte* slab)>& copy) {
  std::optional<PageHandle> page = pool_->Lookup(key);
  if (!page) {
    page = pool_->Draw();
    if (!page) {
      ++puts_dropped_;
      return Fail(ErrorCode::kResourceExhausted,
                  "all {} chunks of memory_bytes are in use: the chunk is not kept",
                  pool_->pages());
    }
    std::byte* const to = pool_->Data(page->id());
    for (int layer = 0; layer < layout().layers; ++layer) {
      std::byte* const slab = to + layout().slab_offset(layer);
      copy(layer, slab);
      std::memset(slab + slab_bytes(), 0, layout().slab_bytes() - slab_bytes());
    }
    page = pool_->Publish(std::move(*page), key, NumericPath::kUnknown);
  }
  if (writes_) {
    writes_->Offer({key, parent, position, NumericPath::kUnknown, std::move(*page)});
  }
  return {};
}

PutOutcome Cache::PutIfNew(const AsyncWrite& write) {
  const bool in_memory = restorer_->Known(std::span(&write.key, 1), /*stored=*/false)[0];
  // What memory alone holds may have been dropped on its way to a store: it is offered again.
  if (IsKept(write.key) || (in_memory && !writes_)) return PutOutcome::kHeld;
  const size_t per_slab = write.parts.size() / layout().layers;
  const uint64_t bytes = slab_bytes() / per_slab;
  const Status put = Put(write.key, write.parent, write.position, [&](int layer, std::byte* slab) {
    for (size_t part = 0; part < per_slab; ++part) {
      std::memcpy(slab + part * bytes, write.parts[layer * per_slab + part], bytes);
    }
  });
  if (!put) return PutOutcome::kDropped;
  return in_memory ? PutOutcome::kHeld : PutOutcome::kKept;
}

bool Cache::IsKept(const ChunkKey& key) {
  return std::ranges::any_of(stores_, [&](const auto& store) { return store->Keeps(key); });
}

Status Cache::Flush() {
  async_puts_.Drain();
  if (!writes_ || writes_->Flush()) return {};
  return Fail(ErrorCode::kDeadline, "nothing has been written to {} for a minute",
              options_.stores[0].Place());
}

uint64_t Cache::Wait(uint64_t seen, Seconds patience) {
  return restorer_->EventsAfter(seen, Clock::Real().Now() + patience);
}

CacheStats Cache::Stats() const {
  CacheStats stats{.memory = pool_->Stats(), .restorer = restorer_->Stats()};
  for (const auto& store : stores_) {
    const TierStats tier = store->Stats();
    stats.stores.chunks += tier.chunks;
    stats.stores.reads += tier.reads;
    stats.stores.read_bytes += tier.read_bytes;
    stats.stores.reads_failed += tier.reads_failed;
  }
  if (writes_) stats.writes = writes_->Stats();
  stats.puts_dropped = puts_dropped_;
  MutexLock lock(mutex_);
  stats.restorations = restorations_.size();
  stats.acquired = chunks_.size();
  return stats;
}

}  // namespace kvcake
