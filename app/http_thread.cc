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
      front_(options_.json_log) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
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
  });
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
    if (loop_ != nullptr) loop_->Stop();
  };
  calls.on_late = [this] {
    if (loop_ != nullptr) loop_->CancelAll();
  };
  boost::asio::post(context_, [this] {  // when all of them have a handler
    pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
  });
  server_.Run(front_, std::move(calls));
  if (loop_ != nullptr || given_up_) return;
  spdlog::info("stopped while the model was being loaded");
  std::_Exit(0);  // nothing has been computed that should be kept
}

}  // namespace kvcake
