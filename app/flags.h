// Flag values as people write them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime.h"

namespace kvcake {

struct ChatTemplateOptions;

// "20GiB", "512MB" (powers of 1024 either way, as memory is sold), or plain bytes.
CLI::AsSizeValue SizeValue();
// A second: "200Mbit", "10Gbps" (decimal bits), "25MB" (decimal), or plain bytes; gives bytes.
CLI::AsNumberWithUnit RateValue();
// "10ms", "250us", "1s", "5min", "12h", "7d"; gives seconds.
CLI::AsNumberWithUnit DurationValue();
// As CLI::Range, but NaN, which that takes, is outside.
CLI::Validator Between(double least, double most);
// As CLI::PositiveNumber and CLI::NonNegativeNumber, which say so by the numbers of 309 digits that
// they allow.
CLI::Validator Positive();
CLI::Validator NotNegative();
// For uint64_t, of which CLI11 makes 2^64 - 1 where -1 or 1e30 in digits is given.
CLI::Validator Natural();

// --chunk-tokens: so many as a chunk can have.
void AddChunkTokensFlag(CLI::App& app, int* tokens, const char* help);
// A flag of a time from a millisecond on.
void AddSeconds(CLI::App& app, const char* name, Seconds* value, const char* help);
// A flag of bytes.
void AddSize(CLI::App& app, const char* name, uint64_t* value, const char* help);

// DefaultSliceTokens, for people.
inline constexpr char kDefaultSliceTokens[] = "512, with --backend cuda 2048";

// Knows "bf16" and "int8".
WeightFormat WeightFormatFromName(const std::string& name);
// --weights bf16|int8.
void AddWeightsFlag(CLI::App& app, WeightFormat* weights);
// --numeric-path, and --backend, which both set it.
void AddNumericPathFlag(CLI::App& app, NumericPath* path);
// --attention-backend.
void AddAttentionBackendFlag(CLI::App& app, AttentionBackend* backend);
// --disable-sliding-window and --hf-overrides.
void AddModelConfigFlags(CLI::App& app, ConfigOptions* options);
// The flags that every command which runs a model understands.
void AddModelFlags(CLI::App& app, RuntimeOptions* options);
// Those, and the ones of commands that answer prompts and keep chunks. `slice_tokens`: the names of
// the flag that says how many tokens a step computes.
void AddRuntimeFlags(CLI::App& app, RuntimeOptions* options,
                     const char* slice_tokens = "--slice-tokens");
// --store, and those that say how stores are used (store_flags.cc).
void AddStoreFlags(CLI::App& app, RuntimeOptions* options);
// --schedule, --restore-wait-max, --pass-over-max and --load-order.
void AddScheduleFlags(CLI::App& app, RuntimeOptions* options);
// --policy; a name that PolicyFromName knows.
void AddPolicyFlag(CLI::App& app, std::string* policy);
// --temperature, --top-k, --top-p, --seed.
void AddSamplingFlags(CLI::App& app, SamplingParams* sampling);
// --chat-template and its content format and limits.
void AddChatTemplateFlags(CLI::App& app, ChatTemplateOptions* options);

// Each adds a subcommand that sets *exit_code when it runs.
void AddRunCommand(CLI::App& app, int* exit_code);
void AddChatCommand(CLI::App& app, int* exit_code);
void AddServeCommand(CLI::App& app, int* exit_code);
void AddWorkerCommand(CLI::App& app, int* exit_code);
void AddPerplexityCommand(CLI::App& app, int* exit_code);
void AddTokenizeCommands(CLI::App& app, int* exit_code);  // tokenize and detokenize
void AddBenchCommand(CLI::App& app, int* exit_code);
// prefill, slices, decode, startup, load and codecs.
void AddBenchSpeedCommands(CLI::App& bench, int* exit_code);
void AddBenchServeCommand(CLI::App& bench, int* exit_code);
void AddBenchFleetCommand(CLI::App& bench, int* exit_code);
void AddBenchRunaheadCommand(CLI::App& bench, int* exit_code);
void AddBenchRunaheadPapersCommand(CLI::App& bench, int* exit_code);
void AddModelCommand(CLI::App& app, int* exit_code);
void AddCodecCommand(CLI::App& app, int* exit_code);
void AddStoreCommand(CLI::App& app, int* exit_code);
void AddStoreWarmCommand(CLI::App& store, int* exit_code);

// "run, chat, serve".
std::string NamesOf(const std::vector<const CLI::App*>& commands);

// Prints what failed and what to do to stderr; returns exit code 1.
int Fatal(const Error& error);

// Has the subcommand run `body` on its flags; an error of it is fatal.
template <typename Flags>
void RunWhenChosen(CLI::App* command, Status (*body)(const Flags&), std::shared_ptr<Flags> flags,
                   int* exit_code) {
  command->callback([=] {
    if (const Status status = body(*flags); !status) *exit_code = Fatal(status.error());
  });
}

}  // namespace kvcake
