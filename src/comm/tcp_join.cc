#include "comm/tcp_join.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "comm/crowd.h"
#include "comm/join_message.h"
#include "comm/link.h"
#include "comm/tcp_mesh.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kRetry{50};

std::chrono::nanoseconds Nanoseconds(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
}

std::string NameOf(const tcp::endpoint& endpoint) {
  return HostAndPort(endpoint.address().to_string(), endpoint.port());
}

// Whether strangers of other machines are no part of it: what a worker without a key may connect
// with. Names are not looked up for who has proved nothing.
bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  error_code error;
  const auto ip = net::ip::make_address_v4(host, error);
  return !error && ip.is_loopback();
}

class LeaderWait {
 public:
  LeaderWait(const TcpListener& listener, const JoinOptions& options)
      : options_(options), acceptor_(Duplicate(context_, listener)), retry_(context_) {}

  // Empty when `stop` was asked for.
  std::optional<Call> Run(const std::stop_token& stop) {
    const std::stop_callback stops(stop, [this] { context_.stop(); });
    Accept();
    context_.run();
    return std::move(called_);
  }
  const std::string& leader() const { return leader_; }

 private:
  struct Caller {
    Caller(net::io_context& context, const ClusterKey& key)
        : socket(context), timer(context), talk(key) {}
    tcp::socket socket;  // until it has called; then
    std::unique_ptr<Link> link;
    net::ip::address address;
    std::string name;  // its address and port
    net::steady_timer timer;
    std::string text;  // read, and not a line yet
    std::string told;
    WorkerTalk talk;
    std::optional<Call> call;
  };
  using CallerPtr = std::shared_ptr<Caller>;

  // Nobody is accepted while one is told to be ready: after "go" connections of the chain come.
  void Accept() {
    if (accepting_ || chosen_) return;
    accepting_ = true;
    const auto caller = std::make_shared<Caller>(context_, options_.key);
    acceptor_.async_accept(caller->socket, [this, caller](error_code error) {
      accepting_ = false;
      if (!error) {
        Listen(caller);
      } else if (error != net::error::operation_aborted) {  // no descriptors left, say
        retry_.expires_after(kRetry);
        retry_.async_wait([this](error_code) { Accept(); });
        return;
      }
      Accept();
    });
  }

  void Listen(const CallerPtr& caller) {
    error_code error;
    const tcp::endpoint from = caller->socket.remote_endpoint(error);
    if (error) return;  // it has gone
    // One that was just coming when another was chosen takes nobody's place.
    while (!chosen_ && callers_.size() >= kCallersMax) Drop(WhoMakesRoom(callers_));
    callers_.push_back(caller);
    caller->address = from.address();
    caller->name = NameOf(from);
    caller->link =
        std::make_unique<Link>(std::move(caller->socket), options_.tls, Link::Role::kIsCalled);
    BePatient(caller);
    caller->link->AsyncHandshake([this, caller](error_code shaken) {
      if (!Here(caller)) return;
      if (shaken) return TurnAway(caller, shaken);
      ReadLine(caller, kGreetingBytesMax, [this, caller](std::string_view line) {
        if (!caller->talk.HearGreeting(line)) return Drop(caller);
        Tell(caller, caller->talk.Greeting(), [this, caller] {
          ReadLine(caller, kCallBytesMax,
                   [this, caller](std::string_view call) { HearCall(caller, call); });
        });
      });
    });
  }

  // Who is hung up on before all that it has said is read does not hear why.
  void TurnAway(const CallerPtr& caller, error_code error) {
    spdlog::debug("{} is no leader: {}", caller->name, caller->link->WhyNot(error));
    caller->link->GoPlain();
    if (!Link::IsOfNoTls(error)) return Discard(caller);
    Tell(caller,
         WorkerTalk::Refused("this worker speaks TLS: give the server --tls-cert, --tls-key and "
                             "--tls-ca, too"),
         [this, caller] { Discard(caller); });
  }

  void Discard(const CallerPtr& caller) {
    caller->link->EndSending();
    caller->text.resize(kGreetingBytesMax);
    caller->link->async_read_some(net::buffer(caller->text),
                                  [this, caller](error_code error, size_t) {
                                    if (error || !Here(caller)) return Drop(caller);
                                    Discard(caller);
                                  });
  }

  void HearCall(const CallerPtr& caller, std::string_view line) {
    bool proved = false;
    caller->call = caller->talk.HearCall(line, &proved);
    if (!caller->call) return Drop(caller);
    if (!proved) {
      return Refuse(caller,
                    "the leader's cluster key is not this worker's: give both the same "
                    "--cluster-key-file");
    }
    if (const std::string why = WhyNot(caller->call->roster); !why.empty()) {
      return Refuse(caller, why);
    }
    if (chosen_) return Decline(caller, WorkerTalk::Taken("another leader has just called"));
    chosen_ = caller;
    acceptor_.cancel();
    Tell(caller, caller->talk.Ready(options_.facts), [this, caller] {
      ReadLine(caller, kAnswerBytesMax,
               [this, caller](std::string_view answer) { HearGo(caller, answer); });
    });
  }

  // Empty where a chain of these may be.
  std::string WhyNot(const Roster& roster) const {
    if (options_.authenticated()) return "";
    for (const std::string& address : roster.addresses) {
      if (IsLoopback(address)) continue;
      return fmt::format(
          "without a cluster key this worker connects with none but loopback "
          "addresses, and {} is none: give all the same --cluster-key-file",
          address.substr(0, 100));
    }
    return "";
  }

  void HearGo(const CallerPtr& caller, std::string_view answer) {
    if (!caller->talk.HearGo(answer)) return Drop(caller);
    leader_ = caller->name;
    called_ = std::move(caller->call);
    context_.stop();
  }

  void Refuse(const CallerPtr& caller, const std::string& why) {
    Decline(caller, WorkerTalk::Refused(why));
  }

  void Decline(const CallerPtr& caller, std::string answer) {
    Tell(caller, std::move(answer), [this, caller] { Drop(caller); });
  }

  template <typename Next>
  void Tell(const CallerPtr& caller, std::string line, Next next) {
    caller->told = std::move(line);
    net::async_write(*caller->link, net::buffer(caller->told),
                     [this, caller, next](error_code error, size_t) {
                       if (error || !Here(caller)) return Drop(caller);
                       next();
                     });
  }

  void BePatient(const CallerPtr& caller) {
    caller->timer.expires_after(Nanoseconds(options_.patience));
    caller->timer.async_wait([this, caller](error_code error) {
      if (!error) Drop(caller);
    });
  }

  // `next` gets the line without its end.
  template <typename Next>
  void ReadLine(const CallerPtr& caller, size_t bytes_max, Next next) {
    BePatient(caller);
    net::async_read_until(*caller->link, net::dynamic_buffer(caller->text, bytes_max), '\n',
                          [this, caller, next](error_code error, size_t bytes) {
                            if (error || !Here(caller)) return Drop(caller);
                            const std::string line = caller->text.substr(0, bytes - 1);
                            caller->text.erase(0, bytes);
                            next(line);
                          });
  }

  bool Here(const CallerPtr& caller) const {
    return std::ranges::find(callers_, caller) != callers_.end();
  }

  void Drop(CallerPtr caller) {
    if (std::erase(callers_, caller) == 0) return;
    caller->link->Close();
    caller->timer.cancel();
    if (chosen_ == caller) chosen_.reset();
    Accept();
  }

  const JoinOptions& options_;
  net::io_context context_{1};
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  bool accepting_ = false;
  std::vector<CallerPtr> callers_;  // the oldest first
  CallerPtr chosen_;                // that is told to be ready
  std::optional<Call> called_;
  std::string leader_;
};

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
  std::optional<Call> call;
  JoinedChain chain;
  {
    LeaderWait wait(listener, options);
    call = wait.Run(stop);
    chain.leader = wait.leader();
  }
  if (!call) return Fail(ErrorCode::kCancelled, "no leader has called");
  const Digest roster = call->roster.digest();
  std::vector<std::string> addresses = std::move(call->roster.addresses);
  addresses.push_back(chain.leader);
  ASSIGN_OR_RETURN(chain.comm, ConnectTcp(listener, {.rank = call->rank,
                                                     .addresses = std::move(addresses),
                                                     .timeout = options.connect,
                                                     .key = options.key,
                                                     .roster = roster,
                                                     .facts = options.facts,
                                                     .tls = options.tls}));
  return chain;
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
                             .tls = options.tls});
}

}  // namespace kvcake
