#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "bench/bare_gets.h"

namespace kvcake::bench {
namespace {

using Words = std::vector<std::string>;

// A connection that has sent commands, and reads their replies in order.
class Connection {
 public:
  static Result<std::unique_ptr<Connection>> Open(const RedisPlace& place, uint64_t bytes) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const RedisAddress& address = place.seeds[0];
    if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
        0) {
      return Fail(ErrorCode::kIo, "{} is not known", address.Text());
    }
    std::unique_ptr<Connection> connection(new Connection(bytes));
    connection->socket_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int connected = connect(connection->socket_, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (connected != 0) {
      return Fail(ErrorCode::kIo, "{}: {}", address.Text(), std::strerror(errno));
    }
    const int on = 1;
    setsockopt(connection->socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const auto& [user, password] = place.login;
    if (!password.empty()) {
      RETURN_IF_ERROR(
          connection->Tell(user.empty() ? Words{"AUTH", password} : Words{"AUTH", user, password}));
    }
    if (place.database > 0) {
      RETURN_IF_ERROR(connection->Tell({"SELECT", std::to_string(place.database)}));
    }
    return connection;
  }
  ~Connection() { close(socket_); }

  int socket() const { return socket_; }
  int pending() const { return pending_; }

  Status Ask(const std::string& name) {
    ++pending_;
    return Send({"GET", name});
  }
  // Reads what has come, once.
  Status Read() {
    if (head_.size() < wanted_head_) return ReadHead();
    const size_t rest = value_.size() + 2 - landed_;  // and the end of the line
    std::byte end[2];
    const bool is_end = landed_ >= value_.size();
    const ssize_t got = is_end ? recv(socket_, end, rest, 0)
                               : recv(socket_, &value_[landed_], value_.size() - landed_, 0);
    if (got <= 0) return Fail(ErrorCode::kIo, "the Redis server has closed the connection");
    landed_ += static_cast<size_t>(got);
    if (landed_ == value_.size() + 2) {
      landed_ = 0;
      head_.clear();
      --pending_;
    }
    return {};
  }

 private:
  explicit Connection(uint64_t bytes)
      : value_(bytes), wanted_head_(fmt::format("${}\r\n", bytes).size()) {}

  Status SendAll(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return Fail(ErrorCode::kIo, "the Redis server has closed the connection");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return {};
  }
  // With the length of each word, which may be of any bytes.
  Status Send(const Words& command) {
    std::string text = fmt::format("*{}\r\n", command.size());
    for (const std::string& word : command) {
      text += fmt::format("${}\r\n{}\r\n", word.size(), word);
    }
    return SendAll(text);
  }
  // Fails where the answer is not OK.
  Status Tell(const Words& command) {
    RETURN_IF_ERROR(Send(command));
    std::string reply;
    for (char c = 0; c != '\n'; reply += c) {
      if (recv(socket_, &c, 1, 0) != 1) return Fail(ErrorCode::kIo, "Redis does not answer");
    }
    return reply == "+OK\r\n" ? Status() : Fail(ErrorCode::kIo, "Redis says: {}", reply);
  }
  Status ReadHead() {
    char some[64];
    const ssize_t got = recv(socket_, some, wanted_head_ - head_.size(), 0);
    if (got <= 0) return Fail(ErrorCode::kIo, "the Redis server has closed the connection");
    head_.append(some, static_cast<size_t>(got));
    if (head_.size() == wanted_head_ && head_ != fmt::format("${}\r\n", value_.size())) {
      return Fail(ErrorCode::kIo, "Redis answers {}, which is no value of {} bytes", head_,
                  value_.size());
    }
    return {};
  }

  int socket_ = -1;
  int pending_ = 0;
  std::vector<std::byte> value_;  // of one after another
  const size_t wanted_head_;
  std::string head_;
  size_t landed_ = 0;
};

}  // namespace

Result<Rate> BareRedisGets(const RedisPlace& place, const std::vector<std::string>& names,
                           uint64_t bytes, int connections, int pipelined) {
  if (place.is_tls) return Fail(ErrorCode::kUnsupported, "the bare loop knows no TLS");
  std::vector<std::unique_ptr<Connection>> open;
  for (int i = 0; i < connections; ++i) {
    ASSIGN_OR_RETURN(auto connection, Connection::Open(place, bytes));
    open.push_back(std::move(connection));
  }
  const Stopwatch watch;
  size_t next = 0, pending = names.size();
  while (pending > 0) {
    std::vector<pollfd> polled;
    for (const auto& connection : open) {
      while (next < names.size() && connection->pending() < pipelined) {
        RETURN_IF_ERROR(connection->Ask(names[next++]));
      }
      polled.push_back(
          {connection->socket(), static_cast<short>(connection->pending() > 0 ? POLLIN : 0), 0});
    }
    poll(polled.data(), polled.size(), -1);
    for (size_t i = 0; i < open.size(); ++i) {
      if ((polled[i].revents & POLLIN) == 0) continue;
      const int before = open[i]->pending();
      RETURN_IF_ERROR(open[i]->Read());
      pending -= static_cast<size_t>(before - open[i]->pending());
    }
  }
  return watch.Of(names.size() * bytes);
}

}  // namespace kvcake::bench
