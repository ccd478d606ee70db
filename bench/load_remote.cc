#include "bench/load_remote.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/bare_gets.h"
#include "bench/chunk_run.h"
#include "store/open_store.h"
#include "store/redis_client.h"
#include "store/s3_store.h"

namespace kvcake::bench {
namespace {

std::vector<std::string> NamesOf(const StoreOptions& store, const ChunkRun& run) {
  const std::string root = FilesRoot(store, run.root()).Hex();
  std::vector<std::string> names;
  for (const ChunkKey& key : run.keys()) {
    names.push_back(store.redis ? fmt::format("{}:v1:{}:{}", store.redis->prefix, root, key.Hex())
                                : S3Folder(*store.s3, FilesRoot(store, run.root())) + key.Hex());
  }
  return names;
}

// As many reads under way as the store's tier has.
Result<Rate> ReadBare(const StoreOptions& store, const ChunkRun& run,
                      const std::vector<std::string>& names) {
  const auto most = std::min<uint64_t>(run.tier().max_reads_in_flight(),
                                       run.tier().max_read_bytes_in_flight() / run.page_bytes());
  const auto at_once = static_cast<int>(std::max<uint64_t>(most, 1));
  if (store.redis) {
    const int connections = RedisClientOptions{}.connections_per_node;
    return BareRedisGets(*store.redis, names, run.page_bytes(), connections,
                         std::max(at_once / connections, 1));
  }
  return BareS3Gets(*store.s3, names, run.page_bytes(), std::min(at_once, kS3Connections));
}

struct RemoteCell {
  std::vector<double> rate, bare, share, cpu, bare_cpu;
};

void Report(const char* op, uint64_t chunk_bytes, const RemoteCell& cell,
            nlohmann::ordered_json& json) {
  fmt::print("{:<6} {:>8.1f} {:>10.0f} {:>10.0f} {:>8.1f}% {:>16} {:>10.1f}% {:>10.1f}%\n", op,
             static_cast<double>(chunk_bytes) / (1 << 20), Median(cell.rate) / 1e6,
             Median(cell.bare) / 1e6, 100 * Median(cell.share),
             fmt::format("{:.1f} to {:.1f}%", 100 * std::ranges::min(cell.share),
                         100 * std::ranges::max(cell.share)),
             100 * Median(cell.cpu), 100 * Median(cell.bare_cpu));
  json.push_back({{"op", op},
                  {"chunk_bytes", chunk_bytes},
                  {"bytes_per_s", Median(cell.rate)},
                  {"bare_bytes_per_s", Median(cell.bare)},
                  {"of_bare", Median(cell.share)},
                  {"of_bare_min", std::ranges::min(cell.share)},
                  {"of_bare_max", std::ranges::max(cell.share)},
                  {"cpu_share", Median(cell.cpu)},
                  {"bare_cpu_share", Median(cell.bare_cpu)}});
}

// Writes the chunks, and reads them in turn with the bare loop.
Status MeasureReads(const LoadOptions& options, const StoreOptions& store, ChunkRun& run,
                    RemoteCell* read) {
  RETURN_IF_ERROR(run.Write());
  const std::vector<std::string> names = NamesOf(store, run);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    Rate rate, bare;
    for (const bool ours : {repeat % 2 == 0, repeat % 2 != 0}) {  // in turn the first
      if (ours) {
        ASSIGN_OR_RETURN(rate, run.Read());
      } else {
        ASSIGN_OR_RETURN(bare, ReadBare(store, run, names));
      }
    }
    read->rate.push_back(rate.bytes_per_s);
    read->bare.push_back(bare.bytes_per_s);
    read->share.push_back(rate.bytes_per_s / bare.bytes_per_s);
    read->cpu.push_back(rate.cpu_share);
    read->bare_cpu.push_back(bare.cpu_share);
  }
  return {};
}

Status RemoveAll(const ChunkRun& run) {
  for (const ChunkKey& key : run.keys()) RETURN_IF_ERROR(run.tier().Evict(key));
  return {};
}

}  // namespace

Status MeasureRemote(const LoadOptions& options) {
  ASSIGN_OR_RETURN(StoreOptions store, ReadStoreUrl(options.store));
  if (store.keeps_files()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--store {}: bench load takes redis:// and s3:// here; --dir is for directories",
                options.store);
  }
  if (store.redis && store.redis->is_cluster) {
    return Fail(ErrorCode::kUnsupported,
                "--store {}: the bare loop that is compared with asks one server, not a cluster",
                store.Place());
  }
  if (store.redis && store.redis->is_tls) {
    return Fail(ErrorCode::kUnsupported,
                "--store {}: the bare loop that is compared with knows no TLS", store.Place());
  }
  if (store.codec.value_or(Codec::kRaw) != Codec::kRaw || store.key) {
    return Fail(ErrorCode::kUnsupported, "--store {}: bench load reads raw chunks", store.Place());
  }
  LoadStoreCodec(store);
  fmt::print("{}, {} MiB each, median of {} repeats, from {}\n", DeviceName(options.path),
             options.bytes >> 20, options.repeats, store.Place());
  fmt::print("{:<6} {:>8} {:>10} {:>10} {:>9} {:>16} {:>11} {:>11}\n", "op", "MiB", "MB/s",
             "bare MB/s", "of bare", "from - to", "of one core", "bare");
  auto json = nlohmann::ordered_json::array();
  for (const uint64_t chunk_bytes : options.chunk_bytes) {
    ASSIGN_OR_RETURN(const auto run,
                     ChunkRun::Open(store, chunk_bytes, options.bytes, options.path));
    RemoteCell read;
    const Status measured = MeasureReads(options, store, *run, &read);
    const Status removed = RemoveAll(*run);
    RETURN_IF_ERROR(measured);
    RETURN_IF_ERROR(removed);
    Report("read", chunk_bytes, read, json);
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
