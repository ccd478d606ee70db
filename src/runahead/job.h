// What several ranks do for one prompt, and how its KV cache goes between them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "runahead/kv_gate.h"
#include "runahead/partition.h"

namespace kvcake {

enum class RankMethod {
  // KV-Runahead's chain: a rank has the KV cache of the tokens before its own from the rank before
  // it, and passes it on with its own.
  kChain,
  // The baselines: every rank sends its own to all others and waits for all of theirs, at every
  // layer. kTsp: an even split. kZigzag: 2p parts; each rank has an early and a late one.
  kTsp,
  kZigzag,
};

// What the last `places` ranks of a Comm do together; the very last leads: its part ends with the
// prompt's last token.
struct RankJob {
  RankMethod method = RankMethod::kChain;
  std::string salt = {};             // of the chunks' root (SaltedRoot)
  std::vector<int32_t> tokens = {};  // of the prompt up to the end of the partition
  int origin = 0;                    // tokens that every rank restores for itself; whole chunks
  Partition partition = {};          // of the others; a part for each place, of kZigzag two
  // false: nothing is sent, as if all came at once: what compute alone takes. The KV cache that
  // this leaves is nobody's.
  bool exchange = true;
  // The paper's attention: full rectangles, then a mask (Slice::dense_keys).
  bool dense = false;

  int places() const {
    return method == RankMethod::kZigzag ? partition.ranks() / 2 : partition.ranks();
  }
};

struct TokenRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};

// What the rank at this place computes, ascending, each in one slice.
std::vector<TokenRange> RangesOf(const RankJob& job, int place);
// These slices, with the last one's logits where the place is the last. `job` and `pages` outlive
// them.
std::vector<Slice> SlicesOf(const RankJob& job, int place, std::span<const PageId> pages,
                            LayerGate* gate);
// The routes of its gate; `first_rank` is that of place 0. In the order in which they travel at a
// layer: those that go on as the next rank expects them.
std::vector<KvRoute> RoutesOf(const RankJob& job, int place, int first_rank, int chunk_tokens);
// The end of what it needs pages for.
int PagedTokens(const RankJob& job, int place);

}  // namespace kvcake
