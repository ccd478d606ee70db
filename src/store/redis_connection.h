// One connection to one Redis server: commands go out as fast as the socket takes them, replies
// come back in their order, large ones straight into their landings.
//
// Everything happens on the thread that runs the io_context.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "store/name_lookup.h"
#include "store/redis_asio.h"
#include "store/redis_place.h"
#include "store/resp_reader.h"

namespace kvcake {

struct RedisConnectionOptions {
  RedisLogin login = {};
  int database = 0;
  std::shared_ptr<boost::asio::ssl::context> tls = nullptr;  // null: none
  Seconds connect_timeout{2};                                // until the first command can go out
  Seconds stall_timeout{5};  // without a byte, of a reply or of a value, while replies are due
  // A reply may take so long, and as long again as all that is under way takes at the rate.
  Seconds reply_timeout{30};
  double slowest_bytes_per_s = 1 << 20;
};

// A command: words, then a value that is not copied, then more words.
struct RedisCommand {
  std::vector<std::string> words;
  std::vector<std::span<const std::byte>> value = {};  // in pieces; until `done`. Empty: none
  std::vector<std::string> words_behind = {};
  std::span<std::byte> landing = {};  // of a bulk that is as long, until `done`. Empty: text
  bool may_be_shorter = false;        // than the landing: how long the bulk is is not known
  // Called exactly once, never from within Send: the reply, which may be an error of the server's;
  // or why there is none, of which it is not known what became of the command.
  std::function<void(Result<RespReply>)> done = nullptr;
};

class RedisConnection : private RespSink, public std::enable_shared_from_this<RedisConnection> {
 public:
  // `context` outlives it; `ended` is called once, when the last `done` has been and none will be
  // again, with why.
  RedisConnection(boost::asio::io_context& context, RedisConnectionOptions options,
                  std::function<void(const Error&)> ended);
  ~RedisConnection() override;

  // Begins to connect. Once, and first.
  void Start(const RedisAddress& address);
  // Commands wait until the connection is there. Not after Close, Retire, or `ended`.
  void Send(RedisCommand command);
  // Ends it: what has no reply yet is done with kCancelled.
  void Close();
  // Ends it once all that was sent has its reply; nothing more is sent.
  void Retire();

  bool is_ending() const { return is_retiring_ || error_.has_value(); }
  bool was_ready() const { return ready_; }  // it was there, whatever came of it
  size_t pending() const { return waiting_.size() + asked_.size() + early_.size(); }
  uint64_t pending_bytes() const { return pending_bytes_; }

 private:
  using Tcp = boost::asio::ip::tcp;
  using TlsStream = boost::asio::ssl::stream<Tcp::socket>;
  using error_code = boost::system::error_code;
  struct Asked {
    RedisCommand command;
    uint64_t bytes;  // of its value and landing
  };

  std::span<std::byte> LandingFor(uint64_t bytes) override;
  void OnReply(RespReply reply) override;

  void Connect(const NameLookup::Endpoints& found);
  void Handshake();
  void LogIn();
  void SelectDatabase();
  // Sends what comes before all other commands, and ends the connection with `refused` unless the
  // server agrees.
  void Prepare(std::vector<std::string> words, std::string refused,
               void (RedisConnection::*next)());
  void Ready();
  void Write();
  void Read();
  // Begins an operation on the socket, whose handler calls `next` unless the connection ends.
  template <typename... Results, typename Next>
  auto Then(const char* what, Next next);
  // Hands out replies that came while what they answer was being written.
  void AnswerEarly();
  void Answer(Asked asked, RespReply reply);
  // Calls `next` unless the connection ends before, or After is called again.
  template <typename Next>
  void After(Seconds delay, Next next);
  // Ends the connection when what is due does not come.
  void WatchReplies();
  bool IsOverdue(TimePoint now) const;
  // Ends the connection once the socket's operations have: until then buffers are theirs.
  void Fail(Error error);
  void EndWhenIdle();
  Tcp::socket& socket();

  boost::asio::io_context& context_;
  const RedisConnectionOptions options_;
  std::function<void(const Error&)> ended_;
  RedisAddress address_;
  NameLookup lookup_;
  std::variant<Tcp::socket, TlsStream> stream_;
  boost::asio::steady_timer timer_;
  RespReader reader_{*this};

  bool ready_ = false, writing_ = false, is_retiring_ = false;
  int operations_ = 0;          // on the socket
  std::optional<Error> error_;  // it is ending, or has ended
  // When a byte last came, or one of a value went, or the first reply became due.
  TimePoint moved_{};
  TimePoint turn_{};            // when the first of what was asked became the first
  std::deque<Asked> waiting_, asked_;
  size_t unwritten_ = 0;  // the last of asked_, which are being written
  // Answered before they were written: what is being written is theirs until it has been.
  std::vector<std::pair<Asked, RespReply>> early_;
  uint64_t pending_bytes_ = 0;
  std::string out_;  // what is being written, but for values
  std::vector<boost::asio::const_buffer> buffers_;
};

}  // namespace kvcake
