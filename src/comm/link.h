// A connection of a rank: a stream socket, or TLS over one.
//
// One thread at a time uses it. It is what Asio calls an AsyncStream: async_read and async_write
// take it. Without TLS it is the socket and nothing else. With it OpenSSL reads and writes the
// socket itself, whenever Asio says that it may, so that a connection can go from one io_context to
// another with all that has been read already.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/asio.h"
#include "comm/rank_tls.h"

struct ssl_st;

namespace kvcake {

struct SslFree {
  void operator()(ssl_st* ssl) const;
};
using SslPtr = std::unique_ptr<ssl_st, SslFree>;

// A connection without an io_context; whoever has it owns the descriptor.
struct RawLink {
  int fd = -1;
  SslPtr tls = {};
};

class Link {
 public:
  using Protocol = boost::asio::generic::stream_protocol;
  using Socket = Protocol::socket;
  using executor_type = Socket::executor_type;
  using error_code = boost::system::error_code;
  enum class Role { kCalls, kIsCalled };

  // In TLS unless `tls` is empty; then AsyncHandshake comes first.
  Link(Socket socket, const RankTls& tls, Role role);
  // Goes on with what was released.
  Link(boost::asio::io_context& context, RawLink raw);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  int fd() { return socket_.native_handle(); }

  // `next(error_code)`; at once where there is no TLS. What is wrong is said by WhyNot.
  template <typename Next>
  void AsyncHandshake(Next next) {
    if (!tls_) return next(error_code());
    Go(
        {Action::kHandshake}, [next](error_code error, size_t) { next(error); }, true);
  }
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (!tls_) {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
      return;
    }
    const auto buffer = First<boost::asio::mutable_buffer>(buffers);
    Go({Action::kRead, buffer.data(), buffer.size()}, std::forward<Handler>(handler), true);
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (!tls_) {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
      return;
    }
    const auto buffer = First<boost::asio::const_buffer>(buffers);
    Go({Action::kWrite, const_cast<void*>(buffer.data()), buffer.size()},
       std::forward<Handler>(handler), true);
  }

  // What an error of a transfer, or of the handshake, tells of the other end, for people.
  std::string WhyNot(error_code error) const;
  // Whether it is TLS that failed, and not the network: trying again is of no use.
  static bool IsOfTls(error_code error);
  // Whether it is what a handshake with one that speaks no TLS ends with.
  static bool IsOfNoTls(error_code error);

  // No TLS any more: what is left of a handshake that has failed.
  void GoPlain() { tls_.reset(); }
  // What of it goes without waiting, if it is the last that is sent and nothing is on its way.
  void SendAtOnce(std::span<const std::byte> bytes);
  // The other end hears that nothing more comes; what it sends can still be read.
  void EndSending();
  // No buffer is touched any more; transfers end with an error.
  void Close();
  // When no transfer is going on.
  RawLink Release();

 private:
  struct Action {
    enum Kind { kHandshake, kRead, kWrite } kind;
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Step {
    std::optional<Socket::wait_type> waits_for = {};
    error_code error = {};
    size_t bytes = 0;
  };

  // The first that is not empty, if there is one.
  template <typename Buffer, typename Buffers>
  static Buffer First(const Buffers& buffers) {
    for (auto it = boost::asio::buffer_sequence_begin(buffers);
         it != boost::asio::buffer_sequence_end(buffers); ++it) {
      if (const Buffer buffer(*it); buffer.size() > 0) return buffer;
    }
    return {};
  }

  // Calls the handler once the action is done, and never before it has returned.
  template <typename Handler>
  void Go(const Action& action, Handler handler, bool begins) {
    const Step step = Try(action);
    if (step.waits_for) {
      socket_.async_wait(*step.waits_for,
                         [this, action, handler = std::move(handler)](error_code error) mutable {
                           if (error) return handler(error, 0);
                           Go(action, std::move(handler), false);
                         });
    } else if (begins) {
      boost::asio::post(get_executor(), [step, handler = std::move(handler)]() mutable {
        handler(step.error, step.bytes);
      });
    } else {
      handler(step.error, step.bytes);
    }
  }
  // As much as goes without waiting.
  Step Try(const Action& action);
  Step Failed(int result);

  Socket socket_;
  SslPtr tls_;
  bool closed_ = false;
  bool shaken_ = false;  // the handshake is done
};

}  // namespace kvcake
