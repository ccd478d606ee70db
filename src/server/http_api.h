// The endpoints: OpenAI's, vLLM's, and kvcake's own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "server/answer_parser.h"
#include "server/api_keys.h"
#include "server/engine_loop.h"
#include "server/generation.h"
#include "server/http_server.h"
#include "server/prepare_pool.h"
#include "server/request_log.h"
#include "server/request_preparer.h"
#include "server/server_metrics.h"
#include "server/trace_files.h"

namespace kvcake {

struct ApiOptions {
  RequestPreparer::Options requests = {};
  Seconds request_timeout{3600};  // of an answer, from its request
  bool any_content_type = false;  // of bodies, which are JSON; else they must say so
  Seconds health_timeout{120};    // of the engine thread, for one step
  std::string version;
  bool json_log = false;
  bool admin_listener = false;  // what is for those who run the server is there, and nowhere else
  std::string reasoning_parser = {};  // of chats; empty: thoughts are content
  PreparePool::Options prepare = {};
  std::function<ChainStats()> chain = [] { return ChainStats{}; };  // any thread
  std::function<HttpStats()> connections = [] { return HttpStats{}; };
};

class HttpApi : public HttpHandler {
 public:
  // Borrows what it gets by reference. `chat` is the model's template or why there is none;
  // `traces` may be null.
  HttpApi(boost::asio::io_context& context, Runtime& runtime, EngineLoop& loop,
          Result<ChatTemplate> chat, ApiKeys keys, TraceFiles* traces, ApiOptions options);
  // Waits for what has been offloaded.
  ~HttpApi() override;

  boost::asio::awaitable<void> Handle(const HttpRequest& request, HttpReply& reply) override;
  void Refused(const HttpRequest& request, const ApiError& error, uint64_t sent_bytes) override;
  // Any thread: the server goes away; /ready says so.
  void Drain() { draining_ = true; }
  // The context's thread: these keys are asked for from the next request on.
  void SetKeys(ApiKeys keys);
  // Any thread: why the server is not well; empty: it is.
  std::string Ailment() const;

 private:
  using Ask = RequestPreparer::Ask;
  using Prepared = PreparedRequest;
  // A request under way.
  struct Exchange {
    const HttpRequest& request;
    HttpReply& reply;
    TimePoint began = {};
    StepMark arrived = {};
    std::string body = {};  // of a POST, until a worker takes it
    RequestRecord record = {};
  };
  struct Choice;
  struct News;
  struct Answering;
  // What has come of an answer that is sent as a whole.
  struct Gathered {
    std::string text = {};
    std::vector<TokenInfo> tokens = {};
  };

  // Why the request is not answered, by its key. A tenant is noted in its record; of what touches
  // all, one that may do it with its own only.
  std::optional<ApiError> FindTenant(Exchange& exchange) const;
  std::optional<ApiError> FindAdmin(Exchange& exchange) const;
  boost::asio::awaitable<void> Dispatch(Exchange& exchange);
  boost::asio::awaitable<void> Send(Exchange& exchange, HttpResponse response);
  // `allow`: the methods that a 405 names.
  boost::asio::awaitable<void> SendError(Exchange& exchange, ApiError error,
                                         std::string allow = {});
  // False, or empty: an error has been sent, or the client has gone.
  boost::asio::awaitable<bool> ReadBody(Exchange& exchange);
  boost::asio::awaitable<std::optional<Prepared>> PrepareBody(Exchange& exchange, Ask ask);
  void HideThoughts(Prepared* prepared) const;
  boost::asio::awaitable<void> Generate(Exchange& exchange, Ask ask);
  boost::asio::awaitable<void> Warm(Exchange& exchange);
  // Answers what neither the engine nor a worker is needed for.
  boost::asio::awaitable<void> AnswerAtOnce(Exchange& exchange);
  using BodyAnswer = ApiResult<std::string> (RequestPreparer::*)(const std::string& body) const;
  boost::asio::awaitable<void> AnswerBody(Exchange& exchange, BodyAnswer answer);
  boost::asio::awaitable<void> AnswerWhole(Exchange& exchange, Answering& answering);
  boost::asio::awaitable<void> AnswerStream(Exchange& exchange, Answering& answering);
  boost::asio::awaitable<bool> Await(Exchange& exchange, Answering& answering,
                                     std::vector<News>* news);
  boost::asio::awaitable<bool> AwaitAccepted(Exchange& exchange, Answering& answering,
                                             std::vector<News>* news);
  boost::asio::awaitable<bool> Gather(Exchange& exchange, Answering& answering,
                                      std::vector<Gathered>* gathered);
  boost::asio::awaitable<void> WriteNews(Exchange& exchange, Answering& answering,
                                         std::vector<News> news, std::string* events, bool* open);
  boost::asio::awaitable<bool> WriteDelta(Exchange& exchange, Answering& answering, size_t choice,
                                          AnswerDelta text, std::span<const TokenInfo> tokens,
                                          std::string* events);
  boost::asio::awaitable<std::string> Written(const Exchange& exchange, size_t tokens,
                                              std::function<std::string()> write);
  // What Await gave up is cancelled; the client is told if nothing was sent, and the end awaited.
  boost::asio::awaitable<void> GiveUp(Exchange& exchange, Answering& answering);
  static std::optional<ApiError> TakeEnd(Result<Completion> end, Choice& choice);
  std::vector<Completion> SumUp(Answering& answering, RequestRecord* record);
  void Ended(Exchange& exchange);
  AnswerWriter MakeWriter(const Exchange& exchange, const Prepared& prepared, bool chat) const;
  Choice MakeChoice(const Prepared& prepared, size_t index, bool chat,
                    const std::shared_ptr<Signal>& signal);
  // Submits; an error has been sent when false.
  boost::asio::awaitable<bool> Submit(Exchange& exchange, Prepared prepared, bool chat,
                                      Answering* answering);
  // In the log alone; the status is the one that proxies write there.
  static ApiError ClientGone();
  static ApiError PoolFull();
  std::string Models() const;
  nlohmann::ordered_json ModelJson(const std::string& name) const;
  std::string NextId(const char* prefix);

  boost::asio::io_context& context_;
  Runtime& runtime_;
  EngineLoop& loop_;
  ApiKeys keys_;  // the context's thread's
  TraceFiles* const traces_;
  const ApiOptions options_;
  const RequestPreparer preparer_;
  const int64_t created_;
  ServerMetrics metrics_;
  std::atomic<bool> draining_{false};
  uint64_t next_id_ = 0;  // the context's thread's
  SignalBatch news_;      // the engine thread's
  const uint64_t id_salt_;
  PreparePool pool_;  // for what takes long, so that tokens keep flowing
};

}  // namespace kvcake
