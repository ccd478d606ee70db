// What a fleet is asked: questions about documents, the same for every arrangement of servers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/workload.h"
#include "model/tokenizer.h"

namespace kvcake::bench {

struct FleetWorkloadOptions {
  uint64_t seed = 0;
  int documents = 0;
  int document_tokens = 0;
  int questions = 0;       // about each document
  int more_questions = 0;  // about each, of the part that loses a server
  int answer_tokens = 0;
};

// All are about the same documents, and no question is in two of them. Nobody waits for a moment:
// whoever asks takes the next question when the one before is answered.
struct FleetWorkload {
  Workload traffic;  // in an order that the seed decides
  Workload joining;  // one more question about each document
  Workload killing;
};
Result<FleetWorkload> MakeFleetWorkload(const FleetWorkloadOptions& options);

using PromptIds = std::vector<int32_t>;

// Prompts of a text, as a server's tokenizer has them.
class FleetPrompts {
 public:
  // Reads the text that prompts are made of, and the model's tokenizer.
  static Result<FleetPrompts> Open(const std::string& text, const std::string& model_dir);

  // How long tokens of the text are, for TrafficOptions.
  double characters_per_token() const { return characters_per_token_; }
  // The prompts that RunTraffic sends for requests, in their order.
  Result<std::vector<PromptIds>> Of(const Workload& workload) const;

 private:
  FleetPrompts(TextSource source, Tokenizer tokenizer)
      : source_(std::move(source)), tokenizer_(std::move(tokenizer)) {}

  TextSource source_;
  Tokenizer tokenizer_;
  double characters_per_token_ = 0;
};

// Full chunks of prompts. Chunks are the same where all tokens up to their ends are.
struct ChunkCounts {
  int64_t distinct = 0;
  int64_t shared = 0;  // of these, chunks of two prompts or more: the documents'
};
ChunkCounts CountChunks(std::span<const PromptIds> prompts, int chunk_tokens);

// The share of the tokens of `asked` that are in chunks which `before` had, too: what can be
// cached.
double KnownShare(std::span<const PromptIds> asked, std::span<const PromptIds> before,
                  int chunk_tokens);

}  // namespace kvcake::bench
