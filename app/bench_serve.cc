// kvcake bench serve: what our own server costs, and with --url how any server bears a workload.
#include <memory>
#include <optional>

#include "app/add_bench.h"
#include "app/flags.h"
#include "app/progress.h"
#include "bench/benches.h"
#include "bench/traffic_run.h"

namespace kvcake {
namespace {

struct Options {
  bench::ServeOptions overhead;
  bench::TrafficBenchOptions traffic;
  std::string json;
};

void AddOverheadFlags(CLI::App& command, bench::ServeOptions* options, CLI::Option* url) {
  std::vector<CLI::Option*> flags;
  const auto add = [&](CLI::Option* flag) {
    flags.push_back(flag);
    return flag;
  };
  add(command.add_option("--streams", options->streams, "answered at once")
          ->check(CLI::Range(1, 1024))
          ->capture_default_str());
  add(command
          .add_option("--requests", options->requests,
                      "with short prompts; a quarter of it with long ones")
          ->check(Positive())
          ->capture_default_str());
  add(command.add_option("--answer-tokens", options->answer_tokens, "of a request, on average")
          ->check(CLI::Range(2, 4096))
          ->capture_default_str());
  add(command.add_option("--step-ms", options->step_ms, "of an emulated step")
          ->check(CLI::Range(0.01, 1000.0))
          ->capture_default_str());
  add(command.add_option("--idle", options->idle, "open streams in which nothing happens; 0: none")
          ->check(CLI::Range(0, 4000))
          ->capture_default_str());
  add(command.add_option("--sequence", options->sequence, "requests one after the other; 0: none")
          ->check(CLI::Range(0, 100000000))
          ->capture_default_str());
  add(command.add_option("--threads", options->threads, "compute threads (default: every core)")
          ->check(CLI::Range(1, 1024)));
  add(command.add_option("--dir", options->dir, "for logs (default: the cache directory)"));
  for (CLI::Option* flag : flags) flag->excludes(url)->group("Our own server's overhead");
}

// Flags that say something only together with --url.
class TrafficFlags {
 public:
  TrafficFlags(CLI::App& command, CLI::Option* url) : command_(command), url_(url) {}

  CLI::App& command() { return command_; }
  void Group(const char* name) { group_ = name; }
  template <typename T>
  CLI::Option* Add(const char* name, T& value, const char* help) {
    return Place(command_.add_option(name, value, help));
  }
  CLI::Option* Flag(const char* name, bool& value, const char* help) {
    return Place(command_.add_flag(name, value, help));
  }
  void Count(const char* name, int& value, int least, const char* help) {
    Add(name, value, help)->check(CLI::Range(least, 1 << 28))->capture_default_str();
  }
  CLI::Option* Place(CLI::Option* option) { return option->needs(url_)->group(group_); }

 private:
  CLI::App& command_;
  CLI::Option* const url_;
  const char* group_ = "";
};

void AddWorkloadFlags(TrafficFlags& flags, bench::WorkloadOptions* options) {
  flags.Group("The workload");
  flags.Add("--workload", options->name, "what is asked")
      ->check(CLI::IsMember({"long-doc-qa", "multi-round-chat", "random-prefill", "trace"}))
      ->capture_default_str();
  flags
      .Add("--request-rate,--qps", options->request_rate,
           "requests that arrive in a second, whatever becomes of those before; inf: all at once")
      ->capture_default_str();
  flags.Add("--arrivals", options->arrivals, "at random moments, or evenly")
      ->check(CLI::IsMember({"poisson", "fixed"}))
      ->capture_default_str();
  flags
      .Add("--num-prompts", options->num_prompts,
           "only the first so many (default: all; 100 of random-prefill)")
      ->check(Positive());
  flags.Count("--output-len,--answer-len", options->output_tokens, 1,
              "tokens of an answer, at most (a trace has its own)");
  flags.Add("--seed", options->seed, "the same seed asks the same")
      ->check(Natural())
      ->capture_default_str();
  flags.Group("long-doc-qa: questions about long documents");
  flags.Count("--num-documents", options->num_documents, 1, "documents");
  flags.Count("--document-length", options->document_tokens, 1, "tokens of a document");
  flags.Count("--repeat-count", options->repeat_count, 1, "questions about each");
  flags
      .Add("--repeat-mode", options->repeat_mode,
           "in any order, all documents and again, or one until it is done")
      ->check(CLI::IsMember({"random", "tile", "interleave"}))
      ->capture_default_str();
  flags.Group("multi-round-chat: each round goes on from the answer before");
  flags.Count("--num-users", options->num_users, 1, "conversations");
  flags.Count("--num-rounds", options->num_rounds, 1, "rounds of each");
  flags.Count("--shared-system-prompt", options->shared_system_tokens, 0,
              "tokens that all begin with");
  flags.Count("--user-history-prompt", options->user_history_tokens, 0,
              "tokens of a user's first round before the question");
  flags.Count("--question-len", options->question_tokens, 1, "tokens of a question");
  flags.Group("random-prefill: prompts that share nothing");
  flags.Count("--random-input-len", options->input_tokens, 1, "tokens of a prompt");
  flags.Add("--random-range-ratio", options->range_ratio, "how far lengths are from that, at most")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  flags.Group("trace: as it was recorded");
  flags.Add("--trace", options->trace,
            "Mooncake's JSON lines: timestamp, input_length, output_length, hash_ids; equal ids "
            "are equal text");
  flags.Add("--length-scale", options->length_scale, "of prompts and answers")
      ->check(CLI::Range(1e-6, 1e3))
      ->capture_default_str();
  flags
      .Add("--time-scale", options->time_scale, "of the time between requests; 0.5: twice as fast")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

void AddClientFlags(TrafficFlags& flags, bench::TrafficBenchOptions* options) {
  bench::TrafficOptions& traffic = options->traffic;
  flags.Group("How it is asked");
  flags
      .Place(flags.command().add_option_function<std::string>(
          "--endpoint", [&traffic](const std::string& name) { traffic.chat = name == "chat"; },
          "/v1/completions or /v1/chat/completions"))
      ->check(CLI::IsMember({"completions", "chat"}))
      ->default_str("completions");
  flags.Add("--api-key", traffic.api_key, "for the server");
  flags.Add("--extra-body", traffic.extra_body,
            R"(JSON merged into each request, e.g. '{"kvcake": {"policy": "load"}}')");
  flags.Flag("--ignore-eos", traffic.ignore_eos, "answers as long as they may be");
  flags.Add("--text", traffic.text, "what prompts are made of: a file, or a directory of *.txt")
      ->capture_default_str();
  flags
      .Add("--chars-per-token", traffic.characters_per_token,
           "of that text (default: the server is asked)")
      ->check(CLI::Range(0.1, 1000.0));
  flags.Count("--max-concurrency", traffic.max_concurrency, 1,
              "answered at once; more wait before they are sent");
  flags
      .Place(flags.command().add_option_function<double>(
          "--timeout", [&traffic](double s) { traffic.timeout = Seconds(s); }, "of a request"))
      ->transform(DurationValue())
      ->check(CLI::Range(1e-3, 1e6))
      ->default_str("10min");
  flags.Flag("--check", traffic.check,
             "then ask for everything again, one by one and computed from nothing: the answers "
             "must be the same");
  flags.Add("--svg", options->svg, "draw the times to first token to this file")
      ->check(ResultFile());
}

// The groups of AddWorkloadFlags begin with the workload whose flags they hold.
Status CheckWorkloadFlags(const CLI::App& command, const std::string& workload) {
  for (const CLI::Option* flag : command.get_options()) {
    const std::string group = flag->get_group();
    const size_t name = group.find(": ");
    if (flag->count() == 0 || name == std::string::npos || group.substr(0, name) == workload) {
      continue;
    }
    return Fail(ErrorCode::kInvalidArgument, "--{} is of --workload {}, and {} is asked for",
                flag->get_lnames()[0], group.substr(0, name), workload);
  }
  return {};
}

Status RunTraffic(const CLI::App& command, bench::TrafficBenchOptions& options) {
  RETURN_IF_ERROR(CheckWorkloadFlags(command, options.workload.name));
  std::optional<ProgressLine> line;
  options.traffic.progress = [&line](const bench::TrafficProgress& progress) {
    if (progress.done == progress.total) return line.reset();  // before anything is printed
    if (!line) line.emplace();
    const auto done = static_cast<double>(progress.done),
               total = static_cast<double>(progress.total);
    std::string text = fmt::format("{}/{} {}", progress.done, progress.total, progress.doing);
    if (progress.running > 0) text += fmt::format(", {} running", progress.running);
    if (progress.failed > 0) text += fmt::format(", {} failed", progress.failed);
    if (progress.ttft_s > 0) text += fmt::format(", first token after {:.2f} s", progress.ttft_s);
    line->Draw(done, total, text);
  };
  return bench::RunTrafficBench(options);
}

}  // namespace

void AddBenchServeCommand(CLI::App& bench, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "serve",
      "what the server costs beside the engine's steps: time, memory, throughput; with --url, how "
      "any OpenAI-compatible server bears a workload");
  const CLI::Option* model =
      command
          ->add_option("--model", options->overhead.model_dir,
                       "model directory; with --url the model's name there (default: its first)")
          ->capture_default_str();
  AddJsonFile(*command, &options->json);
  CLI::Option* url = command->add_option("--url", options->traffic.traffic.url,
                                         "a server that runs, e.g. http://localhost:8000");
  AddOverheadFlags(*command, &options->overhead, url);
  TrafficFlags flags(*command, url);
  AddWorkloadFlags(flags, &options->traffic.workload);
  AddClientFlags(flags, &options->traffic);
  command->callback([options, command, model, url, exit_code] {
    options->overhead.json = options->traffic.json = options->json;
    if (model->count() > 0) options->traffic.traffic.model = options->overhead.model_dir;
    const Status status = url->count() > 0 ? RunTraffic(*command, options->traffic)
                                           : bench::RunServe(options->overhead);
    if (!status) *exit_code = Fatal(status.error());
  });
}

}  // namespace kvcake
