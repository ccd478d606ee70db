// HttpApi: requests that the engine answers.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/dump_json.h"
#include "server/http_api.h"
#include "server/http_offload.h"

namespace kvcake {

namespace net = boost::asio;
using nlohmann::ordered_json;

namespace {

constexpr size_t kEventTokens = 256;  // with logprobs, in one event of a stream
constexpr size_t kTokensInline = 32;  // whose logprobs are written at once
constexpr size_t kTokenBytes = 128;   // of a token with its logprobs, about

}  // namespace

// One answer under way.
struct HttpApi::Answering {
  JobId job = 0;
  std::shared_ptr<Signal> signal = {};
  std::shared_ptr<Generation> generation = {};
  std::optional<AnswerWriter> writer = {};
  std::string echo = {};  // the prompt, where it is part of the answer
  bool stream = false;
  bool accepted = false;
};

ApiResult<int> HttpApi::AnswerTokens(const GenerateRequest& asked, int prompt_tokens) const {
  const int room = options_.model_len_max - prompt_tokens;
  const char* field =
      std::holds_alternative<std::vector<ChatMessage>>(asked.prompt) ? "messages" : "prompt";
  if (room < 1) {
    return tl::unexpected<ApiError>(ApiError{
        .message = fmt::format("the prompt has {} tokens and leaves no room for an answer: "
                               "this server's context is {} tokens",
                               prompt_tokens, options_.model_len_max),
        .param = field,
        .code = "context_length_exceeded"});
  }
  if (!asked.max_tokens) return room;
  if (*asked.max_tokens > room) {
    return tl::unexpected<ApiError>(ApiError{
        .message = fmt::format("max_tokens of {} and a prompt of {} tokens are more than this "
                               "server's context of {} tokens",
                               *asked.max_tokens, prompt_tokens, options_.model_len_max),
        .param = "max_tokens",
        .code = "context_length_exceeded"});
  }
  return *asked.max_tokens;
}

// To warm a cache takes {"prompt": ...} or {"messages": [...]}, with the fields that a completion
// may have.
ApiResult<GenerateRequest> HttpApi::ParseAsked(const std::string& body, Ask ask) const {
  const auto json = ParseBody(body, options_.limits);
  if (!json) return tl::unexpected<ApiError>(json.error());
  const bool chat =
      ask == Ask::kChat || (ask == Ask::kWarm && json->is_object() && json->contains("messages"));
  auto asked = chat ? ParseChat(*json, options_.limits) : ParseCompletion(*json, options_.limits);
  if (asked && ask == Ask::kWarm) {
    asked->max_tokens = 1;  // somebody must be asked for something
    asked->stream = asked->echo = false;
  }
  return asked;
}

ApiResult<HttpApi::Prepared> HttpApi::Prepare(std::string body, Ask ask,
                                              const std::string& tenant) const {
  auto asked = ParseAsked(body, ask);
  if (!asked) return tl::unexpected<ApiError>(asked.error());
  if (auto error = CheckModel(asked->model)) return tl::unexpected<ApiError>(std::move(*error));
  Prepared prepared{.asked = std::move(*asked)};
  const GenerateRequest& of = prepared.asked;
  Request& request = prepared.request;
  // One token is the answer's at least.
  const size_t tokens_max = options_.model_len_max - 1;
  auto tokens = Encode(of.prompt, of.add_special, tokens_max, &prepared.prompt_text);
  if (!tokens) return tl::unexpected<ApiError>(tokens.error());
  request.prompt = std::move(*tokens);
  if (of.echo && prepared.prompt_text.empty()) {
    prepared.prompt_text = runtime_.tokenizer().Decode(request.prompt, of.skip_special);
  }
  const auto answer = AnswerTokens(of, static_cast<int>(request.prompt.size()));
  if (!answer) return tl::unexpected<ApiError>(answer.error());
  prepared.scores_only = of.max_tokens == 0;
  request.max_tokens = std::max(*answer, 1);  // somebody must be asked for something
  request.sampling = of.sampling;
  request.sampling.seed = of.seed ? *of.seed : std::random_device()();
  if (!prepared.scores_only) request.end_tokens = of.stop_tokens;
  if (!of.ignore_eos && !prepared.scores_only) {
    const auto& eos = runtime_.config().eos_tokens;
    request.end_tokens.insert(request.end_tokens.end(), eos.begin(), eos.end());
  }
  request.logprobs = of.logprobs;
  request.top_logprobs = of.top_logprobs;
  request.prompt_logprobs = of.echo && of.logprobs;
  request.tenant = tenant;
  request.salt = CacheSalt(tenant, of.cache_salt);
  request.store = of.kvcake.store;
  request.policy = of.kvcake.policy;
  return prepared;
}

net::awaitable<bool> HttpApi::Submit(Exchange& exchange, Prepared prepared, bool chat,
                                     Answering* answering) {
  const GenerateRequest& asked = prepared.asked;
  answering->stream = asked.stream;
  if (asked.echo) answering->echo = std::move(prepared.prompt_text);
  AnswerWriter::Options writing;
  writing.chat = chat;
  writing.id = exchange.record.id;
  writing.model = asked.model.empty() ? options_.model_names[0] : asked.model;
  writing.created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  writing.logprobs = asked.logprobs;
  writing.report = asked.kvcake.report;
  writing.usage_in_stream = asked.include_usage;
  answering->writer.emplace(runtime_.tokenizer(), std::move(writing));
  answering->signal = std::make_shared<Signal>(context_);
  Generation::Options options;
  if (!prepared.scores_only) options.stops = asked.stops;
  options.prompt_only = prepared.scores_only;
  options.end_tokens = prepared.request.end_tokens;
  options.skip_special = asked.skip_special;
  options.logprobs = asked.logprobs;
  if (prepared.request.prompt_logprobs) options.prompt = prepared.request.prompt;
  answering->generation = std::make_shared<Generation>(
      runtime_.tokenizer(), std::move(options), metrics_,
      // Who waits for the last piece waits for nothing else.
      [this, signal = answering->signal](bool done) { news_.Add(signal, /*first=*/done); });
  const Result<JobId> job =
      loop_.Submit(std::move(prepared.request), answering->generation, exchange.arrived);
  if (!job) {
    ApiError error = ToApiError(job.error());
    if (job.error().code == ErrorCode::kResourceExhausted) {
      error.status = 429;
      error.code = "queue_full";
    }
    co_await SendError(exchange, std::move(error));
    co_return false;
  }
  answering->job = *job;
  exchange.reply.WatchClient(answering->signal);
  co_return true;
}

namespace {

// Keeps the end of an answer. Why there is none, or none any more, where that is so.
std::optional<ApiError> TakeEnd(Result<Completion> end, RequestRecord* record) {
  if (!end) return ToApiError(end.error());
  record->completion = std::move(*end);
  return FailureOf(*record->completion);
}

ApiError TimedOut() {
  return {.status = 503, .message = "the answer took too long (--request-timeout)"};
}

// In the log alone; the status is the one that proxies write there.
ApiError ClientGone() { return {.status = 499, .message = "the client has gone"}; }

}  // namespace

// The next news of the answer; false, and the record says why, when it is to be given up.
net::awaitable<bool> HttpApi::Await(Exchange& exchange, Answering& answering,
                                    Generation::Delta* delta) {
  const TimePoint deadline = exchange.began + options_.request_timeout;
  for (;;) {
    *delta = answering.generation->Take();
    const bool news = !delta->text.empty() || !delta->tokens.empty() || delta->completion ||
                      delta->accepted != answering.accepted;
    answering.accepted = delta->accepted;
    if (news) co_return true;
    const bool gone = exchange.reply.client_gone();
    if (gone || Clock::Real().Now() >= deadline) {
      exchange.record.error = gone ? ClientGone() : TimedOut();
      co_return false;
    }
    co_await answering.signal->Wait(deadline);
  }
}

net::awaitable<void> HttpApi::GiveUp(Exchange& exchange, Answering& answering) {
  loop_.Cancel(answering.job);
  RequestRecord& record = exchange.record;
  if (record.status == 0) {
    record.status = record.error->status;
    if (!exchange.reply.client_gone()) co_await SendError(exchange, ApiError(*record.error));
  }
  Generation::Delta delta = answering.generation->Take();
  while (!delta.completion) {
    co_await answering.signal->Wait();
    delta = answering.generation->Take();
  }
  TakeEnd(std::move(*delta.completion), &record);
}

net::awaitable<std::optional<HttpApi::Prepared>> HttpApi::PrepareBody(Exchange& exchange, Ask ask) {
  std::function<ApiResult<Prepared>()> work = [&, ask] {
    return Prepare(std::move(exchange.body), ask, exchange.record.tenant);
  };
  const size_t bytes = exchange.body.size();
  auto made = co_await Offload(context_, pool_, exchange.record.tenant, bytes, std::move(work));
  exchange.reply.BodyDropped();
  ApiResult<Prepared> prepared = made ? std::move(*made) : tl::unexpected<ApiError>(PoolFull());
  if (prepared) co_return std::move(*prepared);
  co_await SendError(exchange, std::move(prepared.error()));
  co_return std::nullopt;
}

net::awaitable<void> HttpApi::Generate(Exchange& exchange, Ask ask) {
  auto prepared = co_await PrepareBody(exchange, ask);
  if (!prepared) co_return;
  Answering answering;
  if (!co_await Submit(exchange, std::move(*prepared), ask == Ask::kChat, &answering)) co_return;
  if (answering.stream) {
    co_await AnswerStream(exchange, answering);
  } else {
    co_await AnswerWhole(exchange, answering);
  }
}

// Writes so many tokens with their logprobs: a worker does where it takes long.
net::awaitable<std::string> HttpApi::Written(const Exchange& exchange, size_t tokens,
                                             std::function<std::string()> write) {
  if (tokens <= kTokensInline) co_return write();
  auto written =
      co_await Offload(context_, pool_, exchange.record.tenant, tokens * kTokenBytes, write);
  co_return written ? std::move(*written) : write();
}

net::awaitable<void> HttpApi::AnswerWhole(Exchange& exchange, Answering& answering) {
  std::string text = answering.echo;
  std::vector<TokenInfo> tokens;
  Generation::Delta delta;
  while (!delta.completion) {
    if (!co_await Await(exchange, answering, &delta)) {
      co_return co_await GiveUp(exchange, answering);
    }
    text += delta.text;
    std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(tokens));
  }
  if (auto failure = TakeEnd(std::move(*delta.completion), &exchange.record)) {
    co_return co_await SendError(exchange, std::move(*failure));
  }
  std::function<std::string()> write = [&] {
    return answering.writer->Whole(text, tokens, *exchange.record.completion);
  };
  HttpResponse response;
  response.body = co_await Written(exchange, tokens.size(), std::move(write));
  co_await Send(exchange, std::move(response));
}

// Adds what is new to the events, and writes them but for the last: the logprobs of a long prompt
// come in many. False when the client has gone.
net::awaitable<bool> HttpApi::WriteDelta(Exchange& exchange, Answering& answering,
                                         const Generation::Delta& delta, std::string* events) {
  std::string_view text = delta.text;
  std::span<const TokenInfo> left = delta.tokens;
  while (!text.empty() || !left.empty()) {
    const auto some = left.first(std::min(left.size(), kEventTokens));
    left = left.subspan(some.size());
    std::function<std::string()> write = [&] { return answering.writer->Event(text, some); };
    *events += co_await Written(exchange, some.size(), std::move(write));
    text = {};
    if (left.empty()) break;
    if (!co_await exchange.reply.Write(*events)) co_return false;
    events->clear();
  }
  co_return true;
}

net::awaitable<void> HttpApi::AnswerStream(Exchange& exchange, Answering& answering) {
  Generation::Delta delta;
  while (!delta.accepted) {
    if (!co_await Await(exchange, answering, &delta)) {
      co_return co_await GiveUp(exchange, answering);
    }
    if (delta.accepted || !delta.completion) continue;  // before it was accepted it has only failed
    auto failure = TakeEnd(std::move(*delta.completion), &exchange.record);
    co_return co_await SendError(exchange, std::move(*failure));
  }
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  RequestRecord& record = exchange.record;
  record.status = 200;
  metrics_.Responded(200);
  bool open = co_await exchange.reply.StartStream(std::move(head));
  std::string events = answering.writer->FirstEvent();
  delta.text.insert(0, answering.echo);
  for (;;) {
    if (open) open = co_await WriteDelta(exchange, answering, delta, &events);
    const bool ended = delta.completion.has_value();
    if (ended) {
      record.error = TakeEnd(std::move(*delta.completion), &record);
      events += record.error ? ErrorEvents(*record.error)
                             : answering.writer->LastEvents(*record.completion);
    }
    if (open) open = co_await exchange.reply.Write(events);
    if (ended) break;
    events.clear();
    if (!open) {
      record.error = ClientGone();
    } else if (co_await Await(exchange, answering, &delta)) {
      continue;
    } else {
      co_await exchange.reply.Write(ErrorEvents(*record.error));
    }
    co_await GiveUp(exchange, answering);
    break;
  }
  co_await exchange.reply.EndStream();
}

net::awaitable<void> HttpApi::Warm(Exchange& exchange) {
  auto prepared = co_await PrepareBody(exchange, Ask::kWarm);
  if (!prepared) co_return;
  Answering answering;
  if (!co_await Submit(exchange, std::move(*prepared), false, &answering)) co_return;
  Generation::Delta delta;
  while (!delta.completion) {
    if (!co_await Await(exchange, answering, &delta)) {
      co_return co_await GiveUp(exchange, answering);
    }
  }
  if (auto failure = TakeEnd(std::move(*delta.completion), &exchange.record)) {
    co_return co_await SendError(exchange, std::move(*failure));
  }
  const Completion& completion = *exchange.record.completion;
  ordered_json body = {{"prompt_tokens", completion.report.prompt_tokens},
                       {"cached_tokens", CachedTokens(completion)}};
  body["kvcake"] = KvcakeReport(completion);
  HttpResponse response;
  response.body = DumpJson(body);
  co_await Send(exchange, std::move(response));
}

}  // namespace kvcake
