// A request being answered: its tokens, its pages and how far it has come. Touched by the engine
// thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "kv/page_pool.h"

namespace kvcake {

struct Sequence {
  // waiting -> restoring -> prefilling -> decoding -> finished; when pages run out, back to
  // waiting. A sequence is restoring while chunks of its first prefill_tokens are missing, and
  // prefilling until the rest of these, at least the last, is computed and the next token sampled.
  enum class State { kWaiting, kRestoring, kPrefilling, kDecoding, kFinished };

  SequenceId id = 0;
  Request request;
  State state = State::kWaiting;
  TimePoint submitted;
  TimePoint opened;      // when its (last) restoration began
  TimePoint progressed;  // while it prefills: when it came any further
  TimePoint first_token;
  // What it may hold; nothing while it waits: pages of the first of `keys`, which others may be
  // promised as well, and of its own.
  size_t keys_promised = 0;
  uint64_t pages_promised = 0;
  std::optional<TimePoint> passed_over;  // since when others are admitted before it
  std::optional<TimePoint> unservable;   // since when it could not even run alone
  std::optional<TimePoint> short_since;  // while it runs: since when it goes without a page
  uint64_t refused_at = 0;               // Admission's room when it last did not fit
  ChunkKey root;                         // the parent of keys[0]
  int prefill_tokens = 0;  // the prompt, and what was generated before it was preempted

  std::vector<int32_t> tokens;  // prompt, then what was generated
  int kv_tokens = 0;            // tokens whose KV is in `table`
  std::vector<ChunkKey> keys;   // of the full chunks of `tokens`
  size_t chunks_offered = 0;    // the first of them, to the stores; before it was preempted, too
  std::shared_ptr<Restoration> restoration;
  PageTable table;       // empty while restoring: the restoration holds the pages
  PageHandle tail_page;  // while restoring: the prompt's last, partly filled page
  // The steps that computed the prompt's last part, and what they took when nothing shared them.
  std::vector<TimelineEntry> tail_slices;
  std::optional<Seconds> tail;
  std::optional<RankJob> chain;  // several ranks prefill it, after what is restored first
  bool divided = false;          // so it began, wherever it ended: `keys` are those before that
  NumericPath numeric_path = NumericPath::kUnknown;  // of its pages; unknown when mixed
  // Ranks that have not proved who they are have made some of its KV cache: none of that, or of
  // what is computed after it, is published.
  bool unproven = false;
  Completion completion;

  // restoring -> prefilling, with the pages of a restoration that is done. What follows them is
  // computed on `path`.
  void EndRestoration(int chunk_tokens, NumericPath path, TimePoint now);
  // Some of its pages are another numeric path's: what is computed after them is right to rounding
  // only, and a header cannot say so: it is used, but not kept.
  void MixPaths();
  // Says in the completion how the prompt was restored, up to the first token or to its end before
  // that.
  void ReportRestoration();
  // Gives every page back, and the claims of a restoration under way.
  void ReleasePages();
  // -> waiting, its pages released: what was computed is forgotten but for the tokens, whose keys
  // are made.
  void Preempt(int chunk_tokens);
  // `keys` of all that is known of its tokens; none of a prompt that is scored, which is computed.
  void MakeKeys(int chunk_tokens);

  uint64_t promised() const { return keys_promised + pages_promised; }
  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  // Logits of all of its tokens are wanted, not only of the last.
  bool scores_prompt() const { return request.prompt_logprobs && generated() == 0; }
  // No end token may be chosen yet.
  bool must_go_on() const { return generated() < request.min_tokens; }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens(); }
};

}  // namespace kvcake
