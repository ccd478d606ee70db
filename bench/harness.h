// What the benches share: models to measure, one measured run, medians, results as JSON.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime.h"

namespace kvcake::bench {

// Where benches keep synthetic models and stores between runs: $XDG_CACHE_HOME/kvcake or
// ~/.cache/kvcake.
std::string CacheDir();
// What a bench is to measure: the one model of `dir`, or where it is empty all of `archs`.
std::vector<std::string> ModelNames(const std::string& dir, const std::vector<std::string>& archs);
// The directory of a model with random weights of this shape; written on first use.
Result<std::string> SynthModelDir(const std::string& arch);

// Cake last: it is compared with the others.
constexpr std::array kPolicies = {Policy::kCompute, Policy::kLoad, Policy::kCake};
constexpr int kAnswerTokens = 8;  // compared between the policies

double Median(std::vector<double> values);  // at least one value
// The value that a share of `q` does not exceed; of at least one value.
double Quantile(std::vector<double> values, double q);
// "median (min - max)" of at least one value, with this many decimals.
std::string Spread(const std::vector<double>& values, int decimals);

// The model directory of `dir`, or of random weights in the shape of `arch` where it is empty.
Result<std::string> ModelDirOf(const std::string& dir, const std::string& arch);
// The same of one name: a shape, else a directory.
Result<std::string> ModelDirNamed(const std::string& name);
// kUnsupported, with what is missing, where the path's device is not here.
Status CheckDevice(NumericPath path);
// As many pages, of options->path, and nothing behind them: on CUDA what the model leaves of the
// device's memory, and no RAM tier.
void SetPageBytes(uint64_t bytes, RuntimeOptions* options);
constexpr uint64_t kSparePages = 24;  // beside a prompt's: the engine keeps some for reads
double CpuSeconds();                  // of this process so far, all threads

// The next of a sequence that follows from *state: +-0.008 to +-0.12, as bf16.
uint16_t NextSmallBf16(uint64_t* state);
// A page's worth of such elements, from the same start each time.
std::vector<uint16_t> RandomPage(const KvLayout& layout);
// Private pages of the runtime's pool, each with these contents; none: undefined. Fails when there
// are too few.
Result<PageTable> DrawPages(Runtime& runtime, int count, std::span<const uint16_t> contents = {});
// `count` ids below `vocab`, the same for the same seed.
std::vector<int32_t> RandomPrompt(int count, int vocab, uint64_t seed);

// Forgets what is in memory, once the reads that the last prompt did not wait for have come: what
// they read is kept in memory, too. Goes on without those that stall.
void EmptyMemory(Runtime& runtime);

// Answers `prompt` with nothing in memory: what is kept in the store may be loaded. The chunks it
// makes are flushed to the store if `store`. Fails when something was in memory after all.
Result<Completion> RunCold(Runtime& runtime, const std::vector<int32_t>& prompt, Policy policy,
                           int max_tokens, bool store);

// The page of each full chunk of a prompt that was answered; nothing for one that has left the
// memory since.
std::vector<std::optional<PageHandle>> PagesInMemory(Runtime& runtime,
                                                     const std::vector<int32_t>& prompt);

// Computes `prompt` with nothing in memory, and hands out PagesInMemory.
Result<std::vector<std::optional<PageHandle>>> ComputedPages(Runtime& runtime,
                                                             const std::vector<int32_t>& prompt);

// Answers `prompt` cold under each of kPolicies, in their order. Fails when they disagree.
Result<std::array<Completion, kPolicies.size()>> RunPolicies(Runtime& runtime,
                                                             const std::vector<int32_t>& prompt,
                                                             bool store);

Status WriteFile(const std::string& path, const std::string& text);
// Makes the directory of results and those above it, as the umask has it; ok when it exists.
Status MakeDir(const std::string& path);
Status WriteJson(const std::string& path, const nlohmann::json& json);

}  // namespace kvcake::bench
