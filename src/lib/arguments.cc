#include "lib/arguments.h"

#include <cmath>

#include "store/chunk_format.h"

namespace kvcake {
namespace {

constexpr size_t kTextMax = 1 << 16;
constexpr size_t kKeysMax = 1 << 20;
constexpr int kChunkTokensMax = 1 << 16;
constexpr uint64_t kSlabBytesMax = 1ull << 30;
constexpr int kSliceChunksMax = 1 << 16;

Result<std::string> ReadText(const char* text, const char* name) {
  if (text == nullptr) return std::string();
  const size_t size = strnlen(text, kTextMax + 1);
  if (size > kTextMax) {
    return Fail(ErrorCode::kInvalidArgument, "{} is longer than {} bytes", name, kTextMax);
  }
  return std::string(text, size);
}

template <typename T>
Status CheckRange(T value, T least, T most, const char* name) {
  if (value >= least && value <= most) return {};
  return Fail(ErrorCode::kInvalidArgument, "{} is {}, must be in [{}, {}]", name, value, least,
              most);
}

Result<StoreOptions> ReadStore(const kvcake_store& read, const std::string& name) {
  ASSIGN_OR_RETURN(const std::string where, ReadText(read.where, (name + ".where").c_str()));
  auto named = ReadStoreUrl(where);
  if (!named) return Fail(named.error().code, "{}.where: {}", name, named.error().message);
  StoreOptions store = std::move(*named);
  // Which bytes of a slab are K's, which V's, and what they stand for only the caller knows.
  const CodecRow& codec = *FindCodec(store.codec.value_or(Codec::kRaw));
  if (codec.lossy) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}.where: codec {} would change the caller's bytes: raw or lossless", name,
                codec.name);
  }
  if (read.capacity_bytes > 0) store.capacity_bytes = read.capacity_bytes;
  constexpr double kRateMin = 1, kRateMax = 1e15;
  if (read.load_rate_bytes_per_s != 0) {
    RETURN_IF_ERROR(CheckRange(read.load_rate_bytes_per_s, kRateMin, kRateMax,
                               (name + ".load_rate_bytes_per_s").c_str()));
    store.load_rate_bytes_per_s = read.load_rate_bytes_per_s;
  }
  ASSIGN_OR_RETURN(store.load_latency,
                   ReadSeconds(read.load_latency_s, (name + ".load_latency_s").c_str()));
  return store;
}

Status ReadStores(const kvcake_options& read, CacheOptions* options) {
  RETURN_IF_ERROR(CheckRange<size_t>(read.store_count, 0, kStoresMax, "store_count"));
  if (read.store_count > 0 && read.stores == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "stores is NULL, and store_count {}",
                read.store_count);
  }
  for (size_t i = 0; i < read.store_count; ++i) {
    const std::string name = fmt::format("stores[{}]", i);
    ASSIGN_OR_RETURN(const kvcake_store store, ReadElement(read.stores, i, name));
    ASSIGN_OR_RETURN(StoreOptions opened, ReadStore(store, name));
    options->stores.push_back(std::move(opened));
  }
  return {};
}

Status ReadLayout(const kvcake_options& read, CacheOptions* options) {
  options->layers = read.layers;
  if (read.chunk_tokens != 0) options->chunk_tokens = read.chunk_tokens;
  options->slab_bytes = read.slab_bytes;
  RETURN_IF_ERROR(CheckRange(options->layers, 1, kChunkLayersMax, "layers"));
  RETURN_IF_ERROR(CheckRange(options->chunk_tokens, 1, kChunkTokensMax, "chunk_tokens"));
  // A chunk file's header has no room for more.
  const uint64_t most = std::min<uint64_t>(kSlabBytesMax, (4ull << 20) * options->chunk_tokens);
  return CheckRange<uint64_t>(options->slab_bytes, 1, most, "slab_bytes");
}

}  // namespace

ChunkKey KeyOf(const kvcake_key& key) {
  ChunkKey read;
  std::memcpy(read.digest.data(), key.bytes, sizeof(key.bytes));
  return read;
}

kvcake_key KeyOf(const ChunkKey& key) {
  kvcake_key written;
  std::memcpy(written.bytes, key.digest.data(), sizeof(written.bytes));
  return written;
}

Result<std::vector<ChunkKey>> ReadKeys(const kvcake_key* keys, size_t count) {
  RETURN_IF_ERROR(CheckRange<size_t>(count, 0, kKeysMax, "key_count"));
  if (count > 0 && keys == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, "keys is NULL, and key_count {}", count);
  }
  std::vector<ChunkKey> read(count);
  for (size_t i = 0; i < count; ++i) read[i] = KeyOf(keys[i]);
  return read;
}

Result<Seconds> ReadSeconds(double seconds, const char* name) {
  constexpr double kSecondsMax = 3e10;
  if (std::isfinite(seconds) && seconds >= 0 && seconds <= kSecondsMax) return Seconds(seconds);
  return Fail(ErrorCode::kInvalidArgument, "{} is {}, must be seconds from 0 to {:.0e}", name,
              seconds, kSecondsMax);
}

Result<CacheOptions> ReadOptions(const kvcake_options* given) {
  ASSIGN_OR_RETURN(const kvcake_options read, ReadStruct(given, "options"));
  CacheOptions options;
  ASSIGN_OR_RETURN(options.name_space, ReadText(read.name_space, "name_space"));
  if (options.name_space.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "name_space must say what the KV cache depends on: weights, dtype, layout");
  }
  RETURN_IF_ERROR(ReadLayout(read, &options));
  RETURN_IF_ERROR(ReadStores(read, &options));
  if (read.memory_bytes > 0) options.memory_bytes = read.memory_bytes;
  if (read.write_queue_share != 0) options.write_queue_share = read.write_queue_share;
  RETURN_IF_ERROR(CheckRange(options.write_queue_share, 1e-6, 1.0, "write_queue_share"));
  ASSIGN_OR_RETURN(options.store_ttl, ReadSeconds(read.store_ttl_s, "store_ttl_s"));
  ASSIGN_OR_RETURN(const Seconds stall, ReadSeconds(read.stall_timeout_s, "stall_timeout_s"));
  if (stall.count() > 0) options.stall_timeout = stall;
  ASSIGN_OR_RETURN(options.device, ReadText(read.device, "device"));
  return options;
}

Result<CacheRequest> ReadBegin(const kvcake_request* given, int chunk_tokens) {
  ASSIGN_OR_RETURN(const kvcake_request read, ReadStruct(given, "request"));
  CacheRequest request;
  ASSIGN_OR_RETURN(request.keys, ReadKeys(read.keys, read.key_count));
  if (static_cast<int64_t>(read.key_count) * chunk_tokens > kPromptTokensMax) {
    return Fail(ErrorCode::kInvalidArgument, "{} chunks of {} tokens are more than {} tokens",
                read.key_count, chunk_tokens, kPromptTokensMax);
  }
  if (read.parent == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "parent is NULL: it is the key before keys[0], as of kvcake_root");
  }
  request.parent = KeyOf(*read.parent);
  switch (read.policy) {
    case KVCAKE_POLICY_CAKE:
      request.policy = Policy::kCake;
      break;
    case KVCAKE_POLICY_COMPUTE:
      request.policy = Policy::kCompute;
      break;
    case KVCAKE_POLICY_LOAD:
      request.policy = Policy::kLoad;
      break;
    default:
      return Fail(ErrorCode::kInvalidArgument, "policy is {}, must be one of KVCAKE_POLICY_...",
                  read.policy);
  }
  if (read.slice_chunks_max != 0) request.slice_chunks_max = read.slice_chunks_max;
  RETURN_IF_ERROR(CheckRange(request.slice_chunks_max, 1, kSliceChunksMax, "slice_chunks_max"));
  return request;
}

Result<CacheWrite> ReadWrite(const kvcake_write* given, uint64_t slab_bytes) {
  ASSIGN_OR_RETURN(const kvcake_write read, ReadStruct(given, "write"));
  CacheWrite write{.key = KeyOf(read.key),
                   .parent = KeyOf(read.parent),
                   .position = read.position,
                   .data = static_cast<const std::byte*>(read.data),
                   .stride = read.stride == 0 ? slab_bytes : read.stride};
  RETURN_IF_ERROR(CheckRange(write.position, 0, static_cast<int>(kKeysMax), "position"));
  if (write.data == nullptr) return Fail(ErrorCode::kInvalidArgument, "data is NULL");
  RETURN_IF_ERROR(CheckRange<uint64_t>(write.stride, slab_bytes, 1ull << 40, "stride"));
  return write;
}

Result<std::vector<AsyncWrite>> ReadAsyncWrites(const kvcake_async_write* given, size_t count,
                                                int layers, uint64_t slab_bytes) {
  RETURN_IF_ERROR(CheckRange<size_t>(count, 0, kKeysMax, "count"));
  if (count > 0 && given == nullptr) return Fail(ErrorCode::kInvalidArgument, "writes is NULL");
  std::vector<AsyncWrite> writes;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("writes[{}]", i);
    ASSIGN_OR_RETURN(const kvcake_async_write read, ReadElement(given, i, name));
    RETURN_IF_ERROR(
        CheckRange(read.position, 0, static_cast<int>(kKeysMax), (name + ".position").c_str()));
    constexpr size_t kPartsMax = 4096;
    RETURN_IF_ERROR(
        CheckRange<size_t>(read.parts_per_slab, 1, kPartsMax, (name + ".parts_per_slab").c_str()));
    if (slab_bytes % read.parts_per_slab != 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "{}.parts_per_slab is {}, by which slab_bytes, {}, cannot be divided", name,
                  read.parts_per_slab, slab_bytes);
    }
    if (read.parts == nullptr) return Fail(ErrorCode::kInvalidArgument, "{}.parts is NULL", name);
    AsyncWrite write{
        .key = KeyOf(read.key), .parent = KeyOf(read.parent), .position = read.position};
    for (size_t part = 0; part < layers * read.parts_per_slab; ++part) {
      if (read.parts[part] == nullptr) {
        return Fail(ErrorCode::kInvalidArgument, "{}.parts[{}] is NULL", name, part);
      }
      write.parts.push_back(static_cast<const std::byte*>(read.parts[part]));
    }
    writes.push_back(std::move(write));
  }
  return writes;
}

}  // namespace kvcake
