#include "bench/fleet_workload.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bench/prompt_writer.h"
#include "kv/chunk_key.h"

namespace kvcake::bench {
namespace {

constexpr int kSampleTextTokens = 4096;
constexpr double kSampleCharacters = 4;

Result<Workload> Questions(const FleetWorkloadOptions& options, int count, const char* what) {
  WorkloadOptions asked;
  asked.seed = options.seed;
  asked.output_tokens = options.answer_tokens;
  asked.num_documents = options.documents;
  asked.document_tokens = options.document_tokens;
  asked.repeat_count = count;
  ASSIGN_OR_RETURN(Workload workload, MakeWorkload(asked));
  for (WorkloadRequest& request : workload.requests) {
    std::string& question = request.text.back().label;
    question = what + question;
  }
  return workload;
}

}  // namespace

Result<FleetWorkload> MakeFleetWorkload(const FleetWorkloadOptions& options) {
  FleetWorkload workload;
  ASSIGN_OR_RETURN(workload.traffic, Questions(options, options.questions, ""));
  ASSIGN_OR_RETURN(workload.joining, Questions(options, 1, "New server: "));
  ASSIGN_OR_RETURN(workload.killing, Questions(options, options.more_questions, "Lost server: "));
  return workload;
}

Result<FleetPrompts> FleetPrompts::Open(const std::string& text, const std::string& model_dir) {
  ASSIGN_OR_RETURN(TextSource source, TextSource::Read(text));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(model_dir));
  FleetPrompts prompts(std::move(source), std::move(tokenizer));
  // Another seed than any workload's: it is another text of the same kind.
  const std::string sample =
      prompts.source_.Cut({"Sample", kSampleTextTokens}, kSampleCharacters, ~uint64_t{0});
  ASSIGN_OR_RETURN(const PromptIds ids, prompts.tokenizer_.Encode(sample));
  prompts.characters_per_token_ =
      static_cast<double>(sample.size()) / static_cast<double>(ids.size());
  return prompts;
}

Result<std::vector<PromptIds>> FleetPrompts::Of(const Workload& workload) const {
  const PromptWriter writer(source_, workload,
                            {.model = {},
                             .chat = false,
                             .ignore_eos = true,
                             .extra = {},
                             .characters_per_token = characters_per_token_});
  std::vector<PromptIds> prompts;
  for (const WorkloadRequest& request : workload.requests) {
    const std::array<Turn, 1> turns = {{{.request = &request, .answer = nullptr}}};
    const auto body = nlohmann::json::parse(writer.Body(turns));
    ASSIGN_OR_RETURN(PromptIds ids,
                     tokenizer_.Encode(body.at("prompt").get_ref<const std::string&>()));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

ChunkCounts CountChunks(std::span<const PromptIds> prompts, int chunk_tokens) {
  std::unordered_map<ChunkKey, int> times;
  for (const PromptIds& prompt : prompts) {
    for (const ChunkKey& chunk : ChunkKeys({}, prompt, chunk_tokens)) ++times[chunk];
  }
  ChunkCounts counts;
  for (const auto& [chunk, count] : times) {
    ++counts.distinct;
    if (count > 1) ++counts.shared;
  }
  return counts;
}

double KnownShare(std::span<const PromptIds> asked, std::span<const PromptIds> before,
                  int chunk_tokens) {
  std::unordered_set<ChunkKey> had;
  for (const PromptIds& prompt : before) {
    for (const ChunkKey& chunk : ChunkKeys({}, prompt, chunk_tokens)) had.insert(chunk);
  }
  size_t known = 0, all = 0;
  for (const PromptIds& prompt : asked) {
    all += prompt.size();
    for (const ChunkKey& chunk : ChunkKeys({}, prompt, chunk_tokens)) {
      if (had.contains(chunk)) known += chunk_tokens;
    }
  }
  return all == 0 ? 0 : static_cast<double>(known) / static_cast<double>(all);
}

}  // namespace kvcake::bench
