// kvcake run: answer one prompt.
#include <fmt/core.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "app/config_file.h"
#include "app/flags.h"
#include "app/input.h"
#include "app/ranks.h"
#include "base/dump_json.h"
#include "bench/shared_steps.h"
#include "cake/trace.h"
#include "engine/chain_json.h"
#include "engine/stop_strings.h"

namespace kvcake {
namespace {

struct RunFlags {
  RuntimeOptions runtime;
  RankFlags ranks;
  std::string prompt, prompt_file, tokens_file;
  std::vector<std::string> stops;
  int max_tokens = 128;
  bool ignore_eos = false;
  std::string policy = "cake";
  std::string planner = "on";
  SamplingParams sampling;
  bool no_store = false;
  bool json = false;
  std::string trace_file;
  std::optional<double> compute_share;
  std::string compute_trace;
};

// Text, or ids as they are.
struct RunPrompt {
  std::optional<std::string> text;
  std::vector<int32_t> tokens;
};

// Before the model is loaded: a wrong path costs nothing.
Result<RunPrompt> ReadPrompt(const RunFlags& flags) {
  RunPrompt prompt;
  if (!flags.tokens_file.empty()) {
    ASSIGN_OR_RETURN(prompt.tokens, ReadTokens(flags.tokens_file));
  } else if (!flags.prompt_file.empty()) {
    ASSIGN_OR_RETURN(prompt.text, ReadText(flags.prompt_file));
  } else {
    prompt.text = flags.prompt;
  }
  return prompt;
}

nlohmann::ordered_json TierJson(const StoreOptions& store, const Tier& tier) {
  const TierStats stats = tier.Stats();
  return {{"name", tier.name()},
          {"dir", store.Place()},
          {"codec", store.loaded->row->name},
          {"lossy", store.loaded->row->lossy},
          {"chunks", stats.chunks},
          {"bytes", stats.bytes},
          {"reads", stats.reads},
          {"read_bytes", stats.read_bytes},
          {"written", stats.writes},
          {"evicted", stats.evicted},
          {"quarantined", stats.quarantined},
          {"reads_failed", stats.reads_failed},
          {"decode_core_s", stats.decodes.seconds},
          {"encode_core_s", stats.encodes.seconds}};
}

// What the stores did during the run: the sums, and each; null without one.
nlohmann::ordered_json StoreJson(Runtime& runtime) {
  if (runtime.stores().empty()) return nullptr;
  TierStats sum;
  auto tiers = nlohmann::ordered_json::array();
  for (size_t i = 0; i < runtime.stores().size(); ++i) {
    const Tier& tier = *runtime.stores()[i];
    const TierStats stats = tier.Stats();
    sum.chunks += stats.chunks;
    sum.bytes += stats.bytes;
    sum.quarantined += stats.quarantined;
    sum.reads_failed += stats.reads_failed;
    tiers.push_back(TierJson(runtime.options().stores[i], tier));
  }
  const WriteBehindStats writes = runtime.engine().write_stats();
  return {{"codec", CodecNames(runtime.options().stores)},
          {"lossy", !runtime.lossy_lineage().empty()},
          {"chunks", sum.chunks},
          {"bytes", sum.bytes},
          {"quarantined", sum.quarantined},
          {"reads_failed", sum.reads_failed},
          {"written", writes.written},
          {"writes_failed", writes.failed},
          {"writes_dropped", writes.dropped()},
          {"writes_not_admitted", writes.not_admitted},
          {"tiers", std::move(tiers)}};
}

// "####........====" on stderr when that is a terminal: computed from the left, loaded from the
// right, until they meet. Leaves nothing behind.
class ProgressBar {
 public:
  void Draw(const RestoreProgress& progress) {
    constexpr int kWidth = 50;
    if (!terminal_) return;
    const double scale = static_cast<double>(kWidth) / progress.prompt_tokens;
    const int right = static_cast<int>(progress.loaded * scale);
    const int left =
        std::min(static_cast<int>((progress.computed + progress.reused) * scale), kWidth - right);
    fmt::print(stderr, "\r[{}{}{}] computed {} loaded {} of {} tokens", std::string(left, '#'),
               std::string(kWidth - left - right, '.'), std::string(right, '='),
               progress.computed + progress.reused, progress.loaded, progress.prompt_tokens);
    drawn_ = true;
  }
  void Clear() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
    drawn_ = false;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
};

void PrintReport(const Completion& completion) {
  const RestoreReport& report = completion.report;
  std::string sources = fmt::format("{} computed", report.tokens_computed);
  for (const auto& [tier, tokens] : report.tokens_loaded) {
    sources += fmt::format(", {} loaded from {}", tokens, tier);
  }
  if (report.tokens_reused > 0) sources += fmt::format(", {} in memory", report.tokens_reused);
  fmt::print(stderr, "{} prompt tokens: {}", report.prompt_tokens, sources);
  if (report.chunks_failed > 0) {
    fmt::print(stderr, ", {} chunks failed to load", report.chunks_failed);
  }
  fmt::print(stderr, "\nfirst token after {:.3f} s", completion.ttft_s);
  if (report.efficiency > 0) {
    fmt::print(stderr, ", {:.0f}% of the estimated bound of {:.3f} s", 100 * report.efficiency,
               report.bound_s);
  }
  if (completion.tokens.size() > 1) {
    fmt::print(stderr, "; then {:.1f} tokens/s",
               (completion.tokens.size() - 1) / completion.decode_s);
  }
  fmt::print(stderr, "\n");
}

// The shares of each step, from the flag or its file; none: nobody shares it.
Result<std::optional<SpeedTrace>> ReadShares(const RunFlags& flags) {
  if (!flags.compute_trace.empty()) {
    return ReadSpeedTrace("--compute-trace", flags.compute_trace, 1);
  }
  if (!flags.compute_share) return std::nullopt;
  return SpeedTrace({{.at_s = 0, .speed = *flags.compute_share}});
}

Result<Request> MakeRequest(const RunFlags& flags, const RunPrompt& prompt, Runtime& runtime) {
  Request request;
  request.prompt = prompt.tokens;
  if (prompt.text && !runtime.has_tokenizer()) {
    request.prompt = EmulatedModel::TokensOf(*prompt.text);
  } else if (prompt.text) {
    ASSIGN_OR_RETURN(request.prompt, runtime.tokenizer().Encode(*prompt.text));
  }
  request.max_tokens = flags.max_tokens;
  request.sampling = flags.sampling;
  request.policy = *PolicyFromName(flags.policy);
  if (flags.planner == "off") {
    if (request.policy != Policy::kCake) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--planner off belongs to --policy cake: {} has one lane only", flags.policy);
    }
    request.policy = Policy::kPublished;
  }
  request.store = !flags.no_store;
  if (!flags.ignore_eos) request.end_tokens = runtime.config().eos_tokens;
  return request;
}

// The answer as it grows: text, or ids where there is no tokenizer.
class AnswerText {
 public:
  AnswerText(const Runtime& runtime, const Request& request, const std::vector<std::string>& stops)
      : stops_(stops) {
    if (!runtime.has_tokenizer()) return;
    detokenizer_.emplace(runtime.tokenizer(), /*skip_special=*/true, request.prompt);
  }
  std::string Append(int32_t token) {
    return stops_.Append(detokenizer_ ? detokenizer_->Append(token) : fmt::format("{} ", token));
  }
  std::string Finish() {
    std::string rest = detokenizer_ ? stops_.Append(detokenizer_->Finish()) : std::string();
    return rest + stops_.Finish();
  }
  bool stopped() const { return stops_.found(); }

 private:
  std::optional<Detokenizer> detokenizer_;
  StopStrings stops_;
};

// `ranks` is null when this process is alone.
Status Answer(const RunFlags& flags, Ranks* ranks) {
  const bool leads = ranks == nullptr || ranks->leads();
  RunPrompt prompt;
  if (leads) {
    ASSIGN_OR_RETURN(prompt, ReadPrompt(flags));
  }
  RuntimeOptions options = flags.runtime;
  ASSIGN_OR_RETURN(const std::optional<SpeedTrace> shares, ReadShares(flags));
  if (options.model_dir.empty() && options.emulate.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--model DIR (or --emulate PROFILE) is required");
  }
  if (ranks != nullptr) RETURN_IF_ERROR(ranks->Divide(&options));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  ASSIGN_OR_RETURN(const auto shared, bench::SharedSteps::Install(*runtime, shares));
  if (!leads) return ranks->Work(*runtime);
  if (ranks != nullptr) RETURN_IF_ERROR(ranks->Lead(*runtime));
  const Clock& clock = Clock::Real();
  const TimePoint began = clock.Now();  // the wait for the first token includes tokenization
  ASSIGN_OR_RETURN(Request request, MakeRequest(flags, prompt, *runtime));
  const Seconds tokenized = clock.Now() - began;

  AnswerText answer(*runtime, request, flags.stops);
  ProgressBar bar;
  std::string text;
  const auto emit = [&](const std::string& piece) {
    bar.Clear();
    text += piece;
    if (flags.json) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  request.on_token = [&](const TokenEvent& event) {
    emit(answer.Append(event.token));
    return !answer.stopped();
  };
  const auto after_step = [&](SequenceId id) {
    if (const auto progress = runtime->engine().Progress(id)) bar.Draw(*progress);
  };
  ASSIGN_OR_RETURN(Completion completion, runtime->engine().Answer(std::move(request), after_step));
  completion.ttft_s += tokenized.count();
  emit(answer.Finish());
  runtime->engine().FlushStore();

  if (flags.json) {
    const nlohmann::ordered_json json = {
        {"text", text},
        {"tokens", completion.tokens},
        {"prompt_tokens", completion.report.prompt_tokens},
        {"finish_reason", FinishReasonName(completion.finish_reason)},
        {"ttft_s", completion.ttft_s},
        {"startup",
         {{"first_forward_s", (runtime->first_forward_at() - ProcessStart()).count()},
          {"ready_s", (began - ProcessStart()).count()}}},
        {"report", completion.report.ToJson()},
        {"chain", ChainJson(completion.chain)},
        {"store", StoreJson(*runtime)}};
    fmt::print("{}\n", DumpJson(json, 2));
  } else {
    fmt::print("\n");
    PrintReport(completion);
    if (completion.chain) {
      fmt::print(stderr, "prefilled by {} ranks, tokens {}\n", completion.chain->ranks.size(),
                 FormatPartition(completion.chain->job.partition));
    }
  }
  if (flags.trace_file.empty()) return {};
  return WriteChromeTrace(flags.trace_file, completion.report);
}

int RunRanks(const RunFlags& flags, const CLI::App& command) {
  Result<std::unique_ptr<Ranks>> ranks;
  if (StartedByMpirun()) {
    ranks = Ranks::Join(flags.ranks);
  } else if (flags.ranks.ranks > 1) {
    ranks = Ranks::WithWorkers(flags.ranks, command);
  } else {
    WarnOfPartitionFlags(command);
  }
  if (!ranks) return Fatal(ranks.error());
  const Status status = Answer(flags, ranks->get());
  const int exit_code = status ? 0 : Fatal(status.error());
  if (*ranks) (*ranks)->End(exit_code);
  return exit_code;
}

// What stands in for a machine that is not here.
void AddEmulationFlags(CLI::App& run, RunFlags* flags) {
  run.get_option("--model")->required(false);
  run.add_option("--emulate", flags->runtime.emulate,
                 "instead of --model: wait as long as a machine and a model would compute that are "
                 "not here, e.g. bench/profiles/a100-llama-7b.json; chunks and the rates of links "
                 "are scaled down, and a text's tokens are hashes of four bytes each")
      ->excludes("--model");
  CLI::Option* share =
      run.add_option("--compute-share", flags->compute_share,
                     "of each step, that restoring may compute; requests made up for it take the "
                     "rest, and the step lasts as long as a full one")
          ->check(Between(1e-3, 1.0));
  run.add_option("--compute-trace", flags->compute_trace,
                 "a file of how that share changes: lines of seconds since the first step, share "
                 "(0 is legal, but not at the end)")
      ->excludes(share);
}

}  // namespace

void AddRunCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* run = app.add_subcommand("run", "answer one prompt and say how its KV cache was made");
  AddConfigFlag(*run);
  AddRuntimeFlags(*run, &flags->runtime);
  AddEmulationFlags(*run, flags.get());
  AddRankFlags(*run, &flags->ranks);
  CLI::Option_group* prompt = run->add_option_group("prompt", "what to answer; one of");
  prompt->add_option("--prompt", flags->prompt, "the text itself");
  prompt->add_option("--prompt-file", flags->prompt_file, "a file with the text; - for stdin");
  prompt->add_option("--prompt-tokens", flags->tokens_file,
                     "a file with token ids: a JSON array, or separated by white space; - for "
                     "stdin");
  prompt->require_option(1);
  run->add_option("--max-tokens", flags->max_tokens, "most tokens to generate")
      ->check(Positive())
      ->capture_default_str();
  run->add_option("--stop", flags->stops, "end the answer before this text; may be repeated")
      ->allow_extra_args(false);  // else CLI11 takes "[a,b]" for a list
  run->add_flag("--ignore-eos", flags->ignore_eos,
                "go on after the end tokens of the model and its tokenizer");
  AddPolicyFlag(*run, &flags->policy);
  run->add_option(
         "--planner", flags->planner,
         "off: cake as published, both lanes go on until they meet and nothing is predicted")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  AddSamplingFlags(*run, &flags->sampling);
  run->add_flag("--no-store", flags->no_store,
                "keep nothing of this prompt and its answer; what is kept already is used");
  run->add_flag("--json", flags->json, "print one JSON object instead of text");
  run->add_option("--trace", flags->trace_file,
                  "write the timeline of both lanes for chrome://tracing or Perfetto");
  run->callback([flags, run, exit_code] { *exit_code = RunRanks(*flags, *run); });
}

}  // namespace kvcake
