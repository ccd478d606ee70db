// A client of `kvcake serve`, of one thread: many streams cost the server's cores little.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvcake::bench {

// One connection; requests one after the other.
class HttpClient {
 public:
  HttpClient() = default;
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept { *this = std::move(other); }
  HttpClient& operator=(HttpClient&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(received_, other.received_);
    return *this;
  }

  // To a server on this machine.
  [[nodiscard]] Status Connect(uint16_t port);
  [[nodiscard]] Status Send(std::string_view method, std::string_view path, std::string_view body);
  // Takes what has come, waiting for something where nothing has; true when the answer is whole.
  // Fails when the status is not 200.
  [[nodiscard]] Result<bool> Receive();
  // Send and Receive to the end.
  [[nodiscard]] Result<std::string> Ask(std::string_view method, std::string_view path,
                                        std::string_view body = "");
  // The answer so far; its head and the marks of chunks included.
  const std::string& received() const { return received_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::string received_;
};

// What the client saw of one answer.
struct AnswerTimes {
  double total_s = 0;  // from before the request is sent until its answer is whole
  double first_s = 0;  // until the first event
  double steps_s = 0;  // what the server says that the engine's steps took of that
  bool burst = false;  // of those that were all sent at once, to begin with
};

struct StreamsOptions {
  int streams = 1;
  int requests = 1;
  int reconnect_every = 0;  // requests of a connection; 0: any number
  // The body of the request of this number. It must ask for the report.
  std::function<std::string(int)> body;
};
// Keeps `streams` completions under way until `requests` have been answered.
Result<std::vector<AnswerTimes>> RunStreams(uint16_t port, const StreamsOptions& options);

// The value of a metric without labels of its own; 0 when it is not there.
Result<double> ReadMetric(uint16_t port, std::string_view name);

}  // namespace kvcake::bench
