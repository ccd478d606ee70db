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
#include "ops/visible_devices.h"

namespace kvcake {
namespace {

constexpr Seconds kMeetTimeout{600};
// mpirun has started every rank, and it is Open MPI's to say which connections are theirs; or this
// process has, and they have inherited their sockets.
constexpr bool kAuthenticated = true;

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

}  // namespace

Status StartRanks(const RankFlags& flags) {
  if (flags.ranks == 1 || StartedByMpirun()) return {};
  RETURN_IF_ERROR(CheckMpi());
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

std::unique_ptr<Ranks> Ranks::WithWorkers(const RankFlags& flags, const CLI::App& command) {
  std::unique_ptr<Ranks> ranks(new Ranks(flags));
  ranks->worker_flags_ = FlagsOfWorkers(command);
  return ranks;
}

Status Ranks::Divide(RuntimeOptions* options) {
  options->rank_tokens_max = flags_.tokens_max;
  options->keep_costs = leads();  // the others compute no slices that tell of them
  if (session_ == nullptr) {
    ASSIGN_OR_RETURN(local_, LocalWorkers::Start(flags_.ranks, worker_flags_, options));
    return {};
  }
  const int here = EnvironmentInt("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  if (options->threads == 0 && options->cpus.empty()) {
    options->threads = std::max(1, UsableCores() / here);
  }
  if (OnCuda(options->path) && options->cuda_device.empty()) {
    options->cuda_device = VisibleDevice(EnvironmentInt("OMPI_COMM_WORLD_LOCAL_RANK", 0));
  }
  return {};
}

Status Ranks::Meet(Runtime& runtime) {
  // One rank may have to load the model from a slow disk.
  const Seconds timeout = std::max(kMeetTimeout, Seconds(flags_.timeout_s));
  if (local_) {
    ASSIGN_OR_RETURN(comm_, local_->Connect());
  }
  ASSIGN_OR_RETURN(survey_, MeetRanks(*comm_, runtime, timeout));
  return {};
}

Status Ranks::Work(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  const Status status = WorkForLeader(
      *comm_, runtime, {.timeout = Seconds(flags_.timeout_s), .authenticated = kAuthenticated});
  if (!status) EndNow(status.error());
  return status;
}

Status Ranks::Lead(Runtime& runtime) {
  RETURN_IF_ERROR(Meet(runtime));
  if (flags_.partition == "analytic") {
    RETURN_IF_ERROR(WarmUpFar(runtime));
  }
  ASSIGN_OR_RETURN(planner_, PlannerFor(runtime, flags_, survey_));
  leader_ = std::make_unique<ChainLeader>(
      *comm_, runtime.pool(),
      ChainOptions{.timeout = Seconds(flags_.timeout_s),
                   .tokens_max = flags_.tokens_max,
                   .authenticated = kAuthenticated,
                   .staging = runtime.rank_staging(),
                   .on_lost = [this](const Error& error) {
                     if (session_) EndNow(error);  // else this process does it alone
                   }});
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
  local_.reset();
  if (session_) session_->End(status);
}

int RunOnRanks(const RankFlags& flags, const std::function<Status(Ranks&)>& body) {
  if (const Status started = StartRanks(flags); !started) return Fatal(started.error());
  const auto ranks = Ranks::Join(flags);
  if (!ranks) return Fatal(ranks.error());
  if (!*ranks) {
    return Fatal({ErrorCode::kInvalidArgument, "--ranks: a prompt is divided among two at least"});
  }
  const Status status = body(**ranks);
  const int exit_code = status ? 0 : Fatal(status.error());
  (*ranks)->End(exit_code);
  return exit_code;
}

}  // namespace kvcake
