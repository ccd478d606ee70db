#include "comm/tcp_join.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/tcp_mesh.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr std::string_view kCall = "kvcake-chain 1 ";
constexpr std::string_view kReady = "ready\n";
constexpr std::string_view kGo = "go\n";
constexpr size_t kCallBytesMax = 16 << 10;
constexpr size_t kReplyBytesMax = 64;
constexpr size_t kCallersMax = 16;  // that have not said yet what they want
constexpr std::chrono::milliseconds kRetry{50};

// What a leader has told a worker.
struct Call {
  int rank = 0;
  std::vector<std::string> addresses;  // of every rank but the leader
};

std::optional<Call> ParseCall(std::string_view line) {
  if (!line.starts_with(kCall)) return std::nullopt;
  line.remove_prefix(kCall.size());
  Call call;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), call.rank);
  if (error != std::errc()) return std::nullopt;
  line.remove_prefix(end - line.data());
  while (line.starts_with(' ')) {
    line.remove_prefix(1);
    call.addresses.emplace_back(line.substr(0, line.find(' ')));
    line.remove_prefix(call.addresses.back().size());
  }
  const bool sound =
      line.empty() && call.rank >= 0 && call.rank < static_cast<int>(call.addresses.size());
  return sound ? std::optional(std::move(call)) : std::nullopt;
}

std::chrono::nanoseconds Nanoseconds(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
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
    explicit Caller(net::io_context& context) : socket(context), timer(context) {}
    tcp::socket socket;
    net::steady_timer timer;
    std::string text;
    std::optional<Call> call;
  };
  using CallerPtr = std::shared_ptr<Caller>;

  // Nobody is accepted while one is told to be ready: after "go" connections of the chain come.
  void Accept() {
    if (accepting_ || chosen_ || callers_.size() >= kCallersMax) return;
    accepting_ = true;
    const auto caller = std::make_shared<Caller>(context_);
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
    callers_.insert(caller);
    ReadLine(caller, [this, caller](std::string_view line) {
      caller->call = ParseCall(line);
      if (!caller->call || chosen_) return Drop(caller);
      chosen_ = caller;
      acceptor_.cancel();
      net::async_write(
          caller->socket, net::buffer(kReady), [this, caller](error_code error, size_t) {
            if (error) return Drop(caller);
            ReadLine(caller, [this, caller](std::string_view answer) { Hear(caller, answer); });
          });
    });
  }

  void Hear(const CallerPtr& caller, std::string_view answer) {
    error_code error;
    const tcp::endpoint from = caller->socket.remote_endpoint(error);
    if (answer != kGo.substr(0, kGo.size() - 1) || error) return Drop(caller);
    leader_ = fmt::format("{}:{}", from.address().to_string(), from.port());
    called_ = std::move(caller->call);
    context_.stop();
  }

  // `next` gets the line without its end.
  template <typename Next>
  void ReadLine(const CallerPtr& caller, Next next) {
    caller->timer.expires_after(Nanoseconds(options_.patience));
    caller->timer.async_wait([this, caller](error_code error) {
      if (!error) Drop(caller);
    });
    net::async_read_until(caller->socket, net::dynamic_buffer(caller->text, kCallBytesMax), '\n',
                          [this, caller, next](error_code error, size_t bytes) {
                            if (error || !callers_.contains(caller)) return Drop(caller);
                            const std::string line = caller->text.substr(0, bytes - 1);
                            caller->text.erase(0, bytes);
                            next(line);
                          });
  }

  void Drop(const CallerPtr& caller) {
    if (callers_.erase(caller) == 0) return;
    error_code ignored;
    caller->socket.close(ignored);
    caller->timer.cancel();
    if (chosen_ == caller) chosen_.reset();
    Accept();
  }

  const JoinOptions options_;
  net::io_context context_{1};
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  bool accepting_ = false;
  std::set<CallerPtr> callers_;
  CallerPtr chosen_;  // that is told to be ready
  std::optional<Call> called_;
  std::string leader_;
};

class Gathering {
 public:
  Gathering(std::span<const std::string> workers, const JoinOptions& options) : options_(options) {
    for (const std::string& address : workers) {
      all_ += (all_.empty() ? "" : " ") + address;
      workers_.push_back(std::make_unique<Worker>(context_, address));
    }
  }

  Status Run(const std::stop_token& stop) {
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      Worker& worker = *workers_[rank];
      if (worker.address.find_first_of(" \n") != std::string::npos) {
        return Fail(ErrorCode::kInvalidArgument, "\"{}\" is no address", worker.address);
      }
      auto endpoints = Resolve(context_, worker.address);
      if (!endpoints && endpoints.error().code == ErrorCode::kInvalidArgument) {
        return tl::unexpected<Error>(endpoints.error());
      }
      if (!endpoints) {
        worker.error = endpoints.error().message;
        continue;
      }
      worker.endpoints = std::move(*endpoints);
      worker.text = fmt::format("{}{} {}\n", kCall, rank, all_);
      Call(worker);
    }
    const std::stop_callback stops(stop, [this] { context_.stop(); });
    const auto deadline = std::chrono::steady_clock::now() + Nanoseconds(options_.patience);
    while (waiting_ > 0 && context_.run_one_until(deadline) > 0) {
    }
    if (stop.stop_requested()) return Fail(ErrorCode::kCancelled, "stopped");
    RETURN_IF_ERROR(AllReady());
    for (const auto& worker : workers_) {
      error_code error;
      net::write(worker->socket, net::buffer(kGo), error);  // its few bytes never wait
      if (error) {
        return Fail(ErrorCode::kIo, "the worker at {} is gone: {}", worker->address,
                    error.message());
      }
    }
    return {};
  }

 private:
  struct Worker {
    Worker(net::io_context& context, std::string address)
        : address(std::move(address)), socket(context) {}
    const std::string address;
    tcp::socket socket;
    std::vector<tcp::endpoint> endpoints;
    std::string text;
    bool ready = false, stranger = false;
    std::string error =
        "it does not answer: it may be loading its model, or working for another server";
  };

  void Call(Worker& worker) {
    ++waiting_;
    net::async_connect(worker.socket, worker.endpoints,
                       [this, &worker](error_code error, const tcp::endpoint&) {
                         if (error) return Ended(worker, error.message());
                         Tell(worker);
                       });
  }

  void Tell(Worker& worker) {
    net::async_write(worker.socket, net::buffer(worker.text),
                     [this, &worker](error_code error, size_t) {
                       if (error) return Ended(worker, error.message());
                       worker.text.clear();
                       AwaitReady(worker);
                     });
  }

  void AwaitReady(Worker& worker) {
    net::async_read_until(worker.socket, net::dynamic_buffer(worker.text, kReplyBytesMax), '\n',
                          [this, &worker](error_code error, size_t) {
                            worker.ready = !error && worker.text == kReady;
                            worker.stranger = !worker.ready && !worker.text.empty();
                            Ended(worker, worker.stranger ? "what answers there is no kvcake worker"
                                                          : "it closed the connection");
                          });
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
      if (worker->stranger) code = ErrorCode::kInvalidArgument;
      missing += fmt::format("{}the worker at {} is not ready: {}", missing.empty() ? "" : "; ",
                             worker->address, worker->error);
    }
    if (missing.empty()) return {};
    return Fail(code, "{}", missing);
  }

  const JoinOptions options_;
  net::io_context context_{1};
  std::string all_;  // addresses
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
  call->addresses.push_back(chain.leader);
  ASSIGN_OR_RETURN(chain.comm, ConnectTcp(listener, {.rank = call->rank,
                                                     .addresses = std::move(call->addresses),
                                                     .timeout = options.connect}));
  return chain;
}

Result<std::unique_ptr<Comm>> GatherWorkers(std::span<const std::string> workers,
                                            const std::stop_token& stop,
                                            const JoinOptions& options) {
  Gathering gathering(workers, options);
  RETURN_IF_ERROR(gathering.Run(stop));
  // Every connection of the last rank is one that it opens: nobody calls here.
  ASSIGN_OR_RETURN(const TcpListener unused, TcpListener::Open("127.0.0.1:0"));
  std::vector<std::string> addresses(workers.begin(), workers.end());
  addresses.emplace_back("the leader");
  return ConnectTcp(unused, {.rank = static_cast<int>(workers.size()),
                             .addresses = std::move(addresses),
                             .timeout = options.connect});
}

}  // namespace kvcake
