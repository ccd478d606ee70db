// What goes into the engine and what comes out of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cake/report.h"
#include "cake/restorer.h"
#include "engine/sampler.h"
#include "engine/token_score.h"
#include "runahead/chain.h"

namespace kvcake {

using SequenceId = uint64_t;

struct Completion;

// One new token. Delivered on the engine thread, in order.
struct TokenEvent {
  int32_t token = 0;
  float logprob = 0;                       // 0 unless the request asked for it
  std::span<const TokenLogprob> top = {};  // the request's top_logprobs; valid during the call
  // With the first: Completion::prompt_scores; likewise. May be moved from.
  std::span<TokenScore> prompt = {};
  // With the first: what came of the prompt; valid during the call.
  const Completion* begun = nullptr;
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  // 0: only the prompt is of interest, which may fill the context. One token is chosen all the
  // same, and has no page: nothing is computed of it.
  int max_tokens = 16;
  // Fewer will do where there are not, and never will be, the pages for so many.
  bool max_tokens_yields = false;
  int min_tokens = 0;  // the answer has so many before one of end_tokens may be chosen
  SamplingParams sampling = {};
  std::vector<int32_t> end_tokens = {};  // generation stops after any of these
  bool logprobs = false;
  int top_logprobs = 0;  // also of so many of the likeliest; with `logprobs`
  // Scores the prompt's tokens, too; with `logprobs`. All of them are computed then, nothing is
  // restored.
  bool prompt_logprobs = false;
  std::string salt = {};  // joins the chunks' root: what differs in it shares no KV
  // Whose it is: tenants take turns in being admitted, and its chunks count against their quotas.
  std::string tenant = {};
  bool store = true;  // keep new chunks
  Policy policy = Policy::kCake;
  // Compute chunks [0, split) and load the rest, whatever the planner thinks.
  std::optional<int> forced_split = {};
  // Returns false to stop (a stop string was found, the client has gone). May be empty.
  std::function<bool(const TokenEvent&)> on_token = {};
};

enum class FinishReason { kStop, kLength, kCancelled, kError };
const char* FinishReasonName(FinishReason reason);

// How several ranks prefilled a prompt; the last one answered.
struct ChainReport {
  RankJob job = {};  // without its tokens
  std::vector<RankReport> ranks = {};
};

struct Completion {
  std::vector<int32_t> tokens = {};
  std::vector<float> logprobs = {};            // of each token, when asked for
  std::vector<TokenScore> prompt_scores = {};  // of the prompt's tokens but the first, likewise
  FinishReason finish_reason = FinishReason::kLength;
  std::string error = {};       // kError: what was wrong, and what helps; empty: the log says so
  double queue_s = 0;           // from Submit to admission
  double restore_s = 0;         // from there until the prompt's stored part was resident
  double ttft_s = 0;            // from Submit to the first token
  double decode_s = 0;          // from the first token to the last
  double steps_s = 0;           // from an EngineLoop: of its steps, from submission to the end
  int preemptions = 0;          // for want of pages; each was followed by a restoration
  int preempted_in_prompt = 0;  // of these, before the first token
  RestoreReport report = {};    // of the prompt's restoration
  std::optional<ChainReport> chain = {};
};

}  // namespace kvcake
