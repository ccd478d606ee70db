#include "comm/leader_wait.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/asio.h"
#include "comm/crowd.h"
#include "comm/link.h"
#include "comm/tcp_mesh.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

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
  // With `has`, a leader, all others are told of that one.
  LeaderWait(const TcpListener& listener, const JoinOptions& options, std::string has = "")
      : options_(options),
        has_(std::move(has)),
        acceptor_(Duplicate(context_, listener)),
        retry_(context_) {}

  std::optional<LeadersCall> Run(const std::stop_token& stop) {
    const std::stop_callback stops(stop, [this] { context_.stop(); });
    Accept();
    context_.run();
    return std::move(called_);
  }

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
        retry_.expires_after(kTryAgainAfter);
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
    if (const std::string why = Twice(*caller->call); !why.empty()) return Refuse(caller, why);
    if (!has_.empty()) return Decline(caller, WorkerTalk::Taken("its leader called from " + has_));
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

  // Empty unless the chain has this worker already, by another of its addresses: who leads it would
  // ask again for ever.
  std::string Twice(const Call& call) const {
    if (!chosen_ || chosen_->call->roster.chain != call.roster.chain) return "";
    const auto address = [](const Call& one) {
      return one.roster.addresses[one.rank].substr(0, 100);
    };
    return fmt::format("the workers at {} and {} are one and the same: name each once",
                       address(*chosen_->call), address(call));
  }

  void HearGo(const CallerPtr& caller, std::string_view answer) {
    if (!caller->talk.HearGo(answer)) return Drop(caller);
    called_ = {std::move(*caller->call), caller->name};
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
  const std::string has_;
  net::io_context context_{1};
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  bool accepting_ = false;
  std::vector<CallerPtr> callers_;  // the oldest first
  CallerPtr chosen_;                // that is told to be ready
  std::optional<LeadersCall> called_;
};

}  // namespace

std::optional<LeadersCall> AwaitCall(const TcpListener& listener, const std::stop_token& stop,
                                     const JoinOptions& options, const std::string& has) {
  return LeaderWait(listener, options, has).Run(stop);
}

}  // namespace kvcake
