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
  // restoring -> prefilling -> decoding -> finished. A sequence is restoring while chunks of its
  // prompt are missing, and prefilling until the rest of the prompt, at least its last token, is
  // computed and the first token sampled.
  enum class State { kRestoring, kPrefilling, kDecoding, kFinished };

  SequenceId id = 0;
  Request request;
  State state = State::kRestoring;
  TimePoint submitted;
  TimePoint opened;  // when its restoration began
  TimePoint first_token;
  uint64_t pages_promised = 0;  // the most it can ever hold
  ChunkKey root;                // the parent of keys[0]

  std::vector<int32_t> tokens;  // prompt, then what was generated
  int kv_tokens = 0;            // tokens whose KV is in `table`
  std::vector<ChunkKey> keys;   // of the full chunks of `tokens`
  std::shared_ptr<Restoration> restoration;
  PageTable table;       // empty while restoring: the restoration holds the pages
  PageHandle tail_page;  // while restoring: the prompt's last, partly filled page
  // The steps that computed the prompt's last part, and what they took when nothing shared them.
  std::vector<TimelineEntry> tail_slices;
  std::optional<Seconds> tail;
  NumericPath numeric_path = NumericPath::kUnknown;  // of its pages; unknown when mixed
  Completion completion;

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens(); }
};

}  // namespace kvcake
