#include "comm/tcp_mesh.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <stop_token>

#include "base/check.h"
#include "base/host_port.h"
#include "comm/crowd.h"
#include "comm/mesh_hello.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

class Mesh {
 public:
  Mesh(const TcpListener& listener, const TcpCommOptions& options)
      : options_(options),
        size_(static_cast<int>(options.addresses.size())),
        acceptor_(Duplicate(context_, listener)),
        retry_(context_),
        links_(size_),
        errors_(size_, "it has not called") {
    std::fill_n(errors_.begin(), options.rank, "it does not answer");
  }

  Result<std::vector<RawLink>> Connect() {
    const auto deadline = std::chrono::steady_clock::now() + Nanoseconds(options_.timeout);
    const auto& addresses = options_.reached.empty() ? options_.addresses : options_.reached;
    auto found = ResolveAll(context_, std::span(addresses).first(options_.rank));
    for (int peer = 0; peer < options_.rank; ++peer) {
      ASSIGN_OR_RETURN(Endpoints endpoints, std::move(found[peer]));
      Call(peer, std::move(endpoints));
    }
    Accept();
    const std::stop_callback stops(options_.stop, [this] { context_.stop(); });
    while (Missing() > 0 && failure_ && context_.run_one_until(deadline) > 0) {
    }
    if (options_.stop.stop_requested()) return Fail(ErrorCode::kCancelled, "stopped");
    // What came while this process was itself kept waiting counts.
    if (Missing() > 0 && failure_) context_.poll();
    RETURN_IF_ERROR(failure_);
    if (Missing() > 0) return TimedOut();
    std::vector<RawLink> links(size_);
    for (int peer = 0; peer < size_; ++peer) {
      if (links_[peer]) links[peer] = links_[peer]->Release();
    }
    return links;
  }

 private:
  // A connection that is not known to be a rank's yet.
  struct Attempt {
    explicit Attempt(net::io_context& context) : socket(context), timer(context) {}
    tcp::socket socket;  // until it is connected; then
    std::unique_ptr<Link> link;
    net::ip::address address;  // of who calls
    net::steady_timer timer;
    Endpoints endpoints;
    MeshHello heard, told;
    Digest proof_heard, proof_told;
  };
  using AttemptPtr = std::shared_ptr<Attempt>;

  int Missing() const {
    int missing = -1;  // not ourselves
    for (const auto& link : links_) missing += link ? 0 : 1;
    return missing;
  }

  tl::unexpected<Error> TimedOut() const {
    std::string missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == options_.rank || links_[peer]) continue;
      missing += fmt::format("{}rank {} at {}: {}", missing.empty() ? "" : "; ", peer,
                             options_.addresses[peer], errors_[peer]);
    }
    return Fail(ErrorCode::kDeadline, "rank {} is not connected within {} s: {}", options_.rank,
                options_.timeout.count(), missing);
  }

  MeshHello HelloTo(uint32_t peer) const {
    MeshHello hello;
    hello.size = static_cast<uint32_t>(size_);
    hello.from = static_cast<uint32_t>(options_.rank);
    hello.to = peer;
    hello.nonce = NewNonce();
    hello.facts = options_.facts;
    return hello;
  }

  template <typename Value, typename Next>
  void Write(const AttemptPtr& attempt, const Value& value, Next next) {
    net::async_write(*attempt->link, net::buffer(&value, sizeof(value)),
                     [attempt, next](error_code error, size_t) { next(error); });
  }
  template <typename Value, typename Next>
  void Read(const AttemptPtr& attempt, Value* value, Next next) {
    net::async_read(*attempt->link, net::buffer(value, sizeof(*value)),
                    [attempt, next](error_code error, size_t) { next(error); });
  }

  // ---- the caller's side
  void Call(int peer, Endpoints endpoints) {
    const auto attempt = std::make_shared<Attempt>(context_);
    attempt->endpoints = std::move(endpoints);
    net::async_connect(attempt->socket, attempt->endpoints,
                       [this, peer, attempt](error_code error, const tcp::endpoint&) {
                         if (error) return CallAgain(peer, attempt, error.message());
                         Shake(peer, attempt);
                       });
  }

  void Shake(int peer, const AttemptPtr& attempt) {
    attempt->link =
        std::make_unique<Link>(std::move(attempt->socket), options_.tls, Link::Role::kCalls);
    SetError(peer, attempt, "it does not answer");
    attempt->link->AsyncHandshake([this, peer, attempt](error_code error) {
      if (!error) return Greet(peer, attempt);
      const std::string why = attempt->link->WhyNot(error);
      if (!Link::IsOfTls(error)) return CallAgain(peer, attempt, why);
      failure_ = Fail(ErrorCode::kInvalidArgument, "{} is no rank of this chain: {}",
                      options_.addresses[peer], why);
    });
  }

  void CallAgain(int peer, const AttemptPtr& attempt, std::string why) {
    SetError(peer, attempt, std::move(why));
    attempt->timer.expires_after(kTryAgainAfter);
    attempt->timer.async_wait([this, peer, attempt](error_code error) {
      if (!error) Call(peer, std::move(attempt->endpoints));
    });
  }

  // What it failed to prove the last time says more than that time is up in the midst of this one,
  // or was for it.
  void SetError(int peer, const AttemptPtr& attempt, std::string why) {
    const bool connected = attempt->link != nullptr;
    if (!connected || errors_[peer] != kUnproved) errors_[peer] = std::move(why);
  }

  void Greet(int peer, const AttemptPtr& attempt) {
    attempt->told = HelloTo(static_cast<uint32_t>(peer));
    Write(attempt, attempt->told, [this, peer, attempt](error_code error) {
      if (error) return CallAgain(peer, attempt, attempt->link->WhyNot(error));
      Read(attempt, &attempt->heard, [this, peer, attempt](error_code answer) {
        if (answer) return CallAgain(peer, attempt, attempt->link->WhyNot(answer));
        Recognise(peer, attempt);
      });
    });
  }

  void Recognise(int peer, const AttemptPtr& attempt) {
    const MeshHello& heard = attempt->heard;
    if (!heard.HasMagic()) {
      failure_ = Fail(ErrorCode::kInvalidArgument, "{} is no rank of this kvcake's kind",
                      options_.addresses[peer]);
    } else if (heard.size != static_cast<uint32_t>(size_) ||
               heard.from != static_cast<uint32_t>(peer)) {
      failure_ = Fail(ErrorCode::kInvalidArgument,
                      "{} is rank {} of {}, where rank {} of {} was expected: give every "
                      "rank the same list of addresses",
                      options_.addresses[peer], heard.from, heard.size, peer, size_);
    } else {
      ProveAsCaller(peer, attempt);
    }
  }

  void ProveAsCaller(int peer, const AttemptPtr& attempt) {
    attempt->proof_told = ProofOf(attempt->told, attempt->heard).OfCaller();
    Write(attempt, attempt->proof_told, [this, peer, attempt](error_code error) {
      if (error) return CallAgain(peer, attempt, error.message());
      Read(attempt, &attempt->proof_heard, [this, peer, attempt](error_code answer) {
        if (answer) return CallAgain(peer, attempt, kUnproved);
        const Digest wanted = ProofOf(attempt->told, attempt->heard).OfCalled();
        if (!SameProof(attempt->proof_heard, wanted)) {
          failure_ = Fail(ErrorCode::kInvalidArgument,
                          "{} has not proved that it is rank {} of this chain: give every rank "
                          "the same --cluster-key-file",
                          options_.addresses[peer], peer);
          return;
        }
        links_[peer] = std::move(attempt->link);
      });
    });
  }

  MeshProof ProofOf(const MeshHello& caller, const MeshHello& called) const {
    return {options_.key, options_.roster, caller, called};
  }

  // ---- the side that is called
  void Accept() {
    const auto attempt = std::make_shared<Attempt>(context_);
    acceptor_.async_accept(attempt->socket, [this, attempt](error_code error) {
      if (error) {  // no descriptors left, say
        retry_.expires_after(kTryAgainAfter);
        retry_.async_wait([this](error_code) { Accept(); });
        return;
      }
      Listen(attempt);
      Accept();
    });
  }

  void Listen(const AttemptPtr& attempt) {
    error_code error;
    const tcp::endpoint from = attempt->socket.remote_endpoint(error);
    if (error) return;  // it has gone
    attempt->address = from.address();
    attempt->link =
        std::make_unique<Link>(std::move(attempt->socket), options_.tls, Link::Role::kIsCalled);
    while (callers_.size() >= kCallersMax) HangUp(WhoMakesRoom(callers_));
    callers_.push_back(attempt);
    attempt->link->AsyncHandshake([this, attempt](error_code shaken) {
      if (shaken) return HangUp(attempt);
      Read(attempt, &attempt->heard, [this, attempt](error_code hello) {
        if (hello || !attempt->heard.HasMagic()) return HangUp(attempt);
        Answer(attempt);
      });
    });
  }

  void HangUp(AttemptPtr attempt) {
    if (std::erase(callers_, attempt) > 0) attempt->link->Close();
  }

  // Callers of another chain hear who we are, and say so to their users; the last that proves that
  // it is a rank counts.
  void Answer(const AttemptPtr& attempt) {
    attempt->told = HelloTo(attempt->heard.from);
    Write(attempt, attempt->told, [this, attempt](error_code error) {
      if (error || !IsHigherRank(attempt->heard)) return HangUp(attempt);
      Read(attempt, &attempt->proof_heard, [this, attempt](error_code proof) {
        const MeshProof wanted = ProofOf(attempt->heard, attempt->told);
        if (proof || !SameProof(attempt->proof_heard, wanted.OfCaller())) {
          if (!proof) errors_[attempt->heard.from] = kUnproved;
          return HangUp(attempt);
        }
        if (std::erase(callers_, attempt) > 0) ProveAsCalled(attempt, wanted.OfCalled());
      });
    });
  }

  void ProveAsCalled(const AttemptPtr& attempt, const Digest& proof) {
    attempt->proof_told = proof;
    Write(attempt, attempt->proof_told, [this, attempt](error_code error) {
      if (!error) links_[attempt->heard.from] = std::move(attempt->link);
    });
  }

  bool IsHigherRank(const MeshHello& heard) {
    if (heard.from >= static_cast<uint32_t>(size_) ||
        heard.from <= static_cast<uint32_t>(options_.rank)) {
      return false;
    }
    if (heard.size == static_cast<uint32_t>(size_) &&
        heard.to == static_cast<uint32_t>(options_.rank)) {
      return true;
    }
    errors_[heard.from] =
        fmt::format("it called rank {} of a chain of {} here", heard.to, heard.size);
    return false;
  }

  static constexpr const char* kUnproved =
      "who is there has not proved that it has this chain's cluster key";

  const TcpCommOptions& options_;
  const int size_;
  net::io_context context_;
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  std::vector<AttemptPtr> callers_;           // that have proved nothing yet, the oldest first
  std::vector<std::unique_ptr<Link>> links_;  // by rank, where connected
  std::vector<std::string> errors_;           // by rank: why it is not
  Status failure_;                            // for good
};

}  // namespace

Result<Endpoints> Resolve(net::io_context& context, const std::string& address) {
  const size_t colon = address.rfind(':');
  const char* const end = address.data() + address.size();
  const char* const digits = colon == std::string::npos ? end : address.data() + colon + 1;
  uint16_t port = 0;  // getaddrinfo would take the lowest 16 bits of a larger number
  const auto [parsed, wrong] = std::from_chars(digits, end, port);
  if (wrong != std::errc() || parsed != end) {
    return Fail(ErrorCode::kInvalidArgument, "{} is no address: give host:port", address);
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(port), error);
  if (error) return Fail(ErrorCode::kIo, "cannot find {}: {}", address, error.message());
  Endpoints endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return endpoints;
}

std::vector<Result<Endpoints>> ResolveAll(net::io_context& context,
                                          std::span<const std::string> addresses) {
  std::vector<std::future<Result<Endpoints>>> lookups;
  for (const std::string& address : addresses) {
    lookups.push_back(std::async(std::launch::async, [&] { return Resolve(context, address); }));
  }
  std::vector<Result<Endpoints>> found;
  for (auto& lookup : lookups) found.push_back(lookup.get());
  return found;
}

Status CheckDistinct(std::span<const std::string> addresses,
                     std::span<const Result<Endpoints>> found) {
  for (size_t i = 1; i < addresses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool same = found[i] && found[j] && *found[i] == *found[j];
      if (!same && addresses[i] != addresses[j]) continue;
      return Fail(ErrorCode::kInvalidArgument,
                  "the workers at {} and {} are one and the same: name each once", addresses[j],
                  addresses[i]);
    }
  }
  return {};
}

std::string NameOf(const tcp::endpoint& endpoint) {
  return HostAndPort(endpoint.address().to_string(), endpoint.port());
}

tcp::acceptor Duplicate(net::io_context& context, const TcpListener& listener) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  const int fd = dup(listener.fd());
  CHECK(fd >= 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  return {context, name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd};
}

Result<std::vector<RawLink>> ConnectMesh(const TcpListener& listener,
                                         const TcpCommOptions& options) {
  const int size = static_cast<int>(options.addresses.size());
  if (options.rank < 0 || options.rank >= size) {
    return Fail(ErrorCode::kInvalidArgument, "rank {} is not one of {} addresses", options.rank,
                size);
  }
  return Mesh(listener, options).Connect();
}

}  // namespace kvcake
