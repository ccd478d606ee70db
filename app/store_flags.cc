// The flags of stores: where chunks are kept, how, and by what link they are loaded.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "app/flags.h"

namespace kvcake {
namespace {

// As given: each once for all directories, or once for each.
struct StoreFlags {
  std::vector<std::string> dirs, traces;
  std::string codec, codec_tables;
  std::vector<uint64_t> capacities;
  std::vector<int> call_threads;
  std::vector<double> free_shares, open_waits, rates, latencies, stall_shares, stalls,
      write_stall_shares, write_stalls;
};

// After --store, without which it would be of no use, and is an error.
template <typename T>
CLI::Option* AddEach(CLI::App& app, const char* name, std::vector<T>* values, const char* help) {
  return app.add_option(name, *values, help)
      ->allow_extra_args(false)
      ->needs(app.get_option("--store"));
}

// values[i] or the only one, where there are any.
template <typename T>
std::optional<T> Each(const char* name, const std::vector<T>& values, size_t i, size_t stores) {
  if (values.empty()) return std::nullopt;
  if (values.size() != 1 && values.size() != stores) {
    throw CLI::ValidationError(
        name, fmt::format("is given {} times for {} --store: give it once for all or once for each",
                          values.size(), stores));
  }
  return values[values.size() == 1 ? 0 : i];
}

bool HasTables(const StoreOptions& store) {
  return FindCodec(store.codec.value_or(Codec::kRaw))->fit != nullptr;
}

void CheckTablesAreOfUse(const std::string& url, const StoreOptions& store) {
  if (store.codec_tables.empty() || HasTables(store)) return;
  throw CLI::ValidationError(
      "--store", fmt::format("{}: codec {} has no tables, as cachegen and kvquant3 have", url,
                             FindCodec(store.codec.value_or(Codec::kRaw))->name));
}

std::vector<StoreOptions> Stores(const StoreFlags& flags) {
  std::vector<StoreOptions> stores;
  const size_t n = flags.dirs.size();
  for (size_t i = 0; i < n; ++i) {
    auto named = ReadStoreUrl(flags.dirs[i]);
    if (!named && named.error().code == ErrorCode::kIo)  // as a key that is missing
      throw std::runtime_error(named.error().message);
    if (!named) throw CLI::ValidationError("--store", named.error().message);
    StoreOptions store = std::move(*named);
    if (!store.codec && !flags.codec.empty()) store.codec = (*CodecNamed(flags.codec))->codec;
    CheckTablesAreOfUse(flags.dirs[i], store);
    if (HasTables(store) && store.codec_tables.empty()) store.codec_tables = flags.codec_tables;
    if (auto v = Each("--disk-capacity", flags.capacities, i, n)) store.capacity_bytes = *v;
    if (auto v = Each("--disk-free-min", flags.free_shares, i, n)) store.free_share_min = *v;
    if (auto v = Each("--store-threads", flags.call_threads, i, n)) store.call_threads = *v;
    if (auto v = Each("--store-open-wait", flags.open_waits, i, n)) store.open_wait = Seconds(*v);
    store.load_rate_bytes_per_s = Each("--load-rate", flags.rates, i, n);
    if (auto v = Each("--load-latency", flags.latencies, i, n)) store.load_latency = Seconds(*v);
    if (auto v = Each("--load-trace", flags.traces, i, n)) store.load_trace = *v;
    if (auto v = Each("--load-stall-share", flags.stall_shares, i, n)) store.load_stall_share = *v;
    if (auto v = Each("--load-stall", flags.stalls, i, n)) store.load_stall = Seconds(*v);
    if (auto v = Each("--write-stall-share", flags.write_stall_shares, i, n)) {
      store.write_stall_share = *v;
    }
    if (auto v = Each("--write-stall", flags.write_stalls, i, n)) store.write_stall = Seconds(*v);
    stores.push_back(std::move(store));
  }
  if (!flags.codec_tables.empty() && std::ranges::none_of(stores, HasTables)) {
    throw CLI::ValidationError("--codec-tables",
                               "no store has a codec with tables: say --kv-codec cachegen or "
                               "kvquant3, or codec= of the store");
  }
  return stores;
}

// Where chunks are kept, and how.
void AddPlaceFlags(CLI::App& app, StoreFlags* flags) {
  app.add_option(
         "--store", flags->dirs,
         "directory that keeps KV chunks between runs and processes, or a Redis server, "
         "redis://HOST:PORT (rediss:// with TLS; redis+cluster://HOST:PORT,HOST:PORT; the "
         "password in KVCAKE_REDIS_PASSWORD), or S3, s3://BUCKET/PREFIX (credentials in "
         "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or the instance's role); without it "
         "nothing is kept or loaded. May be "
         "repeated, the fastest first: chunks are loaded from all at once, and new ones kept in "
         "the first. After a ? it may have options of its own: codec and tables, that go before "
         "--kv-codec and --codec-tables, key-file, by which it is encrypted, writes, that goes "
         "before --store-writes and is never for all but the first unless they say it, for Redis "
         "prefix, tls-ca, tls-cert and tls-key, and for S3 endpoint, region, addressing, profile "
         "and tls-ca; a ? in a directory's name is written %3F")
      ->allow_extra_args(false);
  app.add_option("--kv-codec", flags->codec,
                 "how stores keep chunks, unless they say it themselves: raw, lossless (the same "
                 "bits, about a third smaller), int8, cachegen or kvquant3 (lossy: answers differ, "
                 "and such a run shares chunks with none but its like) (default: raw)")
      ->check([](const std::string& name) {
        const auto row = CodecNamed(name);
        return row ? std::string() : row.error().message;
      })
      ->needs(app.get_option("--store"));
  app.add_option("--codec-tables", flags->codec_tables,
                 "tables of cachegen or kvquant3, made by kvcake codec fit: a file, or the "
                 "directory they are in (default: the store's)")
      ->needs(app.get_option("--store"));
}

// Links that are slower or worse than the disk is.
void AddLinkFlags(CLI::App& app, StoreFlags* flags) {
  AddEach(app, "--load-rate", &flags->rates,
          "let loads pass a link of this rate, e.g. 200Mbit, 10Gbit or 25MB (a second) (default: "
          "as fast as the disk)")
      ->transform(RateValue())
      ->check(Positive());
  AddEach(app, "--load-latency", &flags->latencies, "added to each read on that link, e.g. 1ms")
      ->transform(DurationValue())
      ->check(NotNegative());
  AddEach(app, "--load-trace", &flags->traces,
          "a file of how that link changes: lines of seconds since the first read, bytes/s, "
          "latency in seconds");
  AddEach(app, "--load-stall-share", &flags->stall_shares,
          "for drills: let this share of reads answer late, by --load-stall, e.g. 0.01")
      ->check(Between(0.0, 1.0));
  AddEach(app, "--load-stall", &flags->stalls, "how late (default: 500ms)")
      ->transform(DurationValue())
      ->check(NotNegative());
  AddEach(app, "--write-stall-share", &flags->write_stall_shares,
          "for drills: let this share of writes take longer, by --write-stall, e.g. 0.01")
      ->check(Between(0.0, 1.0));
  AddEach(app, "--write-stall", &flags->write_stalls, "by how much (default: 500ms)")
      ->transform(DurationValue())
      ->check(NotNegative());
}

}  // namespace

void AddStoreFlags(CLI::App& app, RuntimeOptions* options) {
  auto flags = std::make_shared<StoreFlags>();
  AddPlaceFlags(app, flags.get());
  AddEach(app, "--disk-capacity", &flags->capacities,
          "most bytes of --store; the chunks used longest ago go first (default: 20GiB). This, "
          "--disk-free-min, --store-threads, --store-open-wait, and the --load and --write-stall "
          "flags: once for all stores, or once for each")
      ->transform(SizeValue());
  AddEach(app, "--disk-free-min", &flags->free_shares,
          "the share of its file system that --store leaves free: when less is, the chunks used "
          "longest ago make way; 0: none (default: 0.01)")
      ->check(Between(0.0, 0.99));
  AddEach(app, "--store-threads", &flags->call_threads,
          "files of --store that are opened, and as many that are looked for, at the same time, as "
          "far as its file system takes long for each (default: 16)")
      ->check(CLI::Range(1, kCallThreadsMax));
  AddEach(app, "--store-open-wait", &flags->open_waits,
          "how long to wait, at the start, for a look at all that is in --store; what is not known "
          "by then is looked for when it is wanted (default: 1s)")
      ->transform(DurationValue())
      ->check(NotNegative());
  AddLinkFlags(app, flags.get());
  app.add_flag("--promote", options->promote,
               "copy what was loaded from a --store to those before it that keep chunks")
      ->needs(app.get_option("--store"));
  app.add_option_function<std::string>(
         "--store-writes",
         [options](const std::string& name) { options->store_writes = *StoreWritesFromName(name); },
         "which chunks the first --store keeps: always, those that come up for the second time, or "
         "never")
      ->check(CLI::IsMember({"always", "second-use", "never"}))
      ->default_str("always");
  app.add_flag("--single-flight,!--no-single-flight", options->single_flight,
               "processes that share a --store, and keep all chunks there, compute each chunk "
               "once (default): while one computes it and keeps it at once, others wait for it, as "
               "long as that is no slower");
  AddSeconds(app, "--single-flight-min", &options->single_flight_min,
             "only of prompts that take at least so long to compute");
  app.add_option(
         "--write-queue-share", options->write_queue_share,
         "most of the KV pages that chunks may hold while they wait to be written or are, to "
         "the RAM tier and the store together; when a request wants a page and none is free "
         "they give theirs")
      ->check(Between(0.0, 1.0))
      ->capture_default_str();
  AddSeconds(app, "--stall-timeout", &options->stall_timeout,
             "a store from which nothing comes for so long is given up until something does; "
             "requests that cannot go on for the pages it holds end with an error as long after");
  app.add_option_function<double>(
         "--store-ttl", [options](double s) { options->store_ttl = Seconds(s); },
         "remove chunks that nobody has used for this long, e.g. 12h or 7d (default: never)")
      ->transform(DurationValue())
      ->check(CLI::Range(1.0, 1e9))
      ->needs(app.get_option("--store"));
  app.parse_complete_callback([flags, options] { options->stores = Stores(*flags); });
}

}  // namespace kvcake
