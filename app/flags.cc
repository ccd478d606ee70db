#include "app/flags.h"

#include <fmt/core.h>

#include <map>

namespace kvcake {

CLI::AsSizeValue SizeValue() { return CLI::AsSizeValue(/*kb_is_1000=*/false); }

CLI::AsNumberWithUnit RateValue() {
  std::map<std::string, double> units = {
      {"bit", 1.0 / 8},  {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"kbps", 1e3 / 8},
      {"Mbps", 1e6 / 8}, {"Gbps", 1e9 / 8}, {"KB", 1e3},       {"MB", 1e6},       {"GB", 1e9},
      {"KiB", 1 << 10},  {"MiB", 1 << 20},  {"GiB", 1 << 30}};
  // By case: "Mb" could be either, and is refused.
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE, "RATE");
}

CLI::AsNumberWithUnit DurationValue() {
  std::map<std::string, double> units = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_INSENSITIVE, "TIME");
}

CLI::AsNumberWithUnit AgeValue() {
  std::map<std::string, double> units = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_INSENSITIVE, "TIME");
}

namespace {

void AddSize(CLI::App& app, const char* name, uint64_t* value, const char* help) {
  app.add_option(name, *value, help)
      ->transform(SizeValue())
      ->default_str(std::to_string(*value >> 30) + "GiB");
}

}  // namespace

void AddModelFlags(CLI::App& app, RuntimeOptions* options) {
  app.add_option("--model", options->model_dir,
                 "Hugging Face model directory: config.json, tokenizer.json, *.safetensors")
      ->required();
  AddSize(app, "--ram-capacity", &options->ram_capacity_bytes,
          "memory for KV pages, in use and cached");
  app.add_option("--chunk-tokens", options->chunk_tokens,
                 "tokens of a chunk: what is hashed, kept and loaded as one; a multiple of 16")
      ->capture_default_str();
  app.add_option("--threads", options->threads,
                 "compute threads (default: every core the process may use)")
      ->check(CLI::Range(1, 1024));
}

void AddRuntimeFlags(CLI::App& app, RuntimeOptions* options) {
  AddModelFlags(app, options);
  app.add_option("--slice-tokens", options->slice_tokens,
                 "most tokens that one step computes; at least a chunk")
      ->capture_default_str();
  app.add_option("--store", options->store_dir,
                 "directory that keeps KV chunks between runs and processes; without it nothing is "
                 "kept or loaded");
  app.add_option_function<double>(
         "--load-rate", [options](double rate) { options->load_rate_bytes_per_s = rate; },
         "let loads pass a link of this rate, e.g. 200Mbit, 10Gbit or 25MB (a second) (default: as "
         "fast as "
         "the disk)")
      ->transform(RateValue())
      ->check(CLI::PositiveNumber);
  app.add_option_function<double>(
         "--load-latency", [options](double s) { options->load_latency = Seconds(s); },
         "added to each read on that link, e.g. 1ms")
      ->transform(DurationValue())
      ->check(CLI::NonNegativeNumber);
  AddSize(app, "--disk-capacity", &options->disk_capacity_bytes,
          "most bytes of --store; the chunks used longest ago go first");
  app.add_flag("--durable", options->durable,
               "let chunks that are kept survive a power cut (slower); without it one may be lost, "
               "but never loaded wrong");
}

int Fatal(const Error& error) {
  fmt::print(stderr, "kvcake: {}\n", error.message);
  return 1;
}

}  // namespace kvcake
