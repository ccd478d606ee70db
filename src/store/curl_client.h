// HTTP requests, many at a time, on a thread of its own: libcurl's multi interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace kvcake {

struct CurlReply {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};  // names in lower case
  uint64_t bytes = 0;     // of the body, as far as it has landed
  std::string text = {};  // a body that did not land; of one that is not ok the beginning
  // The body was sent before, too, over a connection that turned out to be closing: the server may
  // have taken it.
  bool is_sent_again = false;

  bool ok() const { return status >= 200 && status < 300; }
  // Empty where there is none.
  std::string_view Header(std::string_view name) const;
};

struct CurlRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers = {};
  // What is sent with PUT, in pieces; until `done`.
  std::vector<std::span<const std::byte>> body = {};
  // Where the body of a reply with that status goes, until `done`; empty: every body is text.
  std::span<std::byte> landing = {};
  int landing_status = 200;
  TimePoint until = TimePoint::max();  // kDeadline then, whether it was sent or not
  bool is_direct = false;              // through no proxy, whatever the environment says
  // Asked now and then on the client's thread; false ends the request. Null: always true.
  std::function<bool()> is_wanted = nullptr;
  // Called exactly once, on the client's thread, never from within Send. kIo, with what failed, of
  // which it is not known what became of the request; kCorrupt where a body is longer than its
  // landing; kDeadline; kCancelled where it is not wanted any more, or the client is closed.
  std::function<void(Result<CurlReply>)> done = nullptr;
};

struct CurlClientOptions {
  int connections = 32;  // at a time, which are kept open between requests
  Seconds connect_timeout{2};
  Seconds stall_timeout{5};   // without a byte either way
  std::string ca = {};        // whom to believe, in PEM; empty: whom the system does
  size_t text_max = 8 << 20;  // of a body that is ok; a longer one is kIo
};

class CurlClient {
 public:
  // kUnsupported where libcurl cannot be had, kInvalidArgument where it cannot use the options.
  static Result<std::unique_ptr<CurlClient>> Open(CurlClientOptions options);
  // Ends requests that are left, as Close does.
  ~CurlClient();
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;

  // Runs a function on the client's thread, soon, in the order of the calls. Any thread, until
  // destruction.
  void Post(std::function<void()> function) EXCLUDES(mutex_);

  // The rest on the client's thread alone.
  void Send(CurlRequest request);
  // Runs a function later, or as soon as the client is closed.
  void After(Seconds wait, std::function<void()> function);
  // What has no reply yet, and what is sent from now on, ends with kCancelled.
  void Close();
  bool is_closed() const { return is_closed_; }

 private:
  struct Curl;      // handles of libcurl
  struct Transfer;  // a request that is under way

  CurlClient(CurlClientOptions options, std::unique_ptr<Curl> curl);

  void Run();
  bool RunPosted() EXCLUDES(mutex_);
  void RunTimers();
  void StartWaiting();
  // Ends what waits and is overdue or not wanted any more.
  void LookThroughWaiting();
  void Start(CurlRequest request);
  void TakeEnded();
  void EndTransfers();
  void Finish(CurlRequest request, Result<CurlReply> reply);
  int PollMilliseconds() const;

  const CurlClientOptions options_;

  // The thread's.
  const std::unique_ptr<Curl> curl_;
  std::deque<CurlRequest> waiting_;
  TimePoint looked_through_{};
  std::map<void*, std::unique_ptr<Transfer>> transfers_;  // by libcurl's easy handle
  std::vector<void*> idle_handles_;
  std::multimap<TimePoint, std::function<void()>> timers_;
  bool is_closed_ = false;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace kvcake
