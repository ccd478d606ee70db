// A worker that waits for leaders, and callers of any kind, for the tests of their meeting.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/asio.h"
#include "comm/join_message.h"
#include "comm/tcp_join.h"

namespace kvcake::testing_util {

// Where nothing is to time out, however busy the machine is.
inline const JoinOptions kPatient{.patience = Seconds(120), .connect = Seconds(120)};
inline const ClusterKey kNoKey;

inline TcpListener ListenLocally() {
  auto listener = TcpListener::Open("127.0.0.1:0");
  CHECK(listener.has_value());
  return std::move(*listener);
}

// A line, without its end; empty where none comes any more. `text` holds what has come after it.
inline std::string HeardLine(boost::asio::ip::tcp::socket& socket, std::string* text) {
  boost::system::error_code end;
  const size_t bytes =
      boost::asio::read_until(socket, boost::asio::dynamic_buffer(*text), '\n', end);
  const std::string line = text->substr(0, bytes > 0 ? bytes - 1 : 0);
  text->erase(0, bytes);
  return line;
}

// A worker on a thread of its own.
class Waiting {
 public:
  explicit Waiting(JoinOptions options = kPatient) : options_(options) { Again(); }
  ~Waiting() { stop_.request_stop(); }

  std::string address() const { return fmt::format("127.0.0.1:{}", listener_.port()); }
  uint16_t port() const { return listener_.port(); }
  const TcpListener& listener() const { return listener_; }
  void Stop() { stop_.request_stop(); }
  // What the wait came to; once.
  Result<JoinedChain> Joined() { return joined_.get(); }
  void Again() {
    joined_ = std::async(std::launch::async,
                         [this] { return AwaitLeader(listener_, stop_.get_token(), options_); });
  }

 private:
  const JoinOptions options_;
  const TcpListener listener_ = ListenLocally();
  std::stop_source stop_;
  std::future<Result<JoinedChain>> joined_;
};

class Caller {
 public:
  explicit Caller(const Waiting& worker, const std::string& says = "",
                  const char* from = "127.0.0.1")
      : socket_(context_, {boost::asio::ip::make_address_v4(from), 0}) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), worker.port()});
    boost::system::error_code closed;  // may come before all is said
    boost::asio::write(socket_, boost::asio::buffer(says), closed);
  }
  void Say(const std::string& what) {
    boost::system::error_code closed;
    boost::asio::write(socket_, boost::asio::buffer(what), closed);
  }
  // A leader's part, up to the worker's answer, with whatever key.
  LeaderTalk::Answer Call(const ClusterKey& key, std::vector<std::string> roster, int rank = 0) {
    if (!Greet(key)) return LeaderTalk::Answer::kStranger;
    return GoOn(std::move(roster), rank);
  }
  // Its two halves.
  bool Greet(const ClusterKey& key) {
    talk_.emplace(key);
    Say(talk_->Greeting());
    return talk_->HearGreeting(HeardLine());
  }
  LeaderTalk::Answer GoOn(std::vector<std::string> roster, int rank = 0) {
    Say(talk_->CallOf({.roster = {chain_, std::move(roster)}, .rank = rank}));
    return talk_->HearAnswer(HeardLine());
  }
  // Each caller's own is another, unless it is told.
  const Nonce& chain() const { return chain_; }
  void SetChain(const Nonce& chain) { chain_ = chain; }
  const std::string& why() const { return talk_->why(); }
  void Go() { Say(talk_->Go()); }
  // What comes before the other side closes.
  std::string Heard() {
    std::string heard;
    boost::system::error_code end;
    boost::asio::read(socket_, boost::asio::dynamic_buffer(heard), end);
    return heard;
  }
  std::string HeardLine() { return testing_util::HeardLine(socket_, &text_); }

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  Nonce chain_ = NewNonce();
  std::string text_;
  std::optional<LeaderTalk> talk_;
};

}  // namespace kvcake::testing_util
