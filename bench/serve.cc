// What does the server cost beside the engine's steps?
//
// A request's overhead is the time that its client sees, from before the request is written to its
// last byte, without what the engine's steps took of it: the rest of the one that ran when it came,
// if it was ready by the end of that, those that it waited for, and those that it was in, as the
// server reports them (`steps_s`). A step plans, runs the model, samples, and streams: "delivery"
// is what handing the tokens to all streams takes of it. So reading, parsing and tokenizing that
// make a request miss a step, the hops between threads, what lies between steps, text and events,
// sockets, and the client's own part are overhead.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/cpu.h"
#include "base/descriptors.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/scratch_dir.h"
#include "bench/serve_child.h"
#include "bench/serve_client.h"

namespace kvcake::bench {
namespace {

constexpr double kOverheadGoalMs = 2;
constexpr double kThroughputGoal = 1.05;
constexpr uint64_t kIdleGoalBytes = 64 << 20;
constexpr int kQueueMax = 8192;
constexpr const char* kTrafficRam = "512MiB";
constexpr const char* kSmallRam = "16MiB";  // 512 pages of the emulated model
constexpr std::array kWords = {"river",  "stone", "cloud", "house",  "green", "seven", "light",
                               "market", "small", "train", "window", "paper", "night", "garden"};

std::string RandomText(std::mt19937_64& rng, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += fmt::format("{} ", kWords[rng() % kWords.size()]);
  return text;
}

// Makes the body of request `number`: the same for the same number, and unlike all others.
struct Body {
  size_t prompt_bytes = 0;
  int answer_tokens = 2;  // on average

  std::string operator()(int number) const {
    std::mt19937_64 rng(number);
    const int spread = answer_tokens / 2;
    const nlohmann::json body = {
        {"prompt", fmt::format("{} {}", number, RandomText(rng, prompt_bytes))},
        {"max_tokens", answer_tokens - spread + static_cast<int>(rng() % (2 * spread + 1))},
        {"temperature", 0},
        {"ignore_eos", true},
        {"stream", true},
        {"kvcake", {{"report", true}}}};
    return body.dump();
  }
};

// What the server has counted.
struct Counters {
  double steps = 0, step_s = 0, delivery_s = 0, prompt_tokens = 0, cached_tokens = 0;
};

Result<Counters> ReadCounters(uint16_t port) {
  Counters counters;
  ASSIGN_OR_RETURN(counters.steps, ReadMetric(port, "kvcake_steps_total"));
  ASSIGN_OR_RETURN(counters.step_s, ReadMetric(port, "kvcake_step_seconds_total"));
  ASSIGN_OR_RETURN(counters.delivery_s, ReadMetric(port, "kvcake_delivery_seconds_total"));
  ASSIGN_OR_RETURN(counters.prompt_tokens, ReadMetric(port, "vllm:prompt_tokens_total"));
  ASSIGN_OR_RETURN(counters.cached_tokens, ReadMetric(port, "vllm:prefix_cache_hits_total"));
  return counters;
}

struct Traffic {
  const char* name = "";
  Body body = {};
  int requests = 0;
};

class ServeBench {
 public:
  ServeBench(const ServeOptions& options, std::string dir)
      : options_(options),
        dir_(std::move(dir)),
        program_(options.program.empty() ? "/proc/self/exe" : options.program) {}

  Status Run() {
    RaiseDescriptorLimit();  // the child's too
    fmt::print("{}, {} streams, {} requests with short prompts and a quarter with long ones\n",
               CpuName(), options_.streams, options_.requests);
    RETURN_IF_ERROR(MeasureTraffic());
    if (options_.idle > 0) RETURN_IF_ERROR(MeasureIdle());
    if (options_.sequence > 0) RETURN_IF_ERROR(MeasureSequence());
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  // Steps of `step_s` and, as Llama 7B on an A100, 76 us for each token.
  Result<std::unique_ptr<ServeChild>> StartEmulated(double step_s, const char* ram) const {
    const nlohmann::json profile = {{"name", "bench serve"},
                                    {"layers", 8},
                                    {"kv_bytes_per_token", 65536},
                                    {"max_positions", 8192},
                                    {"attention", "causal"},
                                    {"c0", step_s},
                                    {"b", 76e-6},
                                    {"a", 0}};
    const std::string path = dir_ + "/profile.json";
    RETURN_IF_ERROR(WriteJson(path, profile));
    return Start({"--emulate", path, "--threads", "1", "--ram-capacity", ram, "--queue-max",
                  std::to_string(kQueueMax)});
  }
  Result<std::unique_ptr<ServeChild>> StartReal() const {
    std::vector<std::string> flags = {"--ram-capacity", kTrafficRam};
    if (options_.threads > 0) {
      flags.insert(flags.end(), {"--threads", std::to_string(options_.threads)});
    }
    return Start(std::move(flags));
  }
  Result<std::unique_ptr<ServeChild>> Start(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--model", options_.model_dir});
    return ServeChild::Start(program_, flags, dir_ + "/log");
  }

  Status MeasureTraffic() {
    fmt::print("{:<9} {:<7} {:>7} {:>7} {:>9} {:>12} {:>9} {:>9} {:>6} {:>13}\n", "engine",
               "prompts", "tokens", "steps", "mean ms", "delivery us", "p50 ms", "p99 ms", "goal",
               "wall / steps");
    const Traffic kinds[] = {
        {.name = "short",
         .body = {.prompt_bytes = 1000, .answer_tokens = options_.answer_tokens},
         .requests = options_.requests},
        {.name = "long",
         .body = {.prompt_bytes = 4000, .answer_tokens = options_.answer_tokens},
         .requests = (options_.requests + 3) / 4}};
    for (const bool emulated : {true, false}) {
      for (const Traffic& traffic : kinds) {
        ASSIGN_OR_RETURN(const auto server, emulated
                                                ? StartEmulated(options_.step_ms / 1e3, kTrafficRam)
                                                : StartReal());
        RETURN_IF_ERROR(Measure(*server, emulated ? "emulated" : "real", traffic));
      }
    }
    return {};
  }

  Status Measure(const ServeChild& server, const char* engine, const Traffic& traffic) {
    const uint16_t port = server.port();
    const auto run = [&](int first, int requests) {
      return RunStreams(port, {.streams = options_.streams,
                               .requests = requests,
                               .reconnect_every = 0,
                               .body = [&, first](int i) { return traffic.body(first + i); }});
    };
    // With prompts of its own, which leave nothing in memory of those that are measured.
    ASSIGN_OR_RETURN(const auto warm,
                     run(traffic.requests, std::min(traffic.requests, options_.streams)));
    const TimePoint began = Clock::Real().Now();
    ASSIGN_OR_RETURN(const Counters before, ReadCounters(port));
    ASSIGN_OR_RETURN(const auto answers, run(0, traffic.requests));
    ASSIGN_OR_RETURN(const Counters after, ReadCounters(port));
    const double wall_s = (Clock::Real().Now() - began).count();
    std::vector<double> overhead_ms;
    // The burst at the start waits for itself; from then on that many streams are active.
    const bool all = traffic.requests <= options_.streams;
    for (const AnswerTimes& a : answers) {
      if (all || !a.burst) overhead_ms.push_back(1e3 * (a.total_s - a.steps_s));
    }
    const double steps = after.steps - before.steps, step_s = after.step_s - before.step_s;
    const double delivery_us = 1e6 * (after.delivery_s - before.delivery_s) / steps;
    const double tokens = (after.prompt_tokens - before.prompt_tokens) / traffic.requests;
    const double cached = (after.cached_tokens - before.cached_tokens) / traffic.requests;
    const double p50 = Quantile(overhead_ms, 0.5), p99 = Quantile(overhead_ms, 0.99);
    fmt::print(
        "{:<9} {:<7} {:>7.0f} {:>7.0f} {:>9.2f} {:>12.1f} {:>9.2f} {:>9.2f} {:>6.0f} {:>13.3f}\n",
        engine, traffic.name, tokens, steps, 1e3 * step_s / steps, delivery_us, p50, p99,
        kOverheadGoalMs, wall_s / step_s);
    json_["traffic"].push_back({{"engine", engine},
                                {"prompts", traffic.name},
                                {"prompt_tokens", tokens},
                                {"cached_tokens", cached},
                                {"streams", options_.streams},
                                {"requests", traffic.requests},
                                {"steps", steps},
                                {"steps_s", step_s},
                                {"delivery_us_per_step", delivery_us},
                                {"wall_s", wall_s},
                                {"overhead_ms_p50", p50},
                                {"overhead_ms_p99", p99},
                                {"overhead_ms_p99_goal", kOverheadGoalMs},
                                {"wall_over_steps", wall_s / step_s},
                                {"wall_over_steps_goal", kThroughputGoal}});
    return {};
  }

  // Steps of seconds: streams that are open, and in which nothing happens.
  Status MeasureIdle() {
    ASSIGN_OR_RETURN(const auto server, StartEmulated(1, kSmallRam));
    const Body body{.prompt_bytes = 200, .answer_tokens = 4000};
    ASSIGN_OR_RETURN(
        const auto warm,
        RunStreams(server->port(), {.streams = 1,
                                    .requests = 1,
                                    .reconnect_every = 0,
                                    .body = Body{.prompt_bytes = 200, .answer_tokens = 2}}));
    ASSIGN_OR_RETURN(const uint64_t before, server->RssBytes());
    std::vector<HttpClient> clients(options_.idle);
    for (int i = 0; i < options_.idle; ++i) {
      RETURN_IF_ERROR(clients[i].Connect(server->port()));
      RETURN_IF_ERROR(clients[i].Send("POST", "/v1/completions", body(i)));
    }
    for (HttpClient& client : clients) {  // its head says that it is open
      while (client.received().find("\r\n\r\n") == std::string::npos) {
        RETURN_IF_ERROR(client.Receive().map([](bool) {}));
      }
    }
    ASSIGN_OR_RETURN(const uint64_t after, server->RssBytes());
    const uint64_t extra = after - std::min(after, before);
    fmt::print(
        "{} idle streams: {:.1f} MiB more than {:.1f} MiB, {:.1f} KiB each (goal for 1000: {} "
        "MiB)\n",
        options_.idle, static_cast<double>(extra) / (1 << 20),
        static_cast<double>(before) / (1 << 20), static_cast<double>(extra) / 1024 / options_.idle,
        kIdleGoalBytes >> 20);
    json_["idle"] = {{"streams", options_.idle},
                     {"rss_bytes_before", before},
                     {"rss_bytes_extra", extra},
                     {"goal_bytes", kIdleGoalBytes}};
    return {};
  }

  // Chunks of 128 tokens: the page cache is full well before the first look.
  Status MeasureSequence() {
    ASSIGN_OR_RETURN(const auto server, StartEmulated(50e-6, kSmallRam));
    int done = 0;
    json_["sequence"] = nlohmann::ordered_json::array();
    std::string line;
    for (const int tenths : {1, 5, 10}) {
      const int until = static_cast<int>(static_cast<int64_t>(options_.sequence) * tenths / 10);
      const Body body{.prompt_bytes = 600, .answer_tokens = 3};
      ASSIGN_OR_RETURN(const auto answers,
                       RunStreams(server->port(), {.streams = 1,
                                                   .requests = until - done,
                                                   .reconnect_every = 10,
                                                   .body = [&](int i) { return body(done + i); }}));
      done = until;
      ASSIGN_OR_RETURN(const uint64_t rss, server->RssBytes());
      json_["sequence"].push_back({{"requests", done}, {"rss_bytes", rss}});
      line += fmt::format("{}{:.1f} MiB after {}", line.empty() ? "" : ", ",
                          static_cast<double>(rss) / (1 << 20), done);
    }
    fmt::print("requests in sequence: {}\n", line);
    return {};
  }

  const ServeOptions& options_;
  const std::string dir_;
  const std::string program_;
  nlohmann::ordered_json json_;
};

}  // namespace

Status RunServe(const ServeOptions& options) {
  RunInBackground();  // a client elsewhere would interrupt nobody here
  ASSIGN_OR_RETURN(const ScratchDir dir, ScratchDir::Make(options.dir, "serve"));
  return ServeBench(options, dir.path()).Run();
}

}  // namespace kvcake::bench
