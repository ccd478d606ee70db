#include "app/chain_link.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "app/flags.h"
#include "base/cpu.h"
#include "comm/watch.h"

namespace kvcake {
namespace {

constexpr std::chrono::seconds kRetryAfter{2};

}  // namespace

void AddChainFlags(CLI::App& app, ChainFlags* flags) {
  CLI::Option* ranks =
      app.add_option("--ranks", flags->ranks.ranks,
                     "prefill long prompts with so many processes of this machine, as a chain "
                     "(docs/runahead.md): this one, and workers that it starts, which share the "
                     "cores unless --threads says otherwise")
          ->check(CLI::Range(1, 64))
          ->capture_default_str();
  CLI::Option* workers =
      app.add_option(
             "--workers", flags->workers,
             "HOST:PORT,...: prefill long prompts with these, each a kvcake worker; every one "
             "of them must reach the others by these addresses, too")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->excludes(ranks);
  // Whoever takes --tls-cert for --ssl-certfile is not to serve in the clear.
  for (CLI::Option* flag : AddClusterFlags(app, &flags->ranks)) flag->needs(workers);
  AddPartitionFlags(app, &flags->ranks);
  AddRankLimitFlags(app, &flags->ranks);
}

Result<std::unique_ptr<ChainLink>> ChainLink::Start(const ChainFlags& flags,
                                                    const CLI::App& command,
                                                    RuntimeOptions* options) {
  if (flags.workers.empty() && flags.ranks.ranks == 1) {
    WarnOfPartitionFlags(command);
    return nullptr;
  }
  std::unique_ptr<ChainLink> link(new ChainLink(flags));
  link->cpus_ = AllowedCpus();
  options->rank_tokens_max = flags.ranks.tokens_max;
  if (flags.workers.empty()) {
    ASSIGN_OR_RETURN(link->local_,
                     LocalWorkers::Start(flags.ranks.ranks, FlagsOfWorkers(command), options));
    return link;
  }
  ASSIGN_OR_RETURN(link->join_.key, ClusterKey::Load(flags.ranks.cluster_key_file));
  ASSIGN_OR_RETURN(link->join_.tls, RankTls::Load(flags.ranks.tls));
  if (link->join_.authenticated()) return link;
  spdlog::warn(
      "--workers without a cluster key: any user of this machine may be one of them, so what they "
      "compute is used and not kept: {}",
      kClusterKeyRemedy);
  return link;
}

ChainLink::~ChainLink() { End(); }

Status ChainLink::Lead(Runtime& runtime, EngineLoop& loop) {
  runtime_ = &runtime;
  loop_ = &loop;
  if (flags_.ranks.partition == "analytic") RETURN_IF_ERROR(WarmUpFar(runtime));
  Result<Chain> chain = Connect();
  if (chain) {
    {
      MutexLock lock(mutex_);
      next_ = std::move(*chain);
    }
    HandOver();
  } else if (local_ || chain.error().code == ErrorCode::kInvalidArgument ||
             chain.error().code == ErrorCode::kNotFound) {
    return tl::unexpected<Error>(chain.error());
  } else {
    spdlog::warn("prompts are prefilled by this process alone, until its workers answer: {}",
                 chain.error().message);
  }
  thread_ = std::thread([this] { Run(); });
  return {};
}

void ChainLink::End() {
  stop_.request_stop();
  {
    MutexLock lock(mutex_);
    leading_ = false;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  if (leader_) Unlead();
  {
    MutexLock lock(mutex_);
    next_.reset();
  }
  local_.reset();
}

ChainStats ChainLink::Stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

// Sleeps while there is a chain, and between attempts to have one.
void ChainLink::Run() {
  // Workers that it starts are not to be where the engine thread is pinned to.
  if (const Status status = RestrictToCpus(cpus_); !status) {
    spdlog::warn("{}", status.error().message);
  }
  std::string told;
  MutexLock lock(mutex_);
  while (true) {
    while (leading_ && !lost_ && !stop_.stop_requested()) changed_.Wait(mutex_);
    if (stop_.stop_requested()) return;
    if (leading_) {
      loop_->Post([this] { Drop(); });
      while (leading_ && !stop_.stop_requested()) changed_.Wait(mutex_);
      if (stop_.stop_requested()) return;
    }
    lock.Unlock();
    Result<Chain> chain = ConnectAgain();
    lock.Lock();
    if (chain) {
      told.clear();
      next_ = std::move(*chain);
      loop_->Post([this] { HandOver(); });
      while (next_ && !stop_.stop_requested()) changed_.Wait(mutex_);
      continue;
    }
    if (stop_.stop_requested()) return;
    if (chain.error().message != told) {
      told = chain.error().message;
      spdlog::warn("workers are asked again every {} s: {}", kRetryAfter.count(), told);
    }
    const TimePoint retry = Clock::Real().Now() + kRetryAfter;
    while (!stop_.stop_requested() && changed_.WaitUntil(mutex_, retry)) {
    }
  }
}

Result<std::unique_ptr<Comm>> ChainLink::Gather(const std::stop_token& stop) {
  if (local_) return local_->Connect(stop);
  join_.facts = FactsDigest(FactsOf(*runtime_));
  return GatherWorkers(flags_.workers, stop, join_);
}

Result<ChainLink::Chain> ChainLink::Connect() {
  const std::stop_token stop = stop_.get_token();
  ASSIGN_OR_RETURN(auto comm, Gather(stop));
  const std::stop_callback closes(stop, [&comm = *comm] {
    comm.Close({ErrorCode::kCancelled, "this server is told to stop"});
  });
  const auto met = MeetRanks(*comm, *runtime_, Seconds(flags_.ranks.timeout_s));
  if (met) {
    ASSIGN_OR_RETURN(auto planner, PlannerFor(*runtime_, flags_.ranks, *met));
    return Chain{std::move(comm), std::move(planner)};
  }
  const std::string who = local_ == nullptr
                              ? fmt::format("the workers at {}", fmt::join(flags_.workers, ", "))
                              : "the workers that it has started";
  return Fail(met.error().code, "{} cannot work with this server, rank {}: {}", who, comm->rank(),
              met.error().message);
}

// Workers of this machine that have ended are started again; if that is not enough, all are.
Result<ChainLink::Chain> ChainLink::ConnectAgain() {
  if (local_) RETURN_IF_ERROR(local_->Restart());
  auto chain = Connect();
  if (!chain && local_) local_->KillAll();
  return chain;
}

void ChainLink::HandOver() {
  {
    MutexLock lock(mutex_);
    chain_ = *std::exchange(next_, std::nullopt);
    leading_ = true;
    stats_.ranks = chain_.comm->size();
  }
  changed_.NotifyAll();
  const auto lost = [this](const Error& error) { Lost(error); };
  const Seconds timeout(flags_.ranks.timeout_s);  // of restoring, too: every other answer waits
  leader_ = std::make_unique<ChainLeader>(*chain_.comm, runtime_->pool(),
                                          ChainOptions{.timeout = timeout,
                                                       .restore_timeout = timeout,
                                                       .tokens_max = flags_.ranks.tokens_max,
                                                       .authenticated = authenticated(),
                                                       .staging = runtime_->rank_staging(),
                                                       .on_lost = lost});
  runtime_->engine().SetChain(leader_.get(), chain_.planner.get());
  WatchPeers(*chain_.comm, lost);
  spdlog::info("long prompts are prefilled by {} ranks", chain_.comm->size());
}

void ChainLink::Drop() {
  if (leader_->ok()) {  // else the engine has told of it
    MutexLock lock(mutex_);
    spdlog::error("the chain of ranks is lost, prompts are prefilled by this process alone: {}",
                  lost_->message);
  }
  Unlead();
  {
    MutexLock lock(mutex_);
    leading_ = false;
    lost_.reset();
  }
  changed_.NotifyAll();
}

// Not with mutex_: what is told of its end comes while it is closed.
void ChainLink::Unlead() {
  runtime_->engine().SetChain(nullptr, nullptr);
  leader_.reset();
  chain_ = {};
}

void ChainLink::Lost(const Error& error) {
  {
    MutexLock lock(mutex_);
    if (!leading_ || lost_) return;
    lost_ = error;
    ++stats_.lost;
    stats_.ranks = 1;
  }
  changed_.NotifyAll();
}

}  // namespace kvcake
