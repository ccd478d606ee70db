#include "bench/traffic.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_map>

#include "base/descriptors.h"
#include "base/json_file.h"
#include "bench/calibrate.h"
#include "bench/prompt_writer.h"
#include "bench/server_client.h"
#include "bench/text_source.h"

namespace kvcake::bench {

namespace net = boost::asio;
using boost::system::error_code;
using nlohmann::json;

namespace {

constexpr double kAheadS = 0.1;  // bodies are written so long before they are due
constexpr std::chrono::milliseconds kProgressInterval{250};

// So many at once; the others in the order in which they came. One thread.
class Slots {
 public:
  Slots(net::io_context& context, int count) : context_(context), free_(count) {}

  net::awaitable<void> Acquire() {
    if (free_ > 0) {
      --free_;
      co_return;
    }
    const auto turn =
        std::make_shared<net::steady_timer>(context_, net::steady_timer::time_point::max());
    waiting_.push_back(turn);
    error_code woken;
    co_await turn->async_wait(net::redirect_error(net::use_awaitable, woken));
  }
  void Release() {
    if (waiting_.empty()) {
      ++free_;
      return;
    }
    waiting_.front()->cancel();  // the slot is its
    waiting_.pop_front();
  }

 private:
  net::io_context& context_;
  int free_;
  std::deque<std::shared_ptr<net::steady_timer>> waiting_;
};

class Session {
 public:
  Session(const TrafficOptions& options, const Workload& workload, ServerUrl url,
          const TextSource& source, json extra)
      : options_(options),
        workload_(workload),
        context_(1),
        client_(context_,
                {.url = std::move(url), .api_key = options.api_key, .timeout = options.timeout}),
        source_(source),
        extra_(std::move(extra)),
        slots_(context_, options.max_concurrency) {
    for (size_t i = 0; i < workload.requests.size(); ++i) {
      const int conversation = workload.requests[i].conversation;
      const auto [at, first] = conversation_of_.emplace(conversation, conversations_.size());
      if (first) conversations_.emplace_back();
      conversations_[at->second].push_back(i);
    }
  }

  Result<TrafficResult> Run() {
    RETURN_IF_ERROR(Wait(Prepare()));
    result_.answers.resize(workload_.requests.size());
    progress_ = {.doing = "answered", .total = workload_.requests.size()};
    zero_ = Clock::Real().Now();
    net::co_spawn(context_, Dispatch(), Rethrow);
    net::co_spawn(context_, ShowProgress(), Rethrow);
    context_.restart();
    context_.run();
    if (options_.check) RETURN_IF_ERROR(Wait(CheckAll()));
    return std::move(result_);
  }

 private:
  static void Rethrow(const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
  }

  Status Wait(net::awaitable<Status> work) {
    Status status;
    net::co_spawn(context_, std::move(work),
                  [&status](const std::exception_ptr& error, Status done) {
                    Rethrow(error);
                    status = std::move(done);
                  });
    context_.restart();
    context_.run();
    return status;
  }

  double NowS() const { return (Clock::Real().Now() - zero_).count(); }

  net::awaitable<void> SleepUntil(double at_s) {
    const TimePoint until = zero_ + Seconds(at_s);
    if (until <= Clock::Real().Now()) co_return;
    net::steady_timer timer(
        context_, std::chrono::time_point_cast<net::steady_timer::clock_type::duration>(until));
    error_code ignored;
    co_await timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
  }

  // Finds the server, its model, and how long its tokens are.
  net::awaitable<Status> Prepare() {
    const Status resolved = co_await client_.Resolve();
    if (!resolved) co_return resolved;
    const Result<json> models = co_await client_.Get("/v1/models");
    if (!models) co_return Fail(models.error().code, "{}", models.error().message);
    const Status chosen = ChooseModel(*models);
    if (!chosen) co_return chosen;
    PromptWriter::Options writing{.model = result_.model,
                                  .chat = options_.chat,
                                  .ignore_eos = options_.ignore_eos,
                                  .extra = extra_,
                                  .characters_per_token = options_.characters_per_token};
    if (options_.characters_per_token <= 0) {
      const Result<double> asked =
          co_await Calibrate(client_, source_, workload_, writing, NoTrace("calibration"));
      if (!asked) co_return Fail(asked.error().code, "{}", asked.error().message);
      writing.characters_per_token = *asked;
    }
    result_.characters_per_token = writing.characters_per_token;
    writer_ = std::make_unique<PromptWriter>(source_, workload_, std::move(writing));
    co_return Status();
  }

  Status ChooseModel(const json& models) {
    const json::json_pointer first_id("/data/0/id"), first_owner("/data/0/owned_by");
    if (!models.is_object() || !models.value(first_id, json()).is_string()) {
      return Fail(ErrorCode::kUnsupported, "{} names no model in /v1/models", options_.url);
    }
    result_.model =
        options_.model.empty() ? models.at(first_id).get<std::string>() : options_.model;
    kvcake_ = models.value(first_owner, json()) == "kvcake";
    return {};
  }

  // What makes a request share nothing with others, and leave nothing behind where that can be
  // asked for.
  json NoTrace(const std::string& salt) const {
    json more = {{"cache_salt", fmt::format("kvcake-bench {} {}", nonce_, salt)}};
    if (kvcake_) {
      more["kvcake"] = {{"policy", "compute"}, {"store", false}};
    } else {
      more["cache_prompt"] = false;  // llama.cpp's word for it
    }
    return more;
  }

  net::awaitable<void> Dispatch() {
    for (const std::vector<size_t>& requests : conversations_) {
      co_await SleepUntil(workload_.requests[requests[0]].at_s - kAheadS);
      net::co_spawn(context_, Converse(requests), Rethrow);
    }
  }

  net::awaitable<void> Converse(const std::vector<size_t>& requests) {
    double free_s = 0;  // the end of the round before
    for (const size_t i : requests) {
      const WorkloadRequest& request = workload_.requests[i];
      TrafficAnswer& out = result_.answers[i];
      out.conversation = request.conversation;
      out.round = request.round;
      out.due_s = std::max(request.at_s, free_s);
      const std::vector<Turn> turns = TurnsUntil(requests, i);
      if (turns.empty()) {
        out.sent_s = out.due_s;
        out.answer.SetError("round before failed", "the answer that it goes on from is missing");
      } else {
        co_await SleepUntil(request.at_s - kAheadS);
        co_await slots_.Acquire();
        out.planned_tokens = PlannedTokens(requests, i);
        std::string body = writer_->Body(turns);
        co_await SleepUntil(request.at_s);
        ++progress_.running;
        out.sent_s = NowS();
        out.answer = co_await client_.Ask(writer_->path(), std::move(body), zero_);
        for (; !out.answer.ok() && out.tries <= options_.retries; ++out.tries) {
          out.answer = co_await client_.Ask(writer_->path(), writer_->Body(turns), zero_);
        }
        --progress_.running;
        slots_.Release();
        if (out.answer.ok()) progress_.ttft_s = out.ttft_s();
      }
      free_s = NowS();
      result_.duration_s = std::max(result_.duration_s, free_s);
      ++progress_.done;
      if (!out.answer.ok()) ++progress_.failed;
    }
  }

  // The rounds of a conversation until request `last`; none where one before it has failed.
  std::vector<Turn> TurnsUntil(const std::vector<size_t>& requests, size_t last) const {
    std::vector<Turn> turns;
    for (const size_t i : requests) {
      if (i == last) {
        turns.push_back({.request = &workload_.requests[i], .answer = nullptr});
        break;
      }
      const Answer& answer = result_.answers[i].answer;
      if (!answer.ok()) return {};
      turns.push_back({.request = &workload_.requests[i], .answer = &answer.text});
    }
    return turns;
  }

  int PlannedTokens(const std::vector<size_t>& requests, size_t last) const {
    int tokens = workload_.system.tokens;
    for (const size_t i : requests) {
      for (const TextPiece& piece : workload_.requests[i].text) tokens += piece.tokens;
      if (i == last) break;
      tokens += result_.answers[i].answer.completion_tokens.value_or(0);
    }
    return tokens;
  }

  net::awaitable<Status> CheckAll() {
    progress_ = {.doing = "checked", .total = 0};
    for (const TrafficAnswer& answer : result_.answers) progress_.total += answer.answer.ok();
    for (size_t i = 0; i < result_.answers.size(); ++i) {
      const Answer& run = result_.answers[i].answer;
      if (!run.ok()) continue;
      Report();
      const auto& requests = conversations_[conversation_of_.at(result_.answers[i].conversation)];
      const std::string body =
          writer_->Body(TurnsUntil(requests, i), NoTrace(fmt::format("check {}", i)));
      const Answer cold = co_await client_.Ask(writer_->path(), body, zero_);
      ++result_.checked;
      if (cold.cached_tokens.value_or(0) > 0) ++result_.checked_cached;
      if (!cold.ok() || cold.text != run.text) {
        result_.differences.push_back(DifferenceOf(i, run, cold));
      }
      ++progress_.done;
    }
    Report();
    co_return Status();
  }

  static TrafficDifference DifferenceOf(size_t request, const Answer& run, const Answer& cold) {
    TrafficDifference difference{.request = request,
                                 .position = 0,
                                 .run = run.text,
                                 .cold = cold.text,
                                 .error = cold.ok() ? "" : cold.error_kind + ": " + cold.error};
    const auto at =
        std::mismatch(run.text.begin(), run.text.end(), cold.text.begin(), cold.text.end());
    difference.position = static_cast<size_t>(at.first - run.text.begin());
    return difference;
  }

  void Report() const {
    if (options_.progress) options_.progress(progress_);
  }

  net::awaitable<void> ShowProgress() {
    net::steady_timer timer(context_);
    while (progress_.done < progress_.total) {
      Report();
      timer.expires_after(kProgressInterval);
      error_code ignored;
      co_await timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
    }
    Report();
  }

  const TrafficOptions& options_;
  const Workload& workload_;
  net::io_context context_;
  ServerClient client_;
  const TextSource& source_;
  const json extra_;
  Slots slots_;
  std::unordered_map<int, size_t> conversation_of_;  // its place in conversations_
  std::vector<std::vector<size_t>> conversations_;   // their requests; by first arrival
  const uint64_t nonce_ = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  std::unique_ptr<PromptWriter> writer_;
  bool kvcake_ = false;
  TimePoint zero_{};
  TrafficProgress progress_;
  TrafficResult result_;
};

}  // namespace

Result<TrafficResult> RunTraffic(const TrafficOptions& options, const Workload& workload) {
  if (workload.requests.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "workload {} has no requests", workload.name);
  }
  ASSIGN_OR_RETURN(ServerUrl url, ServerUrl::Parse(options.url));
  ASSIGN_OR_RETURN(const TextSource source, TextSource::Read(options.text));
  json extra = json::object();
  if (!options.extra_body.empty()) {
    ASSIGN_OR_RETURN(extra, ParseJson(options.extra_body, "--extra-body"));
    if (!extra.is_object()) {
      return Fail(ErrorCode::kInvalidArgument, "--extra-body must be a JSON object");
    }
  }
  RaiseDescriptorLimit();
  return Session(options, workload, std::move(url), source, std::move(extra)).Run();
}

}  // namespace kvcake::bench
