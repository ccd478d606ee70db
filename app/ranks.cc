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
#include "comm/handshake.h"
#include "runahead/chain_planner.h"

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

// By what this process has measured; of an emulated machine, by its profile.
SliceTime SliceTimeOf(Runtime& runtime) {
  if (runtime.emulated()) return runtime.profile()->time();
  const ComputeFit fit = runtime.compute_cost().fit();
  return {.c0 = fit.c0, .g = fit.g, .b = fit.b, .a = fit.a};
}

}  // namespace

void AddPartitionFlag(CLI::App& app, RankFlags* flags) {
  app.add_option("--partition", flags->partition,
                 "which tokens each of them computes: analytic, even, shares (0.6,0.4) or tokens "
                 "(5000,3192)")
      ->capture_default_str();
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

void AddRankFlags(CLI::App& app, RankFlags* flags) {
  app.add_option("--ranks", flags->ranks,
                 "prefill the prompt with so many processes, as a chain (docs/runahead.md): on "
                 "this machine, or, without this flag, those that mpirun has started")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddPartitionFlag(app, flags);
  AddRankLimitFlags(app, flags);
}

Status MeetRanks(Comm& comm, Runtime& runtime, Seconds timeout) {
  const Fact facts[] = {{"version", KVCAKE_VERSION},
                        {"model", runtime.model().identity().Root().Hex()},
                        {"numeric path", NumericPathName(runtime.model().numeric_path())},
                        {"--rank-tokens-max", std::to_string(runtime.options().rank_tokens_max)}};
  return Handshake(comm, facts, timeout);
}

Status WorkForLeader(Comm& comm, Runtime& runtime, Seconds timeout,
                     const std::function<bool()>& stopping) {
  const auto restore = [&](const RankJob& job) -> Status {
    const auto prefix = std::span(job.tokens).first(job.origin + 1);
    Request request{.prompt = {prefix.begin(), prefix.end()}, .max_tokens = 1, .salt = job.salt};
    request.store = false;
    const auto after_step = [&](SequenceId id) {
      if (stopping && stopping()) runtime.engine().Cancel(id);
    };
    return runtime.engine().Answer(std::move(request), after_step).map([](auto) {});
  };
  return WorkForChain(comm, {.model = runtime.model(),
                             .pool = runtime.pool(),
                             .restore_prefix = restore,
                             .options = {.timeout = timeout}});
}

Result<std::unique_ptr<ChainPlanner>> PlannerFor(Runtime& runtime, const std::string& partition) {
  const KvLayout& layout = runtime.pool().layout();
  return NewChainPlanner(
      {.partition = partition,
       .chunk_tokens = layout.chunk_tokens,
       .layers = layout.layers,
       .bytes_per_token_layer = static_cast<double>(layout.bytes_per_token()) / layout.layers,
       .time = [&runtime] { return SliceTimeOf(runtime); }});
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
}

Status Ranks::Meet(Runtime& runtime) {
  // One rank may have to load the model from a slow disk.
  return MeetRanks(*comm_, runtime, std::max(kMeetTimeout, Seconds(flags_.timeout_s)));
}

Status Ranks::Work(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  const Status status = WorkForLeader(*comm_, runtime, Seconds(flags_.timeout_s));
  if (!status) EndNow(status.error());
  return status;
}

Status Ranks::Lead(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  ASSIGN_OR_RETURN(planner_, PlannerFor(runtime, flags_.partition));
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
