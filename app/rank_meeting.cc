#include "app/rank_meeting.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "app/flags.h"
#include "bench/harness.h"
#include "engine/patient_look.h"
#include "engine/rank_costs.h"
#include "engine/warm_up.h"
#include "runahead/chain_planner.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

constexpr size_t kFactBytesMax = 100;  // all of them are a message

// What tells machines apart whose partitions and speeds differ.
std::string MachineName(Runtime& runtime) {
  return fmt::format(
      "{}, {} threads",
      runtime.emulated() ? runtime.profile()->name : DeviceName(runtime.model().numeric_path()),
      runtime.threads().size());
}

}  // namespace

std::string DefaultPartitionTable() { return bench::CacheDir() + "/partitions.json"; }

void AddPartitionTableFlag(CLI::App& app, std::string* path) {
  app.add_option("--partition-table", *path,
                 "a file of partitions that kvcake runahead search has found (default: " +
                     DefaultPartitionTable() + ")");
}

Status WarmUpFar(Runtime& runtime) {
  if (runtime.emulated()) return {};
  return WarmUpFar(runtime.model(), runtime.pool(), runtime.compute_cost(), Clock::Real());
}

void AddPartitionFlags(CLI::App& app, RankFlags* flags) {
  app.add_option("--partition", flags->partition,
                 "which tokens each of them computes: analytic, even, table (of "
                 "--partition-table), shares (0.6,0.4) or tokens (5000,3192)")
      ->capture_default_str();
  AddPartitionTableFlag(app, &flags->partition_table);
  app.add_option("--link-rate", flags->link_rate_bytes_per_s,
                 "of the network from each of them to the next, e.g. 10Gbit or 1GB (a second), for "
                 "--partition analytic (default: measured when they meet)")
      ->transform(RateValue())
      ->check(Positive());
  app.add_option("--link-latency", flags->link_latency_s, "of a message on it, e.g. 50us")
      ->transform(DurationValue())
      ->check(NotNegative());
}

void AddRankLimitFlags(CLI::App& app, RankFlags* flags) {
  app.add_option("--rank-timeout", flags->timeout_s, "a rank that is silent for so long is lost")
      ->transform(DurationValue())
      ->check(CLI::Range(0.1, 1e6))
      ->default_str("30s");
  app.add_option("--rank-tokens-max", flags->tokens_max,
                 "most tokens that one of them computes; they take memory for activations")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
}

void WarnOfPartitionFlags(const CLI::App& command) {
  std::vector<std::string> given;
  for (const char* const flag :
       {"--partition", "--partition-table", "--link-rate", "--link-latency"}) {
    if (command.count(flag) > 0) given.emplace_back(flag);
  }
  if (given.empty()) return;
  spdlog::warn("{}: one process computes all of a prompt, as there are no ranks to divide it",
               fmt::join(given, ", "));
}

void AddRankCountFlag(CLI::App& app, RankFlags* flags) {
  app.add_option("--ranks", flags->ranks,
                 "prefill the prompt with so many processes, as a chain (docs/runahead.md): on "
                 "this machine, or, without this flag, those that mpirun has started")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

void AddRankFlags(CLI::App& app, RankFlags* flags) {
  AddRankCountFlag(app, flags);
  AddPartitionFlags(app, flags);
  AddRankLimitFlags(app, flags);
}

std::vector<CLI::Option*> AddClusterFlags(CLI::App& app, RankFlags* flags) {
  return {
      app.add_option("--cluster-key-file", flags->cluster_key_file,
                     "a secret of 16 bytes at least (openssl rand -hex 32), the same for a server "
                     "and its workers, that none but its owner may read: without it they meet on "
                     "this machine only. Or KVCAKE_CLUSTER_KEY in the environment"),
      app.add_option("--tls-cert", flags->tls.certificate,
                     "speak TLS with the other ranks, with this PEM file's certificates, this "
                     "rank's first; they must show one, too, that --tls-ca has signed"),
      app.add_option("--tls-key", flags->tls.key,
                     "a PEM file with the private key of --tls-cert, that none but its owner may "
                     "read"),
      app.add_option("--tls-ca", flags->tls.ca,
                     "a PEM file with the authority that signs the ranks' certificates, and no "
                     "others")};
}

std::vector<Fact> FactsOf(Runtime& runtime) {
  const KvIdentity& model = runtime.model().identity();
  std::vector<Fact> facts = {{"version", KVCAKE_VERSION}};
  for (const auto& [name, value] : model.fields()) {
    facts.push_back({name, value.substr(0, kFactBytesMax)});
  }
  facts.push_back({"model", model.Root().Hex()});  // of what values say beyond that
  facts.push_back({"numeric path", NumericPathName(runtime.model().numeric_path())});
  facts.push_back({"--rank-tokens-max", std::to_string(runtime.options().rank_tokens_max)});
  return facts;
}

Result<Survey> MeetRanks(Comm& comm, Runtime& runtime, Seconds timeout) {
  RETURN_IF_ERROR(Handshake(comm, FactsOf(runtime), timeout));
  return SurveyRanks(comm, MachineName(runtime), timeout);
}

Status WorkForLeader(Comm& comm, Runtime& runtime, const WorkOptions& options) {
  const auto restore = [&](const RankJob& job) -> Status {
    const auto prefix = std::span(job.tokens).first(job.origin + 1);
    Request request{.prompt = {prefix.begin(), prefix.end()}, .max_tokens = 1, .salt = job.salt};
    request.store = false;
    Status wanted;
    const auto after_step = [&](SequenceId id) {
      if (options.still_wanted) wanted = options.still_wanted();
      if (!wanted) runtime.engine().Cancel(id);
    };
    RETURN_IF_ERROR(runtime.engine().Answer(std::move(request), after_step).map([](auto) {}));
    return wanted;
  };
  PatientLook look(runtime.restorer(), Clock::Real());
  const auto kept = [&](std::span<const ChunkKey> keys) {
    const std::vector<bool> held = look.Held(keys);
    return static_cast<int>(std::find(held.begin(), held.end(), false) - held.begin());
  };
  return WorkForChain(comm, {.model = runtime.model(),
                             .pool = runtime.pool(),
                             .restore_prefix = restore,
                             .options = {.timeout = options.timeout,
                                         .restore_timeout = options.restore_timeout,
                                         .tokens_max = runtime.options().rank_tokens_max,
                                         .authenticated = options.authenticated,
                                         .staging = runtime.rank_staging()},
                             .kept = kept});
}

LinkCost LinkOf(const RankFlags& flags, const Survey& survey) {
  return {.alpha_s = flags.link_latency_s.value_or(survey.latency_s),
          .bytes_per_s = flags.link_rate_bytes_per_s.value_or(survey.bytes_per_s)};
}

PartitionTableKey TableKeyOf(Runtime& runtime, const Survey& survey) {
  PartitionTableKey key;
  key.model = runtime.model().identity().Root().Hex();
  key.ranks = static_cast<int>(survey.machines.size());
  for (const std::string& machine : survey.machines) {
    if (!key.machine.empty()) key.machine += "; ";
    key.machine += machine;
  }
  return key;
}

namespace {

// Beside the store, as what this process has learnt of itself.
std::string SpeedsPath(Runtime& runtime, const PartitionTableKey& key) {
  if (runtime.stores().empty()) return {};
  const StoreOptions& store = runtime.options().stores[0];
  if (!store.keeps_files()) return {};
  return fmt::format(
      "{}/ranks-{:016x}.json",
      StoreDir(store.dir).RootDir(FilesRoot(store, runtime.model().identity().Root())),
      Xxh3_64(std::as_bytes(std::span(key.machine))));
}

// The search that finds what these flags lack: an entry is for all of them.
std::string SearchFor(const RuntimeOptions& options, const RankFlags& flags, int ranks) {
  std::string command =
      fmt::format("kvcake runahead search --ranks {} --model {}", ranks, options.model_dir);
  if (options.threads > 0) command += fmt::format(" --threads {}", options.threads);
  if (options.weights == WeightFormat::kInt8) command += " --weights int8";
  if (options.chunk_tokens != RuntimeOptions().chunk_tokens) {
    command += fmt::format(" --chunk-tokens {}", options.chunk_tokens);
  }
  if (!flags.partition_table.empty()) {
    command += fmt::format(" --partition-table {}", flags.partition_table);
  }
  return command + " --context 4096";
}

}  // namespace

Result<std::unique_ptr<ChainPlanner>> PlannerFor(Runtime& runtime, const RankFlags& flags,
                                                 const Survey& survey) {
  const PartitionTableKey key = TableKeyOf(runtime, survey);
  ChainPlannerOptions options = PlannerOptionsOf(runtime, LinkOf(flags, survey));
  options.partition = flags.partition;
  if (!flags.link_rate_bytes_per_s || !flags.link_latency_s) {
    options.link_of = [flags](const Survey& newer) { return LinkOf(flags, newer); };
  }
  options.table_key = key;
  options.speeds_path = SpeedsPath(runtime, key);
  if (flags.partition != "table") return NewChainPlanner(std::move(options));
  const std::string path =
      flags.partition_table.empty() ? DefaultPartitionTable() : flags.partition_table;
  auto table = PartitionTable::Load(path);
  if (!table && table.error().code != ErrorCode::kNotFound) {
    return tl::unexpected<Error>(table.error());
  }
  if (table) options.table = *std::move(table);
  auto planner = NewChainPlanner(std::move(options));
  if (planner || planner.error().code != ErrorCode::kNotFound) return planner;
  return Fail(ErrorCode::kNotFound,
              "--partition table: {} has none for this model on {} ranks of {}: find one with {}",
              path, key.ranks, key.machine, SearchFor(runtime.options(), flags, key.ranks));
}

}  // namespace kvcake
