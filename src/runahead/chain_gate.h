// KV-Runahead's chain (section 3 of the paper) between the layers of a forward pass: the KV cache
// of the tokens before a rank's own comes from the rank before it, and goes on, with its own, to
// the rank after it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "comm/comm.h"
#include "kv/layer_gate.h"
#include "kv/page_pool.h"
#include "runahead/kv_pieces.h"
#include "runahead/partition.h"

namespace kvcake {

// Tags below are for what is said about a prompt (runahead/chain.h).
inline constexpr int kChainTags = 16;

// Where a rank stands in the chain of one prompt.
struct ChainPlace {
  Partition partition;  // of the tokens after `origin`
  int origin = 0;       // tokens whose KV every rank has already; whole chunks
  int first_rank = 0;   // of the Comm; the others follow it
  int place = 0;        // of this rank: it computes part `place`

  int begin() const { return origin + partition.begin(place); }
  int end() const { return origin + partition.bounds[place + 1]; }
  bool last() const { return place + 1 == partition.ranks(); }
};

// Belongs to one slice: the tokens [place.begin(), place.end()), all in one forward pass.
//
// What comes is put into the pages where attention reads it, and sent on at once; whole chunks
// without a copy. Messages are one of each layer and piece (runahead/kv_pieces.h), with the same
// tags on every rank.
class ChainGate : public LayerGate {
 public:
  // Borrows all. `pages` cover [0, place.end()) and stay drawn until Finish has returned, or `comm`
  // is closed. A wait in which nothing comes for `timeout` fails.
  ChainGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
            const ChainPlace& place, Seconds timeout, const Clock& clock = Clock::Real());
  // Closes the Comm if transfers are left: the chain has failed.
  ~ChainGate() override;
  ChainGate(const ChainGate&) = delete;
  ChainGate& operator=(const ChainGate&) = delete;

  Status AfterKv(int layer) override;
  Status BeforeAttention(int layer) override;
  // Returns when everything that was to be sent has been, and what was to come has come.
  [[nodiscard]] Status Finish();

  // Spent in BeforeAttention and Finish.
  Seconds waited() const { return waited_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  int Tag(int layer, size_t piece) const;
  std::span<std::byte> BytesOf(int layer, size_t piece);
  void PostReceives();
  void OnReceived(int layer, size_t piece, Status status);
  void SendOn(int layer, size_t piece);
  void OnSent(Status status);
  void FailLocked(Error error);
  template <typename Ready>
  Status WaitFor(Ready&& ready, const char* what);

  // Constant after construction.
  Comm& comm_;
  const PagePool& pool_;
  const std::span<const PageId> pages_;
  const ChainPlace place_;
  const Seconds timeout_;
  const Clock& clock_;
  // What comes, then what is this rank's own.
  std::vector<KvPiece> pieces_;
  size_t pieces_before_ = 0;
  // By piece; of parts of chunks only.
  std::vector<std::vector<std::byte>> staging_;

  // Owned by the thread of the forward pass.
  Seconds waited_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::vector<size_t> missing_;  // pieces of each layer that have not come
  size_t transfers_ = 0;         // that have not ended
  uint64_t progress_ = 0;        // transfers that have
  uint64_t sent_bytes_ = 0;
  std::optional<Error> error_;
};

}  // namespace kvcake
