// HttpApi: requests that the engine answers.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

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

// One of a request's answers under way.
struct HttpApi::Choice {
  JobId job = 0;
  std::shared_ptr<Generation> generation = {};
  AnswerParser parser;
  std::string echo = {};          // the prompt, where it is part of the answer and still to be sent
  std::string length_field = {};  // what the client may make less of where memory is too small
  int prompt_tokens = 0;
  bool accepted = false;
  bool begun = false;  // there is a token of it
  bool ended = false;
  std::optional<Completion> completion = {};  // where it has ended with one
  StopReason stop_reason = {};                // likewise
};

// What is new of one of them. At its end its choice has the completion.
struct HttpApi::News {
  size_t choice = 0;
  bool ends = false;
  Generation::Delta delta = {};
  std::optional<ApiError> failure = {};  // why there is no answer, or not all of it
};

// All of them: n in a row are to the same prompt.
struct HttpApi::Answering {
  int n = 1;
  bool stream = false;
  std::shared_ptr<Signal> signal = {};
  std::vector<Choice> choices = {};
  std::optional<AnswerWriter> writer = {};

  bool AllEnded() const { return std::ranges::all_of(choices, &Choice::ended); }
  bool AnyBegun() const { return std::ranges::any_of(choices, &Choice::begun); }
  bool AllAccepted() const { return std::ranges::all_of(choices, &Choice::accepted); }
};

AnswerWriter HttpApi::MakeWriter(const Exchange& exchange, const Prepared& prepared,
                                 bool chat) const {
  const GenerateRequest& asked = prepared.asked;
  AnswerWriter::Options writing;
  writing.chat = chat;
  writing.id = exchange.record.id;
  writing.model = asked.model.empty() ? options_.requests.model_names[0] : asked.model;
  writing.created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  writing.logprobs = asked.logprobs;
  writing.report = asked.kvcake.report;
  writing.usage_in_stream = asked.include_usage;
  writing.usage_in_chunks = asked.continuous_usage;
  writing.choices = static_cast<int>(prepared.requests.size());
  return AnswerWriter(runtime_.tokenizer(), std::move(writing));
}

HttpApi::Choice HttpApi::MakeChoice(const Prepared& prepared, size_t index, bool chat,
                                    const std::shared_ptr<Signal>& signal) {
  const GenerateRequest& asked = prepared.asked;
  const Request& request = prepared.requests[index];
  const std::string& prompt_text = prepared.prompt_texts[index / asked.n];
  Generation::Options options;
  if (!prepared.scores_only) options.stops = asked.stops;
  options.min_tokens = asked.min_tokens;
  options.prompt_only = prepared.scores_only;
  options.end_tokens = request.end_tokens;
  options.stop_tokens = asked.stop_tokens;
  if (!asked.ignore_eos) {
    const auto& eos = runtime_.config().eos_tokens;
    std::erase_if(options.stop_tokens,
                  [&](int32_t token) { return std::ranges::count(eos, token) > 0; });
  }
  options.logprobs = asked.logprobs;
  if (request.prompt_logprobs) options.prompt = request.prompt;
  AnswerParser::Options parsing;
  if (asked.tool_choice == ToolChoice::kAuto) parsing.tool_parser = options_.requests.tool_parser;
  if (chat) parsing.reasoning_parser = options_.reasoning_parser;
  parsing.parallel_tool_calls = asked.parallel_tool_calls;
  parsing.include_reasoning = asked.include_reasoning;
  parsing.prompt = prompt_text;
  const auto* messages = std::get_if<ChatPrompt>(&asked.prompts[index / asked.n]);
  const std::string continued = messages != nullptr ? ContinuedText(*messages) : "";
  parsing.continued = continued;
  parsing.salt = id_salt_ + next_id_++;
  return {.generation = std::make_shared<Generation>(
              Detokenizer(runtime_.tokenizer(), asked.skip_special, request.prompt),
              std::move(options), metrics_,
              // Who waits for the last piece waits for nothing else.
              [this, signal](bool done) { news_.Add(signal, /*first=*/done); }),
          .parser = AnswerParser(parsing),
          .echo = asked.echo ? prompt_text : "",
          .length_field = asked.max_tokens_field.empty() || request.max_tokens <= 1
                              ? FieldOf(asked.prompts.front())
                              : asked.max_tokens_field,
          .prompt_tokens = static_cast<int>(request.prompt.size())};
}

net::awaitable<bool> HttpApi::Submit(Exchange& exchange, Prepared prepared, bool chat,
                                     Answering* answering) {
  answering->n = prepared.asked.n;
  answering->stream = prepared.asked.stream;
  answering->signal = std::make_shared<Signal>(context_);
  answering->writer.emplace(MakeWriter(exchange, prepared, chat));
  std::vector<EngineLoop::Entry> entries;
  for (size_t i = 0; i < prepared.requests.size(); ++i) {
    const Choice& choice =
        answering->choices.emplace_back(MakeChoice(prepared, i, chat, answering->signal));
    answering->writer->Count(static_cast<int>(i), choice.prompt_tokens, /*generated=*/0);
    entries.push_back({.request = std::move(prepared.requests[i]), .sink = choice.generation});
  }
  const auto jobs = loop_.Submit(std::move(entries), exchange.arrived);
  if (!jobs) {
    ApiError error = ToApiError(jobs.error());
    if (jobs.error().code == ErrorCode::kResourceExhausted) {
      error.status = 429;
      error.code = "queue_full";
    }
    co_await SendError(exchange, std::move(error));
    co_return false;
  }
  for (size_t i = 0; i < jobs->size(); ++i) answering->choices[i].job = (*jobs)[i];
  exchange.reply.WatchClient(answering->signal);
  co_return true;
}

namespace {

// What has not begun has waited for others: it may be asked for again.
ApiError TimedOut(bool begun) {
  if (!begun) {
    return {.status = 503,
            .message = "the answer had not begun after --request-timeout: try again later"};
  }
  return {.status = 504,
          .message =
              "the answer took longer than the server gives any (--request-timeout): ask "
              "for fewer max_tokens",
          .final = true};
}

}  // namespace

// Keeps the end of an answer. Why there is none, or none any more, where that is so.
std::optional<ApiError> HttpApi::TakeEnd(Result<Completion> end, Choice& choice) {
  choice.ended = true;
  if (!end) {
    ApiError error = ToApiError(end.error());
    if (end.error().code == ErrorCode::kResourceExhausted) error.param = choice.length_field;
    return error;
  }
  choice.completion = std::move(*end);
  return FailureOf(*choice.completion);
}

// The next news of the answers; false, and the record says why, when they are to be given up.
net::awaitable<bool> HttpApi::Await(Exchange& exchange, Answering& answering,
                                    std::vector<News>* news) {
  const TimePoint deadline = exchange.began + options_.request_timeout;
  news->clear();
  for (;;) {
    for (size_t i = 0; i < answering.choices.size(); ++i) {
      Choice& choice = answering.choices[i];
      if (choice.ended) continue;
      Generation::Delta delta = choice.generation->Take();
      const bool is_new = !delta.text.empty() || !delta.tokens.empty() || delta.completion ||
                          delta.accepted != choice.accepted;
      choice.accepted = delta.accepted;
      choice.begun = delta.generated > 0;
      if (!is_new) continue;
      News& one = news->emplace_back(News{.choice = i, .ends = delta.completion.has_value()});
      if (one.ends) {
        choice.stop_reason = std::move(delta.stop_reason);
        one.failure = TakeEnd(std::move(*delta.completion), choice);
      }
      one.delta = std::move(delta);
    }
    if (!news->empty()) co_return true;
    const bool gone = exchange.reply.client_gone();
    if (gone || Clock::Real().Now() >= deadline) {
      exchange.record.error = gone ? ClientGone() : TimedOut(answering.AnyBegun());
      co_return false;
    }
    co_await answering.signal->Wait(deadline);
  }
}

net::awaitable<void> HttpApi::GiveUp(Exchange& exchange, Answering& answering) {
  for (const Choice& choice : answering.choices) {
    if (!choice.ended) loop_.Cancel(choice.job);
  }
  RequestRecord& record = exchange.record;
  if (record.status == 0) {
    record.status = record.error->status;
    if (!exchange.reply.client_gone()) co_await SendError(exchange, ApiError(*record.error));
  }
  for (Choice& choice : answering.choices) {
    while (!choice.ended) {
      Generation::Delta delta = choice.generation->Take();
      if (delta.completion) {
        TakeEnd(std::move(*delta.completion), choice);
      } else {
        co_await answering.signal->Wait();
      }
    }
  }
  SumUp(answering, &record);
}

// The record has what the engine did, once all have ended; so have the completions. Each of these
// has a trace.
std::vector<Completion> HttpApi::SumUp(Answering& answering, RequestRecord* record) {
  std::vector<Completion> completions;
  const size_t asked = answering.choices.size();
  for (size_t i = 0; i < asked; ++i) {
    auto& completion = answering.choices[i].completion;
    if (!completion) continue;
    if (traces_ != nullptr) {
      traces_->Write(asked > 1 ? fmt::format("{}-{}", record->id, i) : record->id,
                     completion->report);
    }
    completions.push_back(std::move(*completion));
  }
  if (completions.empty()) return {};
  record->choices = completions.size();
  record->answers = std::ranges::count_if(completions, HasAnswer);
  const bool all = completions.size() == asked;
  record->completion = SumOf(completions, all ? answering.n : 1);
  return completions;
}

net::awaitable<std::optional<HttpApi::Prepared>> HttpApi::PrepareBody(Exchange& exchange, Ask ask) {
  std::function<ApiResult<Prepared>()> work = [&, ask] {
    const std::string taken = std::move(exchange.body);
    return preparer_.Prepare(taken, ask, exchange.record.tenant);
  };
  const size_t bytes = exchange.body.size();
  auto made = co_await Offload(context_, pool_, exchange.record.tenant, bytes, std::move(work));
  exchange.reply.BodyDropped();
  ApiResult<Prepared> prepared = made ? std::move(*made) : tl::unexpected<ApiError>(PoolFull());
  if (prepared) co_return std::move(*prepared);
  co_await SendError(exchange, std::move(prepared.error()));
  co_return std::nullopt;
}

// Tokens would tell the thoughts that are to be dropped: as with vLLM there are no logprobs then.
void HttpApi::HideThoughts(Prepared* prepared) const {
  if (options_.reasoning_parser.empty() || prepared->asked.include_reasoning) return;
  prepared->asked.logprobs = false;
  for (Request& request : prepared->requests) request.logprobs = false;
}

net::awaitable<void> HttpApi::Generate(Exchange& exchange, Ask ask) {
  auto prepared = co_await PrepareBody(exchange, ask);
  if (!prepared) co_return;
  HideThoughts(&*prepared);
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

// Takes in all that comes until the answers have ended; false: they have been given up.
net::awaitable<bool> HttpApi::Gather(Exchange& exchange, Answering& answering,
                                     std::vector<Gathered>* gathered) {
  gathered->resize(answering.choices.size());
  std::vector<News> news;
  while (!answering.AllEnded()) {
    bool goes_on = co_await Await(exchange, answering, &news);
    for (News& one : news) {
      Gathered& of = (*gathered)[one.choice];
      of.text += one.delta.text;
      std::move(one.delta.tokens.begin(), one.delta.tokens.end(), std::back_inserter(of.tokens));
      if (!one.failure) continue;
      exchange.record.error = std::move(one.failure);
      goes_on = false;
    }
    if (goes_on) continue;
    co_await GiveUp(exchange, answering);
    co_return false;
  }
  co_return true;
}

net::awaitable<void> HttpApi::AnswerWhole(Exchange& exchange, Answering& answering) {
  std::vector<Gathered> gathered;
  if (!co_await Gather(exchange, answering, &gathered)) co_return;
  const std::vector<Completion> completions = SumUp(answering, &exchange.record);
  std::vector<AnswerWriter::Choice> choices(gathered.size());
  size_t tokens = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    Choice& choice = answering.choices[i];
    choices[i].text = choice.parser.Take(choice.echo + gathered[i].text, /*ends=*/true);
    choices[i].tokens = std::move(gathered[i].tokens);
    choices[i].completion = &completions[i];
    choices[i].stop_reason = std::move(choice.stop_reason);
    tokens += choices[i].tokens.size();
  }
  std::function<std::string()> write = [&] {
    return answering.writer->Whole(choices, *exchange.record.completion);
  };
  HttpResponse response;
  response.body = co_await Written(exchange, tokens, std::move(write));
  co_await Send(exchange, std::move(response));
}

// Adds what is new of a choice to the events, and writes them but for the last: the logprobs of a
// long prompt come in many. False when the client has gone.
net::awaitable<bool> HttpApi::WriteDelta(Exchange& exchange, Answering& answering, size_t choice,
                                         AnswerDelta text, std::span<const TokenInfo> tokens,
                                         std::string* events) {
  while (!text.empty() || !tokens.empty()) {
    const auto some = tokens.first(std::min(tokens.size(), kEventTokens));
    tokens = tokens.subspan(some.size());
    std::function<std::string()> write = [&] {
      return answering.writer->Event(static_cast<int>(choice), text, some);
    };
    *events += co_await Written(exchange, some.size(), std::move(write));
    text = {};
    if (tokens.empty()) break;
    if (!co_await exchange.reply.Write(*events)) co_return false;
    events->clear();
  }
  co_return true;
}

// Adds all that is new to the events; *open says whether the client is still there. Where an answer
// has failed the record says why.
net::awaitable<void> HttpApi::WriteNews(Exchange& exchange, Answering& answering,
                                        std::vector<News> news, std::string* events, bool* open) {
  for (News& one : news) {
    Choice& choice = answering.choices[one.choice];
    Generation::Delta& delta = one.delta;
    AnswerDelta text = choice.parser.Take(std::exchange(choice.echo, "") + delta.text, one.ends);
    answering.writer->Count(static_cast<int>(one.choice), choice.prompt_tokens, delta.generated);
    if (*open) {
      *open = co_await WriteDelta(exchange, answering, one.choice, std::move(text), delta.tokens,
                                  events);
    }
    if (!one.ends) continue;
    if (one.failure) {
      if (!exchange.record.error) exchange.record.error = std::move(one.failure);
    } else {
      *events += answering.writer->LastEvent(static_cast<int>(one.choice), *choice.completion,
                                             choice.stop_reason, choice.parser.called());
    }
  }
}

// Waits until the engine has taken all of them. False, and the record says why, when they are to be
// given up.
net::awaitable<bool> HttpApi::AwaitAccepted(Exchange& exchange, Answering& answering,
                                            std::vector<News>* news) {
  std::vector<News> more;
  while (!answering.AllAccepted()) {
    if (!co_await Await(exchange, answering, &more)) co_return false;
    for (News& one : more) {
      if (one.ends && !one.delta.accepted) {  // before it was accepted it only failed
        if (!exchange.record.error) exchange.record.error = std::move(one.failure);
        continue;
      }
      news->push_back(std::move(one));
    }
    if (exchange.record.error) co_return false;
  }
  co_return true;
}

net::awaitable<void> HttpApi::AnswerStream(Exchange& exchange, Answering& answering) {
  std::vector<News> news;
  if (!co_await AwaitAccepted(exchange, answering, &news)) {
    co_return co_await GiveUp(exchange, answering);
  }
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  RequestRecord& record = exchange.record;
  record.status = 200;
  metrics_.Responded(200);
  bool open = co_await exchange.reply.StartStream(std::move(head));
  std::string events = answering.writer->FirstEvents();
  for (;;) {
    co_await WriteNews(exchange, answering, std::exchange(news, {}), &events, &open);
    const bool ended = answering.AllEnded() && !record.error;
    if (ended) {
      SumUp(answering, &record);
      events += answering.writer->End(*record.completion);
    } else if (record.error) {
      events += ErrorEvents(*record.error);
    }
    if (open) open = co_await exchange.reply.Write(events);
    if (ended) break;
    events.clear();
    if (!record.error) {
      if (!open) {
        record.error = ClientGone();
      } else if (co_await Await(exchange, answering, &news)) {
        continue;
      } else {
        co_await exchange.reply.Write(ErrorEvents(*record.error));
      }
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
  std::vector<Gathered> gathered;
  if (!co_await Gather(exchange, answering, &gathered)) co_return;
  SumUp(answering, &exchange.record);
  const Completion& completion = *exchange.record.completion;
  ordered_json body = {{"prompt_tokens", completion.report.prompt_tokens},
                       {"cached_tokens", CachedTokens(completion)}};
  body["kvcake"] = KvcakeReport(completion);
  HttpResponse response;
  response.body = DumpJson(body);
  co_await Send(exchange, std::move(response));
}

}  // namespace kvcake
