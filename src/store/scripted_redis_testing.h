// A Redis server that says what a test wants, where a real one would seldom do so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/redis_asio.h"

namespace kvcake {

// Lives in the context of who asks it: it answers while that runs.
class ScriptedRedis {
 public:
  using Words = std::vector<std::string>;
  // The reply as bytes; empty: the connection is closed instead.
  using Script = std::function<std::string(const Words&)>;

  ScriptedRedis(boost::asio::io_context& context, Script script)
      : acceptor_(context, {boost::asio::ip::address_v4::loopback(), 0}),
        script_(std::make_shared<Script>(std::move(script))) {
    Accept();
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  int connections() const { return connections_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  struct Session : std::enable_shared_from_this<Session> {
    Session(Tcp::socket accepted, std::shared_ptr<Script> script)
        : socket(std::move(accepted)), script(std::move(script)) {}

    void Read() {
      socket.async_read_some(boost::asio::buffer(bytes),
                             [self = shared_from_this()](auto error, size_t n) {
                               if (error) return;
                               self->asked.append(self->bytes, n);
                               self->Answer();
                             });
    }
    void Answer() {
      std::string replies;
      for (Words words = TakeCommand(); !words.empty(); words = TakeCommand()) {
        const std::string reply = (*script)(words);
        if (reply.empty()) return socket.close();
        replies += reply;
      }
      boost::system::error_code ignored;
      boost::asio::write(socket, boost::asio::buffer(replies), ignored);
      Read();
    }
    // The first command, taken off; nothing where it has not come yet.
    Words TakeCommand() {
      size_t at = 0;
      const auto number = [&]() -> std::optional<size_t> {
        const size_t end = asked.find("\r\n", at);
        if (end == asked.npos) return std::nullopt;
        const size_t value = std::stoul(asked.substr(at + 1, end - at - 1));
        at = end + 2;
        return value;
      };
      const auto count = number();
      Words words;
      while (count && words.size() < *count) {
        const auto size = number();
        if (!size || asked.size() < at + *size + 2) return {};
        words.push_back(asked.substr(at, *size));
        at += *size + 2;
      }
      if (!words.empty()) asked.erase(0, at);
      return words;
    }

    Tcp::socket socket;
    std::shared_ptr<Script> script;
    char bytes[4096];
    std::string asked;
  };

  void Accept() {
    acceptor_.async_accept([this](auto error, Tcp::socket socket) {
      if (error) return;
      ++connections_;
      std::make_shared<Session>(std::move(socket), script_)->Read();
      Accept();
    });
  }

  Tcp::acceptor acceptor_;
  const std::shared_ptr<Script> script_;
  int connections_ = 0;
};

}  // namespace kvcake
