#include "comm/tcp_join.h"

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/join_message.h"
#include "comm/leader_wait.h"
#include "comm/link.h"
#include "comm/tcp_mesh.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

class Gathering {
 public:
  Gathering(std::span<const std::string> workers, const JoinOptions& options)
      : options_(options),
        roster_{.chain = NewNonce(), .addresses = {workers.begin(), workers.end()}} {
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      workers_.push_back(
          std::make_unique<Worker>(context_, static_cast<int>(rank), workers[rank], options.key));
    }
  }

  Status Run(const std::stop_token& stop) {
    RETURN_IF_ERROR(LookUp());
    for (const auto& worker : workers_) Begin(*worker);
    const std::stop_callback stops(stop, [this] { context_.stop(); });
    RETURN_IF_ERROR(AwaitAll(stop));
    for (const auto& worker : workers_) Go(*worker);
    return AwaitAll(stop);
  }
  const Roster& roster() const { return roster_; }
  // Where the workers are, once all are ready.
  std::vector<std::string> Reached() const {
    std::vector<std::string> addresses;
    for (const auto& worker : workers_) addresses.push_back(worker->reached);
    return addresses;
  }

 private:
  struct Worker {
    Worker(net::io_context& context, int rank, std::string address, const ClusterKey& key)
        : rank(rank), address(std::move(address)), socket(context), talk(key) {}
    const int rank;
    const std::string address;
    tcp::socket socket;  // until it is connected; then
    std::unique_ptr<Link> link;
    Endpoints endpoints;
    std::string reached;  // the address of the one that it is connected with
    LeaderTalk talk;
    std::string told, text;
    bool ready = false;
    bool mistaken = false;  // it never will be
    std::string error =
        "it does not answer: it may be loading its model, or working for another server";
  };

  Status AwaitAll(const std::stop_token& stop) {
    context_.restart();
    const auto deadline = std::chrono::steady_clock::now() + Nanoseconds(options_.patience);
    while (waiting_ > 0 && !stop.stop_requested() && context_.run_one_until(deadline) > 0) {
    }
    if (stop.stop_requested()) return Fail(ErrorCode::kCancelled, "stopped");
    return AllReady();
  }

  // May take the system long: nobody waits for what this leader says meanwhile.
  Status LookUp() {
    for (const std::string& address : roster_.addresses) {
      if (address.find_first_of(" \n") == std::string::npos) continue;
      return Fail(ErrorCode::kInvalidArgument, "\"{}\" is no address", address);
    }
    auto found = ResolveAll(context_, roster_.addresses);
    RETURN_IF_ERROR(CheckDistinct(roster_.addresses, found));
    for (size_t rank = 0; rank < found.size(); ++rank) {
      RETURN_IF_ERROR(Find(*workers_[rank], std::move(found[rank])));
    }
    return {};
  }

  Status Find(Worker& worker, Result<Endpoints> endpoints) {
    if (!endpoints) {
      worker.error = endpoints.error().message;
      if (endpoints.error().code != ErrorCode::kInvalidArgument) return {};
      return tl::unexpected<Error>(endpoints.error());
    }
    worker.endpoints = std::move(*endpoints);
    for (const tcp::endpoint& endpoint : worker.endpoints) {
      if (options_.authenticated() || endpoint.address().is_loopback()) continue;
      return Fail(ErrorCode::kInvalidArgument,
                  "the worker at {} is on another machine, and without a cluster key whoever "
                  "answers there is given prompts, and believed: {}",
                  worker.address, kClusterKeyRemedy);
    }
    return {};
  }

  void Begin(Worker& worker) {
    if (worker.endpoints.empty()) return;
    ++waiting_;
    net::async_connect(worker.socket, worker.endpoints,
                       [this, &worker](error_code error, const tcp::endpoint& endpoint) {
                         if (error) return Ended(worker, error.message());
                         worker.reached = NameOf(endpoint);
                         Shake(worker);
                       });
  }

  void Shake(Worker& worker) {
    worker.link =
        std::make_unique<Link>(std::move(worker.socket), options_.tls, Link::Role::kCalls);
    worker.link->AsyncHandshake([this, &worker](error_code error) {
      if (error) return Failed(worker, error);
      Greet(worker);
    });
  }

  void Failed(Worker& worker, error_code error) {
    const std::string why = worker.link->WhyNot(error);
    Link::IsOfTls(error) ? Mistaken(worker, why) : Ended(worker, why);
  }

  void Greet(Worker& worker) {
    Tell(worker, worker.talk.Greeting(), kGreetingBytesMax, [this, &worker](std::string_view line) {
      if (!worker.talk.HearGreeting(line)) {
        const std::string& why = worker.talk.why();
        return Mistaken(worker, why.empty() ? kStranger : "it refuses: " + why);
      }
      const Call call{.roster = roster_, .facts = options_.facts, .rank = worker.rank};
      Tell(worker, worker.talk.CallOf(call), kAnswerBytesMax,
           [this, &worker](std::string_view answer) { Judge(worker, answer); });
    });
  }

  void Judge(Worker& worker, std::string_view answer) {
    switch (worker.talk.HearAnswer(answer)) {
      case LeaderTalk::Answer::kReady:
        worker.ready = true;
        return Ended(worker, "");
      case LeaderTalk::Answer::kRefused:
        return Mistaken(worker, "it refuses: " + worker.talk.why());
      case LeaderTalk::Answer::kTaken:
        return Ended(worker, "it is taken: " + worker.talk.why());
      case LeaderTalk::Answer::kUnproved:
        return Mistaken(worker,
                        "it does not know this server's cluster key: give both the same "
                        "--cluster-key-file");
      case LeaderTalk::Answer::kStranger:
        return Mistaken(worker, kStranger);
    }
  }

  void Go(Worker& worker) {
    worker.told = worker.talk.Go();
    worker.ready = false;
    ++waiting_;
    net::async_write(*worker.link, net::buffer(worker.told),
                     [this, &worker](error_code error, size_t) {
                       if (error) return Failed(worker, error);
                       worker.ready = true;
                       Ended(worker, "");
                     });
  }

  // Says a line, and has `next` called with the one that answers it.
  template <typename Next>
  void Tell(Worker& worker, std::string line, size_t bytes_max, Next next) {
    worker.told = std::move(line);
    net::async_write(*worker.link, net::buffer(worker.told),
                     [this, &worker, bytes_max, next](error_code error, size_t) {
                       if (error) return Failed(worker, error);
                       Hear(worker, bytes_max, next);
                     });
  }

  template <typename Next>
  void Hear(Worker& worker, size_t bytes_max, Next next) {
    net::async_read_until(*worker.link, net::dynamic_buffer(worker.text, bytes_max), '\n',
                          [this, &worker, next](error_code error, size_t bytes) {
                            if (!error) {
                              const std::string answer = worker.text.substr(0, bytes - 1);
                              worker.text.erase(0, bytes);
                              return next(answer);
                            }
                            if (worker.text.empty()) return Failed(worker, error);
                            Mistaken(worker, kStranger);
                          });
  }

  void Mistaken(Worker& worker, std::string why) {
    worker.mistaken = true;
    Ended(worker, std::move(why));
  }

  void Ended(Worker& worker, std::string why) {
    --waiting_;
    worker.error = std::move(why);
  }

  Status AllReady() const {
    std::string missing;
    ErrorCode code = ErrorCode::kIo;
    for (const auto& worker : workers_) {
      if (worker->ready) continue;
      if (worker->mistaken) code = ErrorCode::kInvalidArgument;
      missing += fmt::format("{}the worker at {} is not ready: {}", missing.empty() ? "" : "; ",
                             worker->address, worker->error);
    }
    if (missing.empty()) return {};
    return Fail(code, "{}", missing);
  }

  static constexpr const char* kStranger = "what answers there is no kvcake worker of this version";

  const JoinOptions& options_;
  const Roster roster_;
  net::io_context context_{1};
  std::vector<std::unique_ptr<Worker>> workers_;
  int waiting_ = 0;  // workers whose answer is to come
};

}  // namespace

Result<JoinedChain> AwaitLeader(const TcpListener& listener, const std::stop_token& stop,
                                const JoinOptions& options) {
  std::optional<LeadersCall> called = AwaitCall(listener, stop, options);
  if (!called) return Fail(ErrorCode::kCancelled, "no leader has called");
  Call& call = called->call;
  JoinedChain chain{.comm = nullptr, .leader = std::move(called->from)};
  const Digest roster = call.roster.digest();
  std::vector<std::string> addresses = std::move(call.roster.addresses);
  addresses.push_back(chain.leader);
  ASSIGN_OR_RETURN(chain.comm, ConnectTcp(listener, {.rank = call.rank,
                                                     .addresses = std::move(addresses),
                                                     .timeout = options.connect,
                                                     .key = options.key,
                                                     .roster = roster,
                                                     .facts = options.facts,
                                                     .tls = options.tls,
                                                     .stop = stop}));
  return chain;
}

void DeclineLeaders(const TcpListener& listener, const std::stop_token& stop,
                    const JoinOptions& options, const std::string& leader) {
  (void)AwaitCall(listener, stop, options, leader);
}

Result<std::unique_ptr<Comm>> GatherWorkers(std::span<const std::string> workers,
                                            const std::stop_token& stop,
                                            const JoinOptions& options) {
  if (workers.size() >= kRanksMax) {
    return Fail(ErrorCode::kInvalidArgument, "{} workers, and a chain has at most {} ranks",
                workers.size(), kRanksMax);
  }
  Gathering gathering(workers, options);
  RETURN_IF_ERROR(gathering.Run(stop));
  // Every connection of the last rank is one that it opens: nobody calls here.
  ASSIGN_OR_RETURN(const TcpListener unused, TcpListener::Open("127.0.0.1:0"));
  std::vector<std::string> addresses(workers.begin(), workers.end());
  addresses.emplace_back("the leader");
  return ConnectTcp(unused, {.rank = static_cast<int>(workers.size()),
                             .addresses = std::move(addresses),
                             .reached = gathering.Reached(),
                             .timeout = options.connect,
                             .key = options.key,
                             .roster = gathering.roster().digest(),
                             .facts = options.facts,
                             .tls = options.tls,
                             .stop = stop});
}

}  // namespace kvcake
