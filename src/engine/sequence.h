// A request being answered: its tokens, its pages and how far it has come. Owned by the engine and
// touched by the engine thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "kv/page_pool.h"

namespace kvcake {

using SequenceId = uint64_t;

struct Sequence {
  // waiting -> restoring -> prefilling -> decoding -> finished; when pages run out, back to
  // waiting. A sequence is restoring while chunks of its first prefill_tokens are missing, and
  // prefilling until the rest of these, at least the last, is computed and the next token sampled.
  enum class State { kWaiting, kRestoring, kPrefilling, kDecoding, kFinished };

  SequenceId id = 0;
  Request request;
  State state = State::kWaiting;
  TimePoint submitted;
  TimePoint opened;  // when its (last) restoration began
  TimePoint first_token;
  uint64_t pages_promised = 0;  // that it may hold; none while it waits
  ChunkKey root;                // the parent of keys[0]
  int prefill_tokens = 0;       // the prompt, and what was generated before it was preempted

  std::vector<int32_t> tokens;  // prompt, then what was generated
  int kv_tokens = 0;            // tokens whose KV is in `table`
  std::vector<ChunkKey> keys;   // of the full chunks of `tokens`
  std::shared_ptr<Restoration> restoration;
  PageTable table;       // empty while restoring: the restoration holds the pages
  PageHandle tail_page;  // while restoring: the prompt's last, partly filled page
  // The steps that computed the prompt's last part, and what they took when nothing shared them.
  std::vector<TimelineEntry> tail_slices;
  std::optional<Seconds> tail;
  std::optional<RankJob> chain;  // several ranks prefill it, after what is restored first
  NumericPath numeric_path = NumericPath::kUnknown;  // of its pages; unknown when mixed
  Completion completion;

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  // Logits of all of its tokens are wanted, not only of the last.
  bool scores_prompt() const { return request.prompt_logprobs && generated() == 0; }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens(); }
};

}  // namespace kvcake
