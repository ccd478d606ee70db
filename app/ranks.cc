#include "app/ranks.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/flags.h"
#include "base/cpu.h"
#include "bench/harness.h"
#include "comm/handshake.h"
#include "engine/warm_up.h"
#include "runahead/chain_planner.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

constexpr Seconds kMeetTimeout{600};

// Words of this process's command line.
std::vector<std::string> CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> words;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('\0', at);
    words.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

int EnvironmentInt(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// What tells machines apart whose partitions and speeds differ.
std::string MachineName(Runtime& runtime) {
  return fmt::format("{}, {} threads", runtime.emulated() ? runtime.profile()->name : CpuName(),
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

SliceTime SliceTimeOf(Runtime& runtime) {
  if (runtime.emulated()) return runtime.profile()->time();
  const ComputeFit fit = runtime.compute_cost().fit();
  return {.c0 = fit.c0, .g = fit.g, .b = fit.b, .a = fit.a};
}

ChainCost ChainCostOf(Runtime& runtime, int ranks, const LinkCost& link) {
  const KvLayout& layout = runtime.pool().layout();
  return {.ranks = std::vector<RankCost>(ranks, {.time = SliceTimeOf(runtime)}),
          .link = link,
          .layers = layout.layers,
          .bytes_per_token_layer = static_cast<double>(layout.bytes_per_token()) / layout.layers};
}

void AddRankFlags(CLI::App& app, RankFlags* flags) {
  app.add_option("--ranks", flags->ranks,
                 "prefill the prompt with so many processes, as a chain (docs/runahead.md): on "
                 "this machine, or, without this flag, those that mpirun has started")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--partition", flags->partition,
                 "which tokens each of them computes: analytic, even, table (of "
                 "--partition-table), shares (0.6,0.4) or tokens (5000,3192)")
      ->capture_default_str();
  AddPartitionTableFlag(app, &flags->partition_table);
  app.add_option("--link-rate", flags->link_rate_bytes_per_s,
                 "of the network from each of them to the next, e.g. 10Gbit or 1GB (a second), for "
                 "--partition analytic (default: measured when they meet)")
      ->transform(RateValue())
      ->check(CLI::PositiveNumber);
  app.add_option("--link-latency", flags->link_latency_s, "of a message on it, e.g. 50us")
      ->transform(DurationValue())
      ->check(CLI::NonNegativeNumber);
  app.add_option("--rank-timeout", flags->timeout_s, "a rank that is silent for so long is lost")
      ->transform(DurationValue())
      ->check(CLI::Range(0.1, 1e6))
      ->default_str("30s");
  app.add_option("--rank-tokens-max", flags->tokens_max,
                 "most tokens that one of them computes; they take memory for activations")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
}

Status StartRanks(const RankFlags& flags) {
  if (flags.ranks == 1 || StartedByMpirun()) return {};
  std::vector<std::string> words = {"mpirun",
                                    "-n",
                                    std::to_string(flags.ranks),
                                    "--stdin",
                                    std::to_string(flags.ranks - 1),
                                    "--bind-to",
                                    "none",
                                    "--oversubscribe"};
  std::vector<std::string> own = CommandLine();
  own[0] = std::filesystem::read_symlink("/proc/self/exe");  // wherever mpirun is, and its ranks
  words.insert(words.end(), own.begin(), own.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  if (geteuid() == 0) {  // as this process, which nobody has asked for its reasons
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  execvp(arguments[0], arguments.data());
  return Fail(ErrorCode::kNotFound, "--ranks {}: cannot start mpirun ({}): install openmpi-bin",
              flags.ranks, std::strerror(errno));
}

Result<std::unique_ptr<Ranks>> Ranks::Join(const RankFlags& flags) {
  if (!StartedByMpirun()) return nullptr;
  std::unique_ptr<Ranks> ranks(new Ranks(flags));
  ASSIGN_OR_RETURN(ranks->session_, StartMpi({}));
  if (ranks->session_->size() == 1) return nullptr;
  ranks->comm_ = ranks->session_->NewComm();
  return ranks;
}

void Ranks::Divide(RuntimeOptions* options) const {
  const int here = EnvironmentInt("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  if (options->threads == 0 && options->cpus.empty()) {
    options->threads = std::max(1, UsableCores() / here);
  }
  options->rank_tokens_max = flags_.tokens_max;
  options->keep_costs = leads();  // the others compute no slices that tell of them
}

Status Ranks::Meet(Runtime& runtime) {
  const Fact facts[] = {{"version", KVCAKE_VERSION},
                        {"model", runtime.model().identity().Root().Hex()},
                        {"numeric path", NumericPathName(runtime.model().numeric_path())}};
  // One rank may have to load the model from a slow disk.
  RETURN_IF_ERROR(Handshake(*comm_, facts, std::max(kMeetTimeout, Seconds(flags_.timeout_s))));
  ASSIGN_OR_RETURN(survey_, SurveyRanks(*comm_, MachineName(runtime), Seconds(flags_.timeout_s)));
  return {};
}

LinkCost Ranks::link() const {
  return {.alpha_s = flags_.link_latency_s.value_or(survey_.latency_s),
          .bytes_per_s = flags_.link_rate_bytes_per_s.value_or(survey_.bytes_per_s)};
}

PartitionTableKey Ranks::table_key(Runtime& runtime) const {
  PartitionTableKey key;
  key.model = runtime.model().identity().Root().Hex();
  key.ranks = comm_->size();
  for (const std::string& machine : survey_.machines) {
    if (!key.machine.empty()) key.machine += "; ";
    key.machine += machine;
  }
  return key;
}

// Beside the store, as what this process has learnt of itself.
std::string Ranks::SpeedsPath(Runtime& runtime) const {
  if (runtime.stores().empty()) return {};
  const std::string machines = table_key(runtime).machine;
  return fmt::format(
      "{}/ranks-{:016x}.json",
      StoreDir(runtime.options().stores[0].dir).RootDir(runtime.model().identity().Root()),
      Xxh3_64(std::as_bytes(std::span(machines))));
}

Result<std::unique_ptr<ChainPlanner>> Ranks::NewPlanner(Runtime& runtime) const {
  const KvLayout& layout = runtime.pool().layout();
  ChainPlannerOptions options{
      .partition = flags_.partition,
      .table_key = table_key(runtime),
      .chunk_tokens = layout.chunk_tokens,
      .layers = layout.layers,
      .bytes_per_token_layer = static_cast<double>(layout.bytes_per_token()) / layout.layers,
      .link = link(),
      .time = [&runtime] { return SliceTimeOf(runtime); },
      .speeds_path = SpeedsPath(runtime)};
  if (flags_.partition != "table") return NewChainPlanner(std::move(options));
  const std::string path =
      flags_.partition_table.empty() ? DefaultPartitionTable() : flags_.partition_table;
  auto table = PartitionTable::Load(path);
  if (!table && table.error().code != ErrorCode::kNotFound) {
    return tl::unexpected<Error>(table.error());
  }
  if (table) options.table = *std::move(table);
  auto planner = NewChainPlanner(std::move(options));
  if (planner || planner.error().code != ErrorCode::kNotFound) return planner;
  return Fail(ErrorCode::kNotFound,
              "--partition table: {} has none for this model on {} ranks of {}: find one with "
              "kvcake runahead search --ranks {} --model {} --context 4096",
              path, comm_->size(), table_key(runtime).machine, comm_->size(),
              runtime.options().model_dir);
}

Status Ranks::Work(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  const auto restore = [&](const RankJob& job) -> Status {
    const auto prefix = std::span(job.tokens).first(job.origin + 1);
    Request request{.prompt = {prefix.begin(), prefix.end()}, .max_tokens = 1, .salt = job.salt};
    request.store = false;
    return runtime.engine().Answer(std::move(request)).map([](auto) {});
  };
  const Status status = WorkForChain(*comm_, {.model = runtime.model(),
                                              .pool = runtime.pool(),
                                              .restore_prefix = restore,
                                              .options = {.timeout = Seconds(flags_.timeout_s)}});
  if (!status) EndNow(status.error());
  return status;
}

Status Ranks::Lead(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  if (flags_.partition == "analytic") {
    RETURN_IF_ERROR(WarmUpFar(runtime));
  }
  ASSIGN_OR_RETURN(planner_, NewPlanner(runtime));
  leader_ = std::make_unique<ChainLeader>(
      *comm_, runtime.pool(),
      ChainOptions{.timeout = Seconds(flags_.timeout_s),
                   .on_lost = [this](const Error& error) { EndNow(error); }});
  runtime.engine().SetChain(leader_.get(), planner_.get());
  return {};
}

// While everything stands that MPI may still write to: it cannot take back what it has begun.
void Ranks::EndNow(const Error& error) {
  const int status = Fatal(error);
  comm_->Close(error);
  session_->End(status);
}

void Ranks::End(int status) {
  leader_.reset();
  comm_.reset();
  session_->End(status);
}

}  // namespace kvcake
