#include "bench/serve_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace kvcake::bench {
namespace {

constexpr std::string_view kPath = "/v1/completions";

Status Failed(const char* what) {
  return Fail(ErrorCode::kIo, "cannot {} the server: {}", what, std::strerror(errno));
}

// Whether all of an answer has been received, as its header tells.
bool IsWhole(const std::string& received) {
  const size_t head = received.find("\r\n\r\n");
  if (head == std::string::npos) return false;
  const std::string_view header = std::string_view(received).substr(0, head + 2);
  if (header.find("Transfer-Encoding: chunked") != std::string_view::npos) {
    return received.ends_with("\r\n0\r\n\r\n");
  }
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t at = header.find(kLength);
  const size_t length =
      at == std::string_view::npos ? 0 : std::strtoull(&header[at + kLength.size()], nullptr, 10);
  return received.size() >= head + 4 + length;
}

}  // namespace

HttpClient::~HttpClient() {
  if (fd_ >= 0) close(fd_);
}

Status HttpClient::Connect(uint16_t port) {
  if (fd_ >= 0) close(fd_);
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("connect to");
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {};
}

Status HttpClient::Send(std::string_view method, std::string_view path, std::string_view body) {
  received_.clear();
  const std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  method, path, body.size(), body);
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return Failed("write to");
    if (n > 0) sent += static_cast<size_t>(n);
  }
  return {};
}

Result<bool> HttpClient::Receive() {
  std::array<char, 65536> space;
  const ssize_t n = recv(fd_, space.data(), space.size(), 0);
  if (n < 0 && errno == EINTR) return false;
  if (n < 0) return tl::unexpected<Error>(Failed("read from").error());
  if (n == 0) return Fail(ErrorCode::kIo, "the server has closed a connection: {}", received_);
  received_.append(space.data(), static_cast<size_t>(n));
  if (!IsWhole(received_)) return false;
  if (!received_.starts_with("HTTP/1.1 200")) {
    return Fail(ErrorCode::kIo, "the server answers: {}", received_);
  }
  return true;
}

Result<std::string> HttpClient::Ask(std::string_view method, std::string_view path,
                                    std::string_view body) {
  RETURN_IF_ERROR(Send(method, path, body));
  for (;;) {
    ASSIGN_OR_RETURN(const bool whole, Receive());
    if (whole) return received_;
  }
}

namespace {

// One of the streams.
struct Stream {
  HttpClient client = {};
  TimePoint sent = {};
  int requests = 0;
  AnswerTimes times = {};
};

class Streams {
 public:
  Streams(uint16_t port, const StreamsOptions& options) : port_(port), options_(options) {}

  Result<std::vector<AnswerTimes>> Run() {
    streams_.resize(options_.streams);
    for (Stream& stream : streams_) {
      if (asked_ < options_.requests) RETURN_IF_ERROR(Ask(&stream));
    }
    while (static_cast<int>(answers_.size()) < options_.requests) {
      std::vector<pollfd> fds;
      for (const Stream& s : streams_) {
        const bool waits = s.requests > 0 && s.times.total_s == 0;
        fds.push_back({.fd = waits ? s.client.fd() : -1, .events = POLLIN, .revents = 0});
      }
      if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
        return tl::unexpected<Error>(Failed("wait for").error());
      }
      for (size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].revents != 0) RETURN_IF_ERROR(Take(&streams_[i]));
      }
    }
    return std::move(answers_);
  }

 private:
  Status Ask(Stream* stream) {
    const int every = options_.reconnect_every;
    if (stream->requests == 0 || (every > 0 && stream->requests % every == 0)) {
      RETURN_IF_ERROR(stream->client.Connect(port_));
    }
    ++stream->requests;
    const std::string body = options_.body(asked_++);
    stream->times = {.burst = stream->requests == 1};
    stream->sent = Clock::Real().Now();
    return stream->client.Send("POST", kPath, body);
  }

  Status Take(Stream* stream) {
    ASSIGN_OR_RETURN(const bool whole, stream->client.Receive());
    const double now_s = (Clock::Real().Now() - stream->sent).count();
    if (stream->times.first_s == 0) stream->times.first_s = now_s;
    if (!whole) return {};
    constexpr std::string_view kSteps = "\"steps_s\":";
    const std::string& answer = stream->client.received();
    const size_t at = answer.rfind(kSteps);
    if (at == std::string::npos) return Fail(ErrorCode::kIo, "an answer without times: {}", answer);
    stream->times.total_s = now_s;
    stream->times.steps_s = std::strtod(answer.c_str() + at + kSteps.size(), nullptr);
    answers_.push_back(stream->times);
    return asked_ < options_.requests ? Ask(stream) : Status();
  }

  const uint16_t port_;
  const StreamsOptions& options_;
  std::vector<Stream> streams_;
  std::vector<AnswerTimes> answers_;
  int asked_ = 0;
};

}  // namespace

Result<std::vector<AnswerTimes>> RunStreams(uint16_t port, const StreamsOptions& options) {
  return Streams(port, options).Run();
}

Result<double> ReadMetric(uint16_t port, std::string_view name) {
  HttpClient client;
  RETURN_IF_ERROR(client.Connect(port));
  ASSIGN_OR_RETURN(const std::string text, client.Ask("GET", "/metrics"));
  const size_t at = text.find(fmt::format("\n{}{{", name));
  if (at == std::string::npos) return 0.0;
  return std::strtod(text.c_str() + text.find(' ', at), nullptr);
}

}  // namespace kvcake::bench
