#include "store/redis_connection.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/printable.h"

namespace kvcake {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;

namespace {

// The most that one write takes of what waits; a value goes along whole.
constexpr size_t kWriteCommandsMax = 64;
constexpr size_t kWriteBytesMax = 1 << 20;  // in one call

void AppendWord(std::string* out, std::string_view word) {
  *out += fmt::format("${}\r\n", word.size());
  *out += word;
  *out += "\r\n";
}

size_t ValueBytes(const RedisCommand& command) {
  size_t bytes = 0;
  for (const auto piece : command.value) bytes += piece.size();
  return bytes;
}

}  // namespace

RedisConnection::RedisConnection(asio::io_context& context, RedisConnectionOptions options,
                                 std::function<void(const Error&)> ended)
    : context_(context),
      options_(std::move(options)),
      ended_(std::move(ended)),
      lookup_(context),
      stream_(std::in_place_index<0>, context),
      timer_(context) {
  if (options_.tls) stream_.emplace<TlsStream>(context, *options_.tls);
}

RedisConnection::~RedisConnection() { CHECK(pending() == 0); }

RedisConnection::Tcp::socket& RedisConnection::socket() {
  if (auto* plain = std::get_if<Tcp::socket>(&stream_)) return *plain;
  return std::get<TlsStream>(stream_).next_layer();
}

template <typename... Results, typename Next>
auto RedisConnection::Then(const char* what, Next next) {
  ++operations_;
  return [self = shared_from_this(), what, next = std::move(next)](error_code error,
                                                                   Results... results) {
    --self->operations_;
    if (self->error_) return self->EndWhenIdle();
    if (error) {
      // What OpenSSL refuses it will refuse again, until somebody gives it other certificates.
      const bool is_tls = error.category() == asio::error::get_ssl_category();
      return self->Fail(
          {is_tls ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
           fmt::format("{} {}: {}", what, self->address_.Text(), error.message())});
    }
    next(results...);
  };
}

void RedisConnection::Start(const RedisAddress& address) {
  address_ = address;
  After(options_.connect_timeout, [this] {
    if (ready_) return;  // at the same moment
    Fail({ErrorCode::kDeadline, fmt::format("{} has not answered within {} s{}", address_.Text(),
                                            options_.connect_timeout.count(),
                                            options_.tls ? ": does it speak TLS?" : "")});
  });
  lookup_.Start(
      address.host, address.port,
      [self = shared_from_this()](error_code error, const NameLookup::Endpoints& found) {
        if (self->error_) return;
        if (!error) return self->Connect(found);
        self->Fail({ErrorCode::kIo,
                    fmt::format("cannot find {}: {}", self->address_.Text(), error.message())});
      });
}

void RedisConnection::Connect(const NameLookup::Endpoints& found) {
  asio::async_connect(
      socket(), found,
      Then<Tcp::endpoint>("cannot connect to", [this](const Tcp::endpoint&) { Handshake(); }));
}

void RedisConnection::Handshake() {
  error_code ignored;
  socket().set_option(Tcp::no_delay(true), ignored);
  auto* tls = std::get_if<TlsStream>(&stream_);
  if (tls == nullptr) return LogIn();
  SSL_set_tlsext_host_name(tls->native_handle(), address_.host.c_str());
  tls->set_verify_callback(ssl::host_name_verification(address_.host));
  tls->async_handshake(ssl::stream_base::client, Then("no TLS with", [this] { LogIn(); }));
}

void RedisConnection::LogIn() {
  Read();
  const auto& [user, password] = options_.login;
  if (password.empty()) return SelectDatabase();
  std::vector<std::string> words = {"AUTH"};
  if (!user.empty()) words.push_back(user);
  words.push_back(password);
  Prepare(std::move(words), "refuses the user or the password", &RedisConnection::SelectDatabase);
}

void RedisConnection::SelectDatabase() {
  if (options_.database == 0) return Ready();
  Prepare({"SELECT", std::to_string(options_.database)},
          fmt::format("has no database {} for it", options_.database), &RedisConnection::Ready);
}

void RedisConnection::Prepare(std::vector<std::string> words, std::string refused,
                              void (RedisConnection::*next)()) {
  RedisCommand command;
  command.words = std::move(words);
  command.done = [this, refused = std::move(refused), next](Result<RespReply> reply) {
    if (!reply) return;
    if (reply->IsText("OK")) return (this->*next)();
    if (reply->text.starts_with("ERR max number of clients")) {  // said before it reads anything
      return Fail({ErrorCode::kIo, fmt::format("{} has as many clients as it may have: maxclients",
                                               address_.Text())});
    }
    // Only the first word: some servers repeat what they were sent.
    Fail({ErrorCode::kInvalidArgument,
          fmt::format("{} {}: {}", address_.Text(), refused, PrintableAscii(reply->ErrorWord()))});
  };
  waiting_.push_front({std::move(command), 0});
  Write();
}

void RedisConnection::Ready() {
  ready_ = true;
  moved_ = Clock::Real().Now();
  WatchReplies();
  Write();
}

void RedisConnection::Send(RedisCommand command) {
  CHECK(!is_ending());
  const uint64_t bytes = ValueBytes(command) + command.landing.size();
  pending_bytes_ += bytes;
  if (asked_.empty()) moved_ = Clock::Real().Now();
  waiting_.push_back({std::move(command), bytes});
  if (ready_) Write();
}

void RedisConnection::Write() {
  if (writing_ || waiting_.empty() || error_) return;
  writing_ = true;
  // A login goes alone: what waits behind it may be refused.
  const size_t commands = ready_ ? std::min(waiting_.size(), kWriteCommandsMax) : 1;
  out_.clear();
  std::vector<std::pair<size_t, std::span<const std::byte>>> values;  // and where they are in out_
  for (size_t i = 0; i < commands; ++i) {
    const RedisCommand& command = waiting_[i].command;
    const bool has_value = !command.value.empty();
    out_ += fmt::format("*{}\r\n", command.words.size() + has_value + command.words_behind.size());
    for (const std::string& word : command.words) AppendWord(&out_, word);
    if (has_value) {
      out_ += fmt::format("${}\r\n", ValueBytes(command));
      for (const auto piece : command.value) values.emplace_back(out_.size(), piece);
      out_ += "\r\n";
    }
    for (const std::string& word : command.words_behind) AppendWord(&out_, word);
  }
  buffers_.clear();
  size_t at = 0;
  for (const auto& [where, piece] : values) {
    if (where > at) buffers_.push_back(asio::buffer(&out_[at], where - at));
    buffers_.push_back(asio::buffer(piece.data(), piece.size()));
    at = where;
  }
  buffers_.push_back(asio::buffer(out_.data() + at, out_.size() - at));
  if (asked_.empty()) turn_ = Clock::Real().Now();
  unwritten_ = commands;
  asked_.insert(asked_.end(), std::make_move_iterator(waiting_.begin()),
                std::make_move_iterator(waiting_.begin() + commands));
  waiting_.erase(waiting_.begin(), waiting_.begin() + commands);
  const bool has_values = !values.empty();
  const auto written = Then<size_t>("cannot write to", [this, has_values](size_t) {
    if (has_values) moved_ = Clock::Real().Now();
    writing_ = false;
    unwritten_ = 0;
    AnswerEarly();
    if (ready_) Write();
  });
  // A write of much is seen to get on. Of little it is only known that the kernel has taken it, as
  // it does for a server that hangs or whose cable is cut.
  const auto more = [this, has_values](error_code error, size_t) -> size_t {
    if (has_values) moved_ = Clock::Real().Now();
    return error ? 0 : kWriteBytesMax;
  };
  std::visit([&](auto& stream) { asio::async_write(stream, buffers_, more, written); }, stream_);
}

void RedisConnection::Read() {
  const auto into = reader_.Prepare();
  const auto read = Then<size_t>("cannot read from", [this](size_t bytes) {
    moved_ = Clock::Real().Now();
    // Nothing follows for what was asked for: it is no kCorrupt.
    if (const Status parsed = reader_.Commit(bytes); !parsed) {
      return Fail({ErrorCode::kIo, parsed.error().message});
    }
    if (error_) return EndWhenIdle();
    Read();
  });
  std::visit(
      [&](auto& stream) { stream.async_read_some(asio::buffer(into.data(), into.size()), read); },
      stream_);
}

std::span<std::byte> RedisConnection::LandingFor(uint64_t bytes) {
  if (asked_.empty()) return {};
  const RedisCommand& command = asked_.front().command;
  const bool is_shorter = command.may_be_shorter && bytes < command.landing.size();
  return is_shorter ? command.landing.first(bytes) : command.landing;
}

void RedisConnection::OnReply(RespReply reply) {
  if (error_) return;
  if (asked_.empty()) {
    return Fail({ErrorCode::kIo, fmt::format("{} answers what was not asked", address_.Text())});
  }
  Asked asked = std::move(asked_.front());
  asked_.pop_front();
  turn_ = Clock::Real().Now();
  const bool is_unwritten = asked_.size() < unwritten_;
  if (is_unwritten) unwritten_ = asked_.size();
  if (is_unwritten && !asked.command.value.empty()) {
    early_.emplace_back(std::move(asked), std::move(reply));
    return;
  }
  Answer(std::move(asked), std::move(reply));
}

void RedisConnection::Answer(Asked asked, RespReply reply) {
  pending_bytes_ -= asked.bytes;
  asked.command.done(std::move(reply));
  if (is_retiring_ && pending() == 0) Close();
}

void RedisConnection::AnswerEarly() {
  for (auto& [asked, reply] : std::exchange(early_, {})) {
    Answer(std::move(asked), std::move(reply));
  }
}

bool RedisConnection::IsOverdue(TimePoint now) const {
  const Seconds transfer(static_cast<double>(pending_bytes_) / options_.slowest_bytes_per_s);
  return now - turn_ > options_.reply_timeout + transfer;
}

template <typename Next>
void RedisConnection::After(Seconds delay, Next next) {
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(delay));
  timer_.async_wait([self = shared_from_this(), next](error_code error) {
    if (!error && !self->error_) next();
  });
}

void RedisConnection::WatchReplies() {
  const Seconds patience = std::min(options_.stall_timeout, options_.reply_timeout);
  After(patience, [this, patience] {
    const TimePoint now = Clock::Real().Now();
    const bool is_due = !asked_.empty() || writing_;
    const bool is_overdue = is_due && IsOverdue(now);
    if (is_overdue && moved_ > turn_) {
      return Fail({ErrorCode::kDeadline,
                   fmt::format("{} answers a byte at a time, for more than {} s", address_.Text(),
                               options_.reply_timeout.count())});
    }
    if (is_overdue || (is_due && now - moved_ >= options_.stall_timeout)) {
      return Fail({ErrorCode::kDeadline, fmt::format("{} has been silent for {} s",
                                                     address_.Text(), patience.count())});
    }
    WatchReplies();
  });
}

void RedisConnection::Close() {
  if (!error_) Fail({ErrorCode::kCancelled, "the store is closed"});
}

void RedisConnection::Retire() {
  is_retiring_ = true;
  if (pending() == 0) Close();
}

void RedisConnection::Fail(Error error) {
  if (error_) return;
  error_ = std::move(error);
  error_code ignored;
  lookup_.Cancel();
  timer_.cancel();
  socket().close(ignored);
  // Never from within Send, or a `done`.
  asio::post(context_, [self = shared_from_this()] { self->EndWhenIdle(); });
}

void RedisConnection::EndWhenIdle() {
  if (operations_ > 0 || !ended_) return;
  const auto ended = std::exchange(ended_, nullptr);
  std::deque<Asked> left = std::move(asked_);
  for (auto& [asked, reply] : std::exchange(early_, {})) left.push_back(std::move(asked));
  left.insert(left.end(), std::make_move_iterator(waiting_.begin()),
              std::make_move_iterator(waiting_.end()));
  asked_.clear();
  waiting_.clear();
  pending_bytes_ = 0;
  for (const Asked& asked : left) asked.command.done(tl::unexpected(*error_));
  ended(*error_);
}

}  // namespace kvcake
