// The thread that moves a server's bytes, from before its model is loaded until all has been
// answered.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "server/http_api.h"
#include "server/http_front.h"

namespace kvcake {

class HttpThread {
 public:
  struct Options {
    bool json_log = false;
    std::vector<int> cpus = {};                       // where it may run; empty: anywhere
    std::function<void()> on_signal = [] {};          // on the thread: the server was told to stop
    std::function<Result<ApiKeys>()> load_keys = {};  // on the thread, at SIGHUP
  };

  // Runs `server`, which listens and belongs to `context`. Until Open, requests are told that the
  // model is being loaded, and a signal ends the process, with 0, once all have been told so; the
  // caller's thread gets no signals meanwhile, which would interrupt what it reads.
  HttpThread(boost::asio::io_context& context, HttpServer& server, Options options);
  // Without Open: stops the server, as there is no model. Else waits for its end.
  ~HttpThread();
  HttpThread(const HttpThread&) = delete;
  HttpThread& operator=(const HttpThread&) = delete;

  // From now on `api` answers, and what stops the server stops `loop`, too.
  void Open(HttpApi& api, EngineLoop& loop);
  // Returns when the server has ended, after Open.
  void Join() { thread_.join(); }

 private:
  void Run();
  void WaitForHangup();
  // Keys that cannot be read leave those that there are.
  void LoadKeys();

  boost::asio::io_context& context_;
  HttpServer& server_;
  const Options options_;
  std::atomic<bool> given_up_{false};
  sigset_t signals_before_;  // of the caller's thread

  // Owned by the thread.
  HttpFront front_;
  HttpApi* api_ = nullptr;
  EngineLoop* loop_ = nullptr;
  bool told_to_stop_ = false, draining_ = false, reload_ = false;
  boost::asio::signal_set hangup_;

  std::thread thread_;
};

}  // namespace kvcake
