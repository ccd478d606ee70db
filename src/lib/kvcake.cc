// The C API: numbers become objects, errors codes, and no exception goes further.
#include "lib/kvcake.h"

#include <array>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "lib/arguments.h"
#include "lib/log.h"
#include "lib/registry.h"

namespace kvcake {
namespace {

thread_local std::string last_error;

// Which events of a cache a thread has heard of, so that none is told twice. Of the caches that it
// waited for last: another's is told what it may know already.
class EventsHeard {
 public:
  uint64_t& Of(kvcake_cache cache) {
    for (Heard& heard : heard_) {
      if (heard.cache == cache) return heard.events;
    }
    Heard& oldest = heard_[next_++ % heard_.size()];
    oldest = {.cache = cache};
    return oldest.events;
  }

 private:
  struct Heard {
    kvcake_cache cache = 0;
    uint64_t events = 0;
  };
  std::array<Heard, 16> heard_;
  size_t next_ = 0;
};
thread_local EventsHeard events_heard;

int Refuse(int code, std::string message) {
  last_error = std::move(message);
  return code;
}

int CodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return KVCAKE_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return KVCAKE_UNSUPPORTED;
    case ErrorCode::kNotFound:
      return KVCAKE_NOT_FOUND;
    case ErrorCode::kCorrupt:
      return KVCAKE_CORRUPT;
    case ErrorCode::kIo:
      return KVCAKE_IO;
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kNoSpace:
      return KVCAKE_FULL;
    case ErrorCode::kCancelled:
      return KVCAKE_CANCELLED;
    case ErrorCode::kDeadline:
      return KVCAKE_TIMEOUT;
  }
  return KVCAKE_INTERNAL;
}

int Refuse(const Error& error) { return Refuse(CodeOf(error.code), error.message); }

int Refuse(NoCache why) {
  if (why == NoCache::kUnknown) {
    return Refuse(KVCAKE_NOT_FOUND, "there is no such cache, or it was closed");
  }
  return Refuse(
      KVCAKE_FORKED,
      "it belongs to the process that this one was forked from: open a cache of your own");
}

// Runs a body that returns a code.
template <typename Body>
int Guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";  // so short that it wants none itself
    return KVCAKE_FULL;
  } catch (const std::exception& error) {
    try {
      return Refuse(KVCAKE_INTERNAL, error.what());
    } catch (...) {
    }
  } catch (...) {
  }
  return KVCAKE_INTERNAL;
}

// Runs a body that wants a cache, which is not closed meanwhile, and part of it, with a Status.
// `full` is the code of what there is no room for.
template <int full = KVCAKE_FULL, typename Body>
int WithPart(uint64_t id, const Body& body) noexcept {
  return Guarded([&] {
    const LibraryId decoded = LibraryId::Decode(id);
    const auto use = Registry::Get().Find(decoded);
    if (!use) return Refuse(use.error());
    if (const Status status = body(*use, decoded.part); !status) {
      const int code = CodeOf(status.error().code);
      return Refuse(code == KVCAKE_FULL ? full : code, status.error().message);
    }
    return static_cast<int>(KVCAKE_OK);
  });
}

template <typename Body>
int WithCache(kvcake_cache id, const Body& body) noexcept {
  return WithPart(id, [&](const Registry::Use& use, uint64_t part) -> Status {
    if (part == 0) return body(use);
    return Fail(ErrorCode::kInvalidArgument, "this is not a cache, but a part of one");
  });
}

// The number of a part of the same cache.
uint64_t IdOf(const Registry::Use& use, uint64_t part) {
  return LibraryId{Registry::Get().forks(), use.number(), part}.Encode();
}

Status CheckPointer(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return Fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
}

Status CheckCount(int count, int least, const char* name, int most = 1 << 20) {
  if (count >= least && count <= most) return {};
  return Fail(ErrorCode::kInvalidArgument, "{} is {}, must be in [{}, {}]", name, count, least,
              most);
}

void WriteTurn(const CacheTurn& turn, kvcake_turn* out) {
  kvcake_turn written = {};
  switch (turn.kind) {
    case ComputeTurn::Kind::kSlice:
      written.kind = KVCAKE_TURN_SLICE;
      break;
    case ComputeTurn::Kind::kWait:
    case ComputeTurn::Kind::kStarved:
      written.kind = KVCAKE_TURN_WAIT;
      break;
    case ComputeTurn::Kind::kDone:
      written.kind = KVCAKE_TURN_DONE;
      break;
  }
  written.first = turn.claim.first;
  written.count = turn.claim.count;
  written.wait_s = turn.wait.count();
  WriteStruct(written, out);
}

// A slice that is claimed is in nobody's way: the caller has to say first what became of it. Want
// of memory, which Guarded tells of, is another matter.
template <typename Body>
int WithClaim(uint64_t id, const Body& body) noexcept {
  return WithPart<KVCAKE_BUSY>(id, body);
}

}  // namespace
}  // namespace kvcake

using namespace kvcake;

const char* kvcake_status_name(int status) {
  constexpr const char* kNames[] = {
      "ok",   "invalid argument", "unsupported", "not found", "corrupt", "i/o error",
      "full", "cancelled",        "timeout",     "busy",      "forked",  "internal error"};
  return status >= 0 && status < static_cast<int>(std::size(kNames)) ? kNames[status] : "unknown";
}

const char* kvcake_last_error(void) { return last_error.c_str(); }

const char* kvcake_version(void) { return KVCAKE_VERSION; }

int kvcake_set_log(kvcake_log_function function, void* context) {
  return Guarded([&] {
    SetLog(function, context);
    return static_cast<int>(KVCAKE_OK);
  });
}

int kvcake_open(const kvcake_options* options, kvcake_cache* cache) {
  return Guarded([&] {
    if (const Status status = CheckPointer(cache, "cache"); !status) return Refuse(status.error());
    Registry& registry = Registry::Get();
    const auto read = ReadOptions(options);
    if (!read) return Refuse(read.error());
    InstallLog();
    auto opened = Cache::Open(*read);
    if (!opened) return Refuse(opened.error());
    const auto number = registry.Add(std::move(*opened));
    if (!number) return Refuse(number.error());
    *cache = LibraryId{registry.forks(), *number, 0}.Encode();
    return static_cast<int>(KVCAKE_OK);
  });
}

int kvcake_close(kvcake_cache cache) {
  return Guarded([&] {
    Registry& registry = Registry::Get();
    auto removed = registry.Remove(LibraryId::Decode(cache));
    if (!removed) return Refuse(removed.error());
    if (removed->empty()) {
      return Refuse(KVCAKE_BUSY,
                    "chunks are acquired, or other threads are in calls: release them, and wait");
    }
    Cache& closed = *removed->mapped().cache;
    if (!closed.Settle()) registry.Keep(std::move(*removed));
    static_cast<void>(closed.Flush());  // for as long as the stores take something
    return static_cast<int>(KVCAKE_OK);
  });
}

int kvcake_root(kvcake_cache cache, const void* salt, size_t salt_bytes, kvcake_key* root) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    RETURN_IF_ERROR(CheckPointer(root, "root"));
    if (salt_bytes > 0) RETURN_IF_ERROR(CheckPointer(salt, "salt"));
    const std::string_view text(static_cast<const char*>(salt), salt_bytes);
    *root = KeyOf(use.cache().Root(text));
    return {};
  });
}

int kvcake_keys(kvcake_cache cache, const kvcake_key* parent, const int32_t* tokens,
                size_t token_count, kvcake_key* keys, size_t key_count) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    RETURN_IF_ERROR(CheckPointer(parent, "parent"));
    if (token_count > kPromptTokensMax) {
      return Fail(ErrorCode::kInvalidArgument, "token_count is {}, and may be {} at most",
                  token_count, kPromptTokensMax);
    }
    const size_t chunk_tokens = use.cache().layout().chunk_tokens;
    const size_t full = std::min(token_count / chunk_tokens, key_count);
    if (full == 0) return {};
    RETURN_IF_ERROR(CheckPointer(tokens, "tokens"));
    RETURN_IF_ERROR(CheckPointer(keys, "keys"));
    const auto made =
        ChunkKeys(KeyOf(*parent), {tokens, full * chunk_tokens}, static_cast<int>(chunk_tokens));
    for (size_t i = 0; i < full; ++i) keys[i] = KeyOf(made[i]);
    return {};
  });
}

int kvcake_extend_key(const kvcake_key* key, const void* extra, size_t extra_bytes,
                      kvcake_key* extended) {
  return Guarded([&] {
    const bool null = key == nullptr || extended == nullptr || (extra_bytes > 0 && !extra);
    if (null) return Refuse(KVCAKE_INVALID_ARGUMENT, "key, extra or extended is NULL");
    const std::span bytes(static_cast<const std::byte*>(extra), extra_bytes);
    *extended = KeyOf(ExtendedKey(KeyOf(*key), bytes));
    return static_cast<int>(KVCAKE_OK);
  });
}

int kvcake_lookup(kvcake_cache cache, const kvcake_key* keys, size_t key_count, double timeout_s,
                  uint8_t* held) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    ASSIGN_OR_RETURN(const auto read, ReadKeys(keys, key_count));
    ASSIGN_OR_RETURN(const Seconds patience, ReadSeconds(timeout_s, "timeout_s"));
    if (key_count > 0) RETURN_IF_ERROR(CheckPointer(held, "held"));
    const HeldIn found = use.cache().Lookup(read, patience);
    for (size_t i = 0; i < key_count; ++i) {
      int bits = 0;
      if (found.memory[i]) bits |= KVCAKE_IN_MEMORY;
      if (found.stores[i]) bits |= KVCAKE_STORED;
      held[i] = static_cast<uint8_t>(bits);
    }
    return {};
  });
}

int kvcake_begin(kvcake_cache cache, const kvcake_request* request,
                 kvcake_restoration* restoration) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    RETURN_IF_ERROR(CheckPointer(restoration, "restoration"));
    ASSIGN_OR_RETURN(auto read, ReadBegin(request, use.cache().layout().chunk_tokens));
    ASSIGN_OR_RETURN(const uint64_t part, use.cache().Begin(std::move(read)));
    *restoration = IdOf(use, part);
    return {};
  });
}

int kvcake_end(kvcake_restoration restoration) {
  return WithPart(restoration,
                  [](const Registry::Use& use, uint64_t part) { return use.cache().End(part); });
}

int kvcake_progress(kvcake_restoration restoration, kvcake_progress_info* progress) {
  return WithPart(restoration, [&](const Registry::Use& use, uint64_t part) -> Status {
    RETURN_IF_ERROR(CheckOut(progress, "progress"));
    ASSIGN_OR_RETURN(const CacheProgress made, use.cache().Progress(part));
    const int chunk_tokens = use.cache().layout().chunk_tokens;
    WriteStruct(kvcake_progress_info{.struct_size = 0,
                                     .chunks = made.chunks,
                                     .front = made.restored.front,
                                     .back = made.restored.back,
                                     .claimed_first = made.slice.first,
                                     .claimed_count = made.slice.count,
                                     .computed = made.restored.computed / chunk_tokens,
                                     .loaded = made.restored.loaded / chunk_tokens,
                                     .reused = made.restored.reused / chunk_tokens,
                                     .predicted_s = made.restored.predicted_s},
                progress);
    return {};
  });
}

int kvcake_claim_front(kvcake_restoration restoration, int32_t chunks_max, double share,
                       kvcake_turn* turn) {
  return WithClaim(restoration, [&](const Registry::Use& use, uint64_t part) -> Status {
    RETURN_IF_ERROR(CheckOut(turn, "turn"));
    RETURN_IF_ERROR(CheckCount(chunks_max, 1, "chunks_max"));
    if (!(share > 0 && share <= 1)) {
      return Fail(ErrorCode::kInvalidArgument, "share is {}, must be above 0 and at most 1", share);
    }
    ASSIGN_OR_RETURN(const CacheTurn made,
                     use.cache().ClaimPlanned(part, {.chunks = chunks_max, .share = share}));
    WriteTurn(made, turn);
    return {};
  });
}

int kvcake_claim(kvcake_restoration restoration, int32_t chunks, kvcake_turn* turn) {
  return WithClaim(restoration, [&](const Registry::Use& use, uint64_t part) -> Status {
    RETURN_IF_ERROR(CheckOut(turn, "turn"));
    RETURN_IF_ERROR(CheckCount(chunks, 1, "chunks"));
    ASSIGN_OR_RETURN(const CacheTurn made, use.cache().Claim(part, chunks));
    WriteTurn(made, turn);
    return {};
  });
}

int kvcake_computed(kvcake_restoration restoration, int32_t count, double seconds) {
  return WithPart(restoration, [&](const Registry::Use& use, uint64_t part) -> Status {
    RETURN_IF_ERROR(CheckCount(count, 0, "count"));
    ASSIGN_OR_RETURN(const Seconds took, ReadSeconds(seconds, "seconds"));
    return use.cache().Computed(part, count, took);
  });
}

int kvcake_acquire(kvcake_restoration restoration, int32_t chunk, kvcake_slabs* slabs) {
  return WithPart(restoration, [&](const Registry::Use& use, uint64_t part) -> Status {
    RETURN_IF_ERROR(CheckOut(slabs, "slabs"));
    ASSIGN_OR_RETURN(const HeldChunk held, use.cache().Acquire(part, chunk));
    WriteStruct(kvcake_slabs{.struct_size = 0,
                             .chunk = IdOf(use, held.number),
                             .data = held.data,
                             .stride = held.stride},
                slabs);
    return {};
  });
}

int kvcake_release(kvcake_chunk chunk) {
  return WithPart(
      chunk, [](const Registry::Use& use, uint64_t part) { return use.cache().Release(part); });
}

int kvcake_put(kvcake_cache cache, const kvcake_write* write) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    ASSIGN_OR_RETURN(const CacheWrite read, ReadWrite(write, use.cache().slab_bytes()));
    return use.cache().Put(read);
  });
}

int kvcake_put_async(kvcake_cache cache, const kvcake_async_write* writes, size_t count) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    ASSIGN_OR_RETURN(auto read, ReadAsyncWrites(writes, count, use.cache().layout().layers,
                                                use.cache().slab_bytes()));
    if (!read.empty()) use.cache().PutAsync(std::move(read));
    return {};
  });
}

int kvcake_put_wait(kvcake_cache cache, uint64_t* kept, uint64_t* dropped) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    const PutCounts counts = use.cache().WaitForPuts();
    if (kept != nullptr) *kept = counts.kept;
    if (dropped != nullptr) *dropped = counts.dropped;
    return {};
  });
}

int kvcake_flush(kvcake_cache cache) {
  return WithCache(cache, [](const Registry::Use& use) { return use.cache().Flush(); });
}

int kvcake_wait(kvcake_cache cache, double timeout_s) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    ASSIGN_OR_RETURN(const Seconds patience, ReadSeconds(timeout_s, "timeout_s"));
    uint64_t& heard = events_heard.Of(cache);
    heard = use.cache().Wait(heard, patience);
    return {};
  });
}

int kvcake_learn(kvcake_cache cache, int32_t prefix_tokens, int32_t tokens, double seconds) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    RETURN_IF_ERROR(CheckCount(prefix_tokens, 0, "prefix_tokens", kPromptTokensMax));
    RETURN_IF_ERROR(CheckCount(tokens, 1, "tokens", kPromptTokensMax));
    ASSIGN_OR_RETURN(const Seconds took, ReadSeconds(seconds, "seconds"));
    use.cache().Learn(prefix_tokens, tokens, took);
    return {};
  });
}

int kvcake_stats(kvcake_cache cache, kvcake_stats_info* stats) {
  return WithCache(cache, [&](const Registry::Use& use) -> Status {
    RETURN_IF_ERROR(CheckOut(stats, "stats"));
    const CacheStats now = use.cache().Stats();
    kvcake_stats_info written = {};
    written.memory_chunks = now.memory.pages;
    written.memory_referenced = now.memory.referenced;
    written.memory_cached = now.memory.cached;
    written.restorations = now.restorations;
    written.acquired = now.acquired;
    written.reads = now.stores.reads;
    written.read_bytes = now.stores.read_bytes;
    written.reads_failed = now.stores.reads_failed;
    written.reads_in_flight = now.restorer.reads_in_flight;
    written.stored_chunks = now.stores.chunks;
    written.writes_queued = now.writes.in_flight();
    written.writes_written = now.writes.written;
    written.writes_failed = now.writes.failed;
    written.writes_dropped = now.writes.dropped() + now.puts_dropped;
    WriteStruct(written, stats);
    return {};
  });
}
