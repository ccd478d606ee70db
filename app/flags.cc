#include "app/flags.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <map>

#include "base/cpu.h"
#include "base/utf8.h"
#include "server/chat_template.h"

namespace kvcake {

CLI::AsSizeValue SizeValue() {
  // By itself it would take "-5" for nearly 2^64, and "010" for 8.
  struct Unsigned : CLI::AsSizeValue {
    Unsigned() : CLI::AsSizeValue(/*kb_is_1000=*/false) {
      func_ = [parse = func_](std::string& text) {
        text.erase(0, text.find_first_not_of(" \t"));
        while (text.starts_with('0') && text.find_first_of("0123456789", 1) == 1) text.erase(0, 1);
        if (text.starts_with('-')) return "a size is not negative: " + text;
        if (text.find('.') == text.npos) return parse(text);
        return "a size is a whole number and a unit, as 1536MiB: " + text;
      };
    }
  };
  return Unsigned();
}

CLI::AsNumberWithUnit RateValue() {
  std::map<std::string, double> units = {
      {"bit", 1.0 / 8},  {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"kbps", 1e3 / 8},
      {"Mbps", 1e6 / 8}, {"Gbps", 1e9 / 8}, {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},
      {"KiB", 1 << 10},  {"MiB", 1 << 20},  {"GiB", 1 << 30}};
  // By case: "Mb" could be either, and is refused.
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE, "RATE");
}

CLI::AsNumberWithUnit DurationValue() {
  std::map<std::string, double> units = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                         {"min", 60},  {"h", 3600},  {"d", 86400}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_INSENSITIVE, "TIME");
}

namespace {

CLI::Validator NumberThat(bool (*holds)(double), const std::string& what, const char* name) {
  const auto check = [=](std::string& text) {
    double value = 0;
    const bool is_finite = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return is_finite && holds(value) ? "" : fmt::format("{} is not {}", text, what);
  };
  return CLI::Validator(check, name);
}

}  // namespace

CLI::Validator Between(double least, double most) {
  const CLI::Range range(least, most);
  const auto check = [=](std::string& text) {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return text + " is no number";
    if (range(text).empty()) return std::string();
    // CLI11 says 0.000000 of what is near it.
    return fmt::format("Value {} not in range {:g} to {:g}", text, least, most);
  };
  return CLI::Validator(check, range.get_description());
}

CLI::Validator Positive() {
  return NumberThat([](double value) { return value > 0; }, "above 0", "POSITIVE");
}

CLI::Validator NotNegative() {
  return NumberThat([](double value) { return value >= 0; }, "0 or above", "NONNEGATIVE");
}

CLI::Validator Natural() {
  const auto check = [](std::string& text) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return std::string();
    return fmt::format("{} is not a whole number from 0 to {}", text, UINT64_MAX);
  };
  return CLI::Validator(check, "NATURAL");
}

void AddSize(CLI::App& app, const char* name, uint64_t* value, const char* help) {
  app.add_option(name, *value, help)
      ->transform(SizeValue())
      ->default_str(*value % (1 << 30) == 0 ? fmt::format("{}GiB", *value >> 30)
                                            : fmt::format("{}MiB", *value >> 20));
}

namespace {

void AddCudaFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option("--gpu-memory-utilization", options->gpu_memory_utilization,
                 "with --backend cuda, the share of its memory for weights, scratch and KV pages")
      ->check(Between(0.01, 1.0))
      ->capture_default_str();
  AddSize(app, "--staging-capacity", &options->staging_capacity_bytes,
          "with --backend cuda, page-locked host memory that a store's chunks pass through, and as "
          "much again for what ranks send each other");
  app.add_option(
      "--cuda-device", options->cuda_device,
      "with --backend cuda, the device, as CUDA_VISIBLE_DEVICES names it (default: the "
      "first of these; of ranks on one machine each the next, round and round; where the "
      "variable is not set, 0, 1, ...)");
  app.add_flag("--ram-pinned,!--no-ram-pinned", options->ram_pinned,
               "with --backend cuda, page-lock the memory of --ram-capacity (default): chunks are "
               "copied straight from it; otherwise they pass through --staging-capacity");
  app.add_flag("--enforce-eager", options->enforce_eager,
               "with --backend cuda, enqueue the kernels of every step one by one: no CUDA graphs");
  AddAttentionBackendFlag(app, &options->attention_backend);
}

}  // namespace

void AddSeconds(CLI::App& app, const char* name, Seconds* value, const char* help) {
  app.add_option_function<double>(
         name, [value](double s) { *value = Seconds(s); }, help)
      ->transform(DurationValue())
      ->check(CLI::Range(0.001, 1e6))
      ->default_str(fmt::format("{}s", value->count()));
}

void AddChunkTokensFlag(CLI::App& app, int* tokens, const char* help) {
  app.add_option("--chunk-tokens", *tokens, help)
      ->check(CLI::Range(16, 1 << 16))
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::stol(text) % 16 == 0 ? std::string() : "must be a multiple of 16";
          },
          "MULTIPLE OF 16"))
      ->capture_default_str();
}

WeightFormat WeightFormatFromName(const std::string& name) {
  return name == WeightFormatName(WeightFormat::kInt8) ? WeightFormat::kInt8 : WeightFormat::kBf16;
}

void AddWeightsFlag(CLI::App& app, WeightFormat* weights) {
  app.add_option_function<std::string>(
         "--weights", [weights](const std::string& name) { *weights = WeightFormatFromName(name); },
         "how weights are held: int8 (rounded when loaded, a scale for each row) is faster and "
         "takes half the memory; its chunks are its own")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->default_str("bf16");
}

void AddNumericPathFlag(CLI::App& app, NumericPath* path) {
  std::vector<std::string> names;
  for (const NumericPath known : kCpuPaths) names.push_back(NumericPathName(known));
  app.add_option_function<std::string>(
         "--numeric-path",
         [path](const std::string& name) {
           for (const NumericPath known : kCpuPaths) {
             if (name == NumericPathName(known)) *path = known;
           }
         },
         "the arithmetic to use (default: the fastest that this CPU has)")
      ->check(CLI::IsMember(names));
  app.add_option_function<std::string>(
         "--backend",
         [path](const std::string& name) {
           if (name == "cuda") *path = NumericPath::kBf16Tensor;
         },
         "where compute runs, and KV pages lie; cuda: on one device")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->excludes(app.get_option("--numeric-path"))
      ->default_str("cpu");
}

void AddAttentionBackendFlag(CLI::App& app, AttentionBackend* backend) {
  static const std::map<std::string, AttentionBackend> kBackends = {
      {"auto", AttentionBackend::kAuto},
      {"wgmma", AttentionBackend::kWgmma},
      {"mma", AttentionBackend::kMma}};
  app.add_option_function<std::string>(
         "--attention-backend",
         [backend](const std::string& name) { *backend = kBackends.at(name); },
         "with --backend cuda, what multiplies in attention: wgmma, for compute capability 9.0 as "
         "of an H100; mma, for all; auto: wgmma where it can be")
      ->check(CLI::IsMember(kBackends))
      ->default_str("auto");
}

void AddModelConfigFlags(CLI::App& app, ConfigOptions* options) {
  app.add_flag("--disable-sliding-window", options->within_window,
               "where a model's attention has a sliding window, which kvcake does not compute, let "
               "its context end with the window; else the model is refused");
  app.add_option("--hf-overrides", options->overrides,
                 "a JSON object whose members stand for those of the model's config.json, e.g. "
                 "'{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                 "\"original_max_position_embeddings\": 32768}}'");
}

void AddModelFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option("--model,model", options->model_dir,
                 "Hugging Face model directory: config.json, tokenizer.json, *.safetensors")
      ->required();
  AddSize(app, "--ram-capacity", &options->ram_capacity_bytes,
          "memory for KV pages, in use and cached; with --backend cuda, whose pages are the "
          "device's, host memory for chunks behind them (0: none)");
  AddChunkTokensFlag(app, &options->chunk_tokens,
                     "tokens of a chunk: what is hashed, kept and loaded as one; a multiple of 16");
  app.add_option("--threads", options->threads,
                 "compute threads (default: every core the process may use)")
      ->check(CLI::Range(1, 1024));
  app.add_option_function<std::string>(
         "--cpu-list",
         [options](const std::string& list) { options->cpus = ParseCpuList(list).value(); },
         "pin the compute threads to these CPUs, e.g. 0-3,7 (default: not pinned)")
      ->check(CLI::Validator(
          [](std::string& list) {
            const auto cpus = ParseCpuList(list);
            return cpus ? std::string() : cpus.error().message;
          },
          "CPUS"));
  AddWeightsFlag(app, &options->weights);
  AddModelConfigFlags(app, &options->config);
  AddNumericPathFlag(app, &options->path);
  AddCudaFlags(app, options);
}

void AddRuntimeFlags(CLI::App& app, RuntimeOptions* options, const char* slice_tokens) {
  AddModelFlags(app, options);
  app.add_option(slice_tokens, options->slice_tokens,
                 "most tokens that one step computes; at least a chunk")
      ->default_str(kDefaultSliceTokens);
  AddStoreFlags(app, options);
  app.add_flag("--durable", options->durable,
               "let chunks that are kept survive a power cut (slower); without it one may be lost, "
               "but never loaded wrong")
      ->needs(app.get_option("--store"));
}

void AddScheduleFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option_function<std::string>(
         "--schedule", [options](const auto& name) { options->schedule = *ScheduleFromName(name); },
         "which prompts a step computes first: adaptive: those stored nowhere, the shortest first, "
         "with aging, as restorations go on by loading; fcfs: in order of arrival")
      ->check(CLI::IsMember({"adaptive", "fcfs"}))
      ->default_str(std::string(ScheduleName(options->schedule)));
  AddSeconds(app, "--restore-wait-max", &options->restore_wait_max,
             "with --schedule adaptive: after this long without any progress a prompt gets a slice "
             "before all others");
  AddSeconds(app, "--pass-over-max", &options->pass_over_max,
             "for so long a request that waits for KV pages is passed over by later ones for which "
             "there are enough");
  app.add_option_function<std::string>(
         "--load-order",
         [options](const auto& name) { options->load_order = *LoadOrderFromName(name); },
         "whose chunks are read first: srpt: of the prompt with the least left, with aging; fifo: "
         "in order of arrival; fair: in turn")
      ->check(CLI::IsMember({"srpt", "fifo", "fair"}))
      ->default_str(std::string(LoadOrderName(options->load_order)));
}

std::string NamesOf(const std::vector<const CLI::App*>& commands) {
  const auto name = [](const CLI::App* command) { return command->get_name(); };
  return CLI::detail::join(commands, name, ", ");
}

int Fatal(const Error& error) {
  // Not by fmt::print, which throws where stderr cannot be written. Names of files, and what
  // servers say, may be of any bytes.
  std::fputs(fmt::format("kvcake: {}\n", Printable(error.message)).c_str(), stderr);
  return 1;
}

void AddPolicyFlag(CLI::App& app, std::string* policy) {
  app.add_option("--policy", *policy,
                 "how a prompt's KV cache is restored: cake computes and loads at once, compute "
                 "and load do only the one (load computes what is kept nowhere)")
      ->check(CLI::IsMember({"cake", "compute", "load"}))
      ->capture_default_str();
}

void AddSamplingFlags(CLI::App& app, SamplingParams* sampling) {
  app.add_option("--temperature", sampling->temperature, "0: always the likeliest token")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--top-k", sampling->top_k, "sample among the K likeliest; 0: all")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--top-p", sampling->top_p,
                 "sample among the likeliest that together have this probability")
      ->check(Between(1e-9, 1.0))
      ->capture_default_str();
  app.add_option("--seed", sampling->seed,
                 "of the sampling; the same seed (also the default) gives the same answer")
      ->check(Natural())
      ->capture_default_str();
}

void AddChatTemplateFlags(CLI::App& app, ChatTemplateOptions* options) {
  app.add_option("--chat-template", options->file,
                 "a file with a chat template, instead of the model's own");
  app.add_option("--chat-template-content-format", options->content_format,
                 "string: parts of a message are joined; openai: the template gets them as they "
                 "are; auto: as the template takes them")
      ->check(CLI::IsMember({"auto", "string", "openai"}))
      ->capture_default_str();
  app.add_option("--chat-template-steps", options->limits.steps,
                 "most steps that a template may take to write one chat")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--chat-template-output", options->limits.output_bytes,
                 "most bytes that it may write")
      ->transform(SizeValue())
      ->default_str("64MiB");
}

}  // namespace kvcake
