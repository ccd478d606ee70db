#include "app/flags.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/cpu.h"
#include "server/chat_template.h"

namespace kvcake {

CLI::AsSizeValue SizeValue() {
  // By itself it would take "-5" for nearly 2^64.
  struct Unsigned : CLI::AsSizeValue {
    Unsigned() : CLI::AsSizeValue(/*kb_is_1000=*/false) {
      func_ = [parse = func_](std::string& text) {
        if (text.starts_with('-')) return "a size is not negative: " + text;
        if (text.find('.') == text.npos) return parse(text);
        return "a size is a whole number and a unit, as 1536MiB: " + text;
      };
    }
  };
  return Unsigned();
}

CLI::AsNumberWithUnit RateValue() {
  std::map<std::string, double> units = {
      {"bit", 1.0 / 8},  {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"kbps", 1e3 / 8},
      {"Mbps", 1e6 / 8}, {"Gbps", 1e9 / 8}, {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},
      {"KiB", 1 << 10},  {"MiB", 1 << 20},  {"GiB", 1 << 30}};
  // By case: "Mb" could be either, and is refused.
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE, "RATE");
}

CLI::AsNumberWithUnit DurationValue() {
  std::map<std::string, double> units = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                         {"min", 60},  {"h", 3600},  {"d", 86400}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_INSENSITIVE, "TIME");
}

namespace {

CLI::Validator NumberThat(bool (*holds)(double), const std::string& what, const char* name) {
  const auto check = [=](std::string& text) {
    double value = 0;
    const bool is_finite = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return is_finite && holds(value) ? "" : fmt::format("{} is not {}", text, what);
  };
  return CLI::Validator(check, name);
}

}  // namespace

CLI::Validator Between(double least, double most) {
  const CLI::Range range(least, most);
  const auto check = [range](std::string& text) {
    double value = 0;
    const bool none = CLI::detail::lexical_cast(text, value) && std::isnan(value);
    return none ? text + " is no number" : range(text);
  };
  return CLI::Validator(check, range.get_description());
}

CLI::Validator Positive() {
  return NumberThat([](double value) { return value > 0; }, "above 0", "POSITIVE");
}

CLI::Validator NotNegative() {
  return NumberThat([](double value) { return value >= 0; }, "0 or above", "NONNEGATIVE");
}

CLI::Validator Natural() {
  const auto check = [](std::string& text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return std::string();
    return fmt::format("{} is not a whole number from 0 to {}", text, UINT64_MAX);
  };
  return CLI::Validator(check, "NATURAL");
}

namespace {

void AddSize(CLI::App& app, const char* name, uint64_t* value, const char* help) {
  app.add_option(name, *value, help)
      ->transform(SizeValue())
      ->default_str(*value % (1 << 30) == 0 ? fmt::format("{}GiB", *value >> 30)
                                            : fmt::format("{}MiB", *value >> 20));
}

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
  app.add_flag(
      "--single-flight,!--no-single-flight", options->single_flight,
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

void AddCudaFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option("--gpu-memory-utilization", options->gpu_memory_utilization,
                 "with --backend cuda, the share of its memory for weights, scratch and KV pages")
      ->check(Between(0.01, 1.0))
      ->capture_default_str();
  AddSize(app, "--staging-capacity", &options->staging_capacity_bytes,
          "with --backend cuda, page-locked host memory that a store's chunks pass through, and as "
          "much again for what ranks send each other");
  app.add_option(
      "--cuda-device", options->cuda_device,
      "with --backend cuda, the device, as CUDA_VISIBLE_DEVICES names it (default: the "
      "first of these; of ranks on one machine each the next, round and round; where the "
      "variable is not set, 0, 1, ...)");
  app.add_flag("--ram-pinned,!--no-ram-pinned", options->ram_pinned,
               "with --backend cuda, page-lock the memory of --ram-capacity (default): chunks are "
               "copied straight from it; otherwise they pass through --staging-capacity");
  app.add_flag("--enforce-eager", options->enforce_eager,
               "with --backend cuda, enqueue the kernels of every step one by one: no CUDA graphs");
  AddAttentionBackendFlag(app, &options->attention_backend);
}

}  // namespace

void AddSeconds(CLI::App& app, const char* name, Seconds* value, const char* help) {
  app.add_option_function<double>(
         name, [value](double s) { *value = Seconds(s); }, help)
      ->transform(DurationValue())
      ->check(CLI::Range(0.001, 1e6))
      ->default_str(fmt::format("{}s", value->count()));
}

void AddChunkTokensFlag(CLI::App& app, int* tokens, const char* help) {
  app.add_option("--chunk-tokens", *tokens, help)
      ->check(CLI::Range(16, 1 << 16))
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::stol(text) % 16 == 0 ? std::string() : "must be a multiple of 16";
          },
          "MULTIPLE OF 16"))
      ->capture_default_str();
}

WeightFormat WeightFormatFromName(const std::string& name) {
  return name == WeightFormatName(WeightFormat::kInt8) ? WeightFormat::kInt8 : WeightFormat::kBf16;
}

void AddWeightsFlag(CLI::App& app, WeightFormat* weights) {
  app.add_option_function<std::string>(
         "--weights", [weights](const std::string& name) { *weights = WeightFormatFromName(name); },
         "how weights are held: int8 (rounded when loaded, a scale for each row) is faster and "
         "takes half the memory; its chunks are its own")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->default_str("bf16");
}

void AddNumericPathFlag(CLI::App& app, NumericPath* path) {
  static constexpr std::array kPaths = {NumericPath::kBf16Dot, NumericPath::kF32Fma,
                                        NumericPath::kF32};
  std::vector<std::string> names;
  for (const NumericPath known : kPaths) names.push_back(NumericPathName(known));
  app.add_option_function<std::string>(
         "--numeric-path",
         [path](const std::string& name) {
           for (const NumericPath known : kPaths) {
             if (name == NumericPathName(known)) *path = known;
           }
         },
         "the arithmetic to use (default: the fastest that this CPU has)")
      ->check(CLI::IsMember(names));
  app.add_option_function<std::string>(
         "--backend",
         [path](const std::string& name) {
           if (name == "cuda") *path = NumericPath::kBf16Tensor;
         },
         "where compute runs, and KV pages lie; cuda: on one device")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->excludes(app.get_option("--numeric-path"))
      ->default_str("cpu");
}

void AddAttentionBackendFlag(CLI::App& app, AttentionBackend* backend) {
  static const std::map<std::string, AttentionBackend> kBackends = {
      {"auto", AttentionBackend::kAuto},
      {"wgmma", AttentionBackend::kWgmma},
      {"mma", AttentionBackend::kMma}};
  app.add_option_function<std::string>(
         "--attention-backend",
         [backend](const std::string& name) { *backend = kBackends.at(name); },
         "with --backend cuda, what multiplies in attention: wgmma, for compute capability 9.0 as "
         "of an H100; mma, for all; auto: wgmma where it can be")
      ->check(CLI::IsMember(kBackends))
      ->default_str("auto");
}

void AddModelFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option("--model,model", options->model_dir,
                 "Hugging Face model directory: config.json, tokenizer.json, *.safetensors")
      ->required();
  AddSize(app, "--ram-capacity", &options->ram_capacity_bytes,
          "memory for KV pages, in use and cached; with --backend cuda, whose pages are the "
          "device's, host memory for chunks behind them (0: none)");
  AddChunkTokensFlag(
      app, &options->chunk_tokens,
      "tokens of a chunk: what is hashed, kept and loaded as one; a multiple of 16");
  app.add_option("--threads", options->threads,
                 "compute threads (default: every core the process may use)")
      ->check(CLI::Range(1, 1024));
  app.add_option_function<std::string>(
         "--cpu-list",
         [options](const std::string& list) { options->cpus = ParseCpuList(list).value(); },
         "pin the compute threads to these CPUs, e.g. 0-3,7 (default: not pinned)")
      ->check(CLI::Validator(
          [](std::string& list) {
            const auto cpus = ParseCpuList(list);
            return cpus ? std::string() : cpus.error().message;
          },
          "CPUS"));
  AddWeightsFlag(app, &options->weights);
  app.add_flag("--disable-sliding-window", options->within_window,
               "where a model's attention has a sliding window, which kvcake does not compute, let "
               "its context end with the window; else the model is refused");
  AddNumericPathFlag(app, &options->path);
  AddCudaFlags(app, options);
}

void AddRuntimeFlags(CLI::App& app, RuntimeOptions* options, const char* slice_tokens) {
  AddModelFlags(app, options);
  app.add_option(slice_tokens, options->slice_tokens,
                 "most tokens that one step computes; at least a chunk")
      ->default_str(kDefaultSliceTokens);
  AddStoreFlags(app, options);
  app.add_flag("--durable", options->durable,
               "let chunks that are kept survive a power cut (slower); without it one may be lost, "
               "but never loaded wrong")
      ->needs(app.get_option("--store"));
}

void AddScheduleFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option_function<std::string>(
         "--schedule", [options](const auto& name) { options->schedule = *ScheduleFromName(name); },
         "which prompts a step computes first: adaptive: those stored nowhere, the shortest first, "
         "with aging, as restorations go on by loading; fcfs: in order of arrival")
      ->check(CLI::IsMember({"adaptive", "fcfs"}))
      ->default_str(std::string(ScheduleName(options->schedule)));
  AddSeconds(app, "--restore-wait-max", &options->restore_wait_max,
             "with --schedule adaptive: after this long without any progress a prompt gets a slice "
             "before all others");
  AddSeconds(app, "--pass-over-max", &options->pass_over_max,
             "for so long a request that waits for KV pages is passed over by later ones for which "
             "there are enough");
  app.add_option_function<std::string>(
         "--load-order",
         [options](const auto& name) { options->load_order = *LoadOrderFromName(name); },
         "whose chunks are read first: srpt: of the prompt with the least left, with aging; fifo: "
         "in order of arrival; fair: in turn")
      ->check(CLI::IsMember({"srpt", "fifo", "fair"}))
      ->default_str(std::string(LoadOrderName(options->load_order)));
}

std::string NamesOf(const std::vector<const CLI::App*>& commands) {
  const auto name = [](const CLI::App* command) { return command->get_name(); };
  return CLI::detail::join(commands, name, ", ");
}

int Fatal(const Error& error) {
  // Not by fmt::print, which throws where stderr cannot be written.
  std::fputs(fmt::format("kvcake: {}\n", error.message).c_str(), stderr);
  return 1;
}

void AddPolicyFlag(CLI::App& app, std::string* policy) {
  app.add_option("--policy", *policy,
                 "how a prompt's KV cache is restored: cake computes and loads at once, compute "
                 "and load do only the one (load computes what is kept nowhere)")
      ->check(CLI::IsMember({"cake", "compute", "load"}))
      ->capture_default_str();
}

void AddSamplingFlags(CLI::App& app, SamplingParams* sampling) {
  app.add_option("--temperature", sampling->temperature, "0: always the likeliest token")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--top-k", sampling->top_k, "sample among the K likeliest; 0: all")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--top-p", sampling->top_p,
                 "sample among the likeliest that together have this probability")
      ->check(Between(1e-9, 1.0))
      ->capture_default_str();
  app.add_option("--seed", sampling->seed,
                 "of the sampling; the same seed (also the default) gives the same answer")
      ->check(Natural())
      ->capture_default_str();
}

void AddChatTemplateFlags(CLI::App& app, ChatTemplateOptions* options) {
  app.add_option("--chat-template", options->file,
                 "a file with a chat template, instead of the model's own");
  app.add_option("--chat-template-content-format", options->content_format,
                 "string: parts of a message are joined; openai: the template gets them as they "
                 "are; auto: as the template takes them")
      ->check(CLI::IsMember({"auto", "string", "openai"}))
      ->capture_default_str();
  app.add_option("--chat-template-steps", options->limits.steps,
                 "most steps that a template may take to write one chat")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--chat-template-output", options->limits.output_bytes,
                 "most bytes that it may write")
      ->transform(SizeValue())
      ->default_str("64MiB");
}

}  // namespace kvcake
