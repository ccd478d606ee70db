#include "comm/tcp_mesh.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <memory>
#include <optional>

#include "base/check.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kRetry{50};

// What both ends of a new connection say first; its bytes never change meaning.
struct Hello {
  std::array<char, 8> magic = {'k', 'v', 'c', 'h', 'a', 'i', 'n', '1'};
  uint32_t size = 0, from = 0, to = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 24 && std::endian::native == std::endian::little);

class Mesh {
 public:
  Mesh(const TcpListener& listener, const TcpCommOptions& options)
      : options_(options),
        size_(static_cast<int>(options.addresses.size())),
        acceptor_(Duplicate(context_, listener)),
        sockets_(size_),
        errors_(size_, "it has not called") {
    std::fill_n(errors_.begin(), options.rank, "it does not answer");
  }

  Result<std::vector<int>> Connect() {
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::nanoseconds>(options_.timeout);
    for (int peer = 0; peer < options_.rank; ++peer) {
      ASSIGN_OR_RETURN(auto endpoints, Resolve(context_, options_.addresses[peer]));
      Call(peer, std::move(endpoints));
    }
    Accept();
    while (Missing() > 0 && failure_ && context_.run_one_until(deadline) > 0) {
    }
    RETURN_IF_ERROR(failure_);
    if (Missing() > 0) return TimedOut();
    std::vector<int> sockets(size_, -1);
    for (int peer = 0; peer < size_; ++peer) {
      if (sockets_[peer]) sockets[peer] = sockets_[peer]->release();
    }
    return sockets;
  }

 private:
  // A connection that is not known to be a rank's yet.
  struct Attempt {
    explicit Attempt(net::io_context& context) : socket(context), timer(context) {}
    tcp::socket socket;
    net::steady_timer timer;
    std::vector<tcp::endpoint> endpoints;
    Hello heard, told;
  };

  int Missing() const {
    int missing = -1;  // not ourselves
    for (const auto& socket : sockets_) missing += socket ? 0 : 1;
    return missing;
  }

  tl::unexpected<Error> TimedOut() const {
    std::string missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == options_.rank || sockets_[peer]) continue;
      missing += fmt::format("{}rank {} at {}: {}", missing.empty() ? "" : "; ", peer,
                             options_.addresses[peer], errors_[peer]);
    }
    return Fail(ErrorCode::kDeadline, "rank {} is not connected within {} s: {}", options_.rank,
                options_.timeout.count(), missing);
  }

  Hello HelloTo(uint32_t peer) const {
    Hello hello;
    hello.size = static_cast<uint32_t>(size_);
    hello.from = static_cast<uint32_t>(options_.rank);
    hello.to = peer;
    return hello;
  }

  void Call(int peer, std::vector<tcp::endpoint> endpoints) {
    const auto attempt = std::make_shared<Attempt>(context_);
    attempt->endpoints = std::move(endpoints);
    net::async_connect(attempt->socket, attempt->endpoints,
                       [this, peer, attempt](error_code error, const tcp::endpoint&) {
                         if (error) return CallAgain(peer, attempt, error.message());
                         Greet(peer, attempt);
                       });
  }

  void CallAgain(int peer, const std::shared_ptr<Attempt>& attempt, std::string why) {
    errors_[peer] = std::move(why);
    attempt->timer.expires_after(kRetry);
    attempt->timer.async_wait([this, peer, attempt](error_code error) {
      if (!error) Call(peer, std::move(attempt->endpoints));
    });
  }

  void Greet(int peer, const std::shared_ptr<Attempt>& attempt) {
    attempt->told = HelloTo(static_cast<uint32_t>(peer));
    net::async_write(attempt->socket, net::buffer(&attempt->told, sizeof(Hello)),
                     [this, peer, attempt](error_code error, size_t) {
                       if (error) return CallAgain(peer, attempt, error.message());
                       AwaitAnswer(peer, attempt);
                     });
  }

  void AwaitAnswer(int peer, const std::shared_ptr<Attempt>& attempt) {
    errors_[peer] = "it does not answer";
    net::async_read(
        attempt->socket, net::buffer(&attempt->heard, sizeof(Hello)),
        [this, peer, attempt](error_code error, size_t) {
          if (error) return CallAgain(peer, attempt, "it closed the connection");
          const Hello& heard = attempt->heard;
          if (heard.magic != Hello{}.magic) {
            failure_ = Fail(ErrorCode::kInvalidArgument, "{} is no rank of this kvcake's kind",
                            options_.addresses[peer]);
          } else if (heard.size != static_cast<uint32_t>(size_) ||
                     heard.from != static_cast<uint32_t>(peer)) {
            failure_ = Fail(ErrorCode::kInvalidArgument,
                            "{} is rank {} of {}, where rank {} of {} was expected: give every "
                            "rank the same list of addresses",
                            options_.addresses[peer], heard.from, heard.size, peer, size_);
          } else {
            sockets_[peer] = std::move(attempt->socket);
          }
        });
  }

  void Accept() {
    const auto attempt = std::make_shared<Attempt>(context_);
    acceptor_.async_accept(attempt->socket, [this, attempt](error_code error) {
      if (error) {
        failure_ = Fail(ErrorCode::kIo, "cannot accept connections at {}: {}",
                        options_.addresses[options_.rank], error.message());
        return;
      }
      net::async_read(attempt->socket, net::buffer(&attempt->heard, sizeof(Hello)),
                      [this, attempt](error_code error, size_t) {
                        if (!error && attempt->heard.magic == Hello{}.magic) Answer(attempt);
                      });
      Accept();
    });
  }

  // Callers of another chain hear who we are, and say so to their users; the last call counts.
  void Answer(const std::shared_ptr<Attempt>& attempt) {
    attempt->told = HelloTo(attempt->heard.from);
    net::async_write(attempt->socket, net::buffer(&attempt->told, sizeof(Hello)),
                     [this, attempt](error_code error, size_t) {
                       if (error || !IsHigherRank(attempt->heard)) return;
                       sockets_[attempt->heard.from] = std::move(attempt->socket);
                     });
  }

  bool IsHigherRank(const Hello& heard) {
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

  const TcpCommOptions& options_;
  const int size_;
  net::io_context context_;
  tcp::acceptor acceptor_;
  std::vector<std::optional<tcp::socket>> sockets_;  // by rank, where connected
  std::vector<std::string> errors_;                  // by rank: why it is not
  Status failure_;                                   // for good
};

}  // namespace

Result<std::vector<tcp::endpoint>> Resolve(net::io_context& context, const std::string& address) {
  const size_t colon = address.rfind(':');
  const bool has_port = colon != std::string::npos && colon + 1 < address.size() &&
                        address.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!has_port) {
    return Fail(ErrorCode::kInvalidArgument, "{} is no address: give host:port", address);
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, address.substr(colon + 1), error);
  if (error) return Fail(ErrorCode::kIo, "cannot find {}: {}", address, error.message());
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  return endpoints;
}

tcp::acceptor Duplicate(net::io_context& context, const TcpListener& listener) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  const int fd = dup(listener.fd());
  CHECK(fd >= 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  return {context, name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd};
}

Result<std::vector<int>> ConnectMesh(const TcpListener& listener, const TcpCommOptions& options) {
  const int size = static_cast<int>(options.addresses.size());
  if (options.rank < 0 || options.rank >= size) {
    return Fail(ErrorCode::kInvalidArgument, "rank {} is not one of {} addresses", options.rank,
                size);
  }
  return Mesh(listener, options).Connect();
}

}  // namespace kvcake
