#include "app/http_thread.h"

#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/cpu.h"

namespace kvcake {

HttpThread::HttpThread(boost::asio::io_context& context, HttpServer& server, Options options)
    : context_(context),
      server_(server),
      options_(std::move(options)),
      front_(options_.json_log),
      hangup_(context) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, &signals_before_);
  thread_ = std::thread([this] { Run(); });
}

HttpThread::~HttpThread() {
  pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
  if (!thread_.joinable()) return;
  given_up_ = true;
  server_.Stop();
  thread_.join();
}

void HttpThread::Open(HttpApi& api, EngineLoop& loop) {
  pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
  boost::asio::post(context_, [this, &api, &loop] {
    api_ = &api;
    loop_ = &loop;
    front_.Open(api);
    if (told_to_stop_) api.Drain();
    if (draining_) loop.Stop();
    if (reload_) LoadKeys();
  });
}

void HttpThread::WaitForHangup() {
  hangup_.async_wait([this](boost::system::error_code error, int) {
    if (error || draining_) return;
    LoadKeys();
    WaitForHangup();
  });
}

void HttpThread::LoadKeys() {
  reload_ = api_ == nullptr;  // later, then
  if (reload_) return;
  Result<ApiKeys> keys = options_.load_keys();
  if (keys) {
    api_->SetKeys(std::move(*keys));
    spdlog::info("SIGHUP: the keys have been read again");
  } else {
    spdlog::error("SIGHUP: the keys stay as they were: {}", keys.error().message);
  }
}

void HttpThread::Run() {
  RunInBackground();  // the next step goes before the last one's tokens
  // Wherever there is room: the engine thread needs its own.
  if (!options_.cpus.empty()) {
    if (const Status status = RestrictToCpus(options_.cpus); !status) {
      spdlog::warn("{}", status.error().message);
    }
  }
  ShutdownCalls calls;
  calls.on_signal = [this] {
    told_to_stop_ = true;
    front_.Drain();
    if (api_ != nullptr) api_->Drain();
    options_.on_signal();
  };
  calls.on_drain = [this] {
    draining_ = true;
    boost::system::error_code error;
    hangup_.cancel(error);  // the signal is still caught: it ends nothing
    if (loop_ != nullptr) loop_->Stop();
  };
  calls.on_late = [this] {
    if (loop_ != nullptr) loop_->CancelAll();
  };
  hangup_.add(SIGHUP);
  WaitForHangup();
  boost::asio::post(context_, [this] {  // when all of them have a handler
    pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
  });
  server_.Run(front_, std::move(calls));
  if (loop_ != nullptr || given_up_) return;
  spdlog::info("stopped while the model was being loaded");
  std::_Exit(0);  // nothing has been computed that should be kept
}

}  // namespace kvcake
