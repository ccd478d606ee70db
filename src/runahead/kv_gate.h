// The KV cache of one prompt, exchanged between ranks while the layers of a forward pass go on.
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

namespace kvcake {

// How one piece of the prompt's KV cache reaches and leaves a rank, at every layer.
struct KvRoute {
  KvPiece piece;
  int from = -1;   // -1: this rank computes it
  int to = -1;     // the rank that it is sent to as soon as it is here; -1: none
  int number = 0;  // of the piece, the same on every rank
};

// When a layer's KV cache came and went. Epoch where nothing did.
struct LayerExchange {
  TimePoint kv{};      // the rank's own was there
  TimePoint prefix{};  // all that its attention needs was
  TimePoint sent{};    // all that goes on had
};

// Tags below are for what is said about a prompt (runahead/chain.h).
inline constexpr int kKvTags = 16;

// Belongs to one forward pass. What comes is put into the pages where attention reads it, and sent
// on at once; whole chunks without a copy. A message is one layer of one piece.
class KvGate : public LayerGate {
 public:
  // Posts every receive. Borrows all: `pages`, which cover the routes' chunks, stay drawn until
  // Finish has returned, or `comm` is closed. A wait in which nothing comes or goes for `timeout`
  // fails.
  KvGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
         std::vector<KvRoute> routes, Seconds timeout, const Clock& clock = Clock::Real());
  // Closes the Comm if transfers are left: the prompt has failed.
  ~KvGate() override;
  KvGate(const KvGate&) = delete;
  KvGate& operator=(const KvGate&) = delete;

  Status AfterKv(int layer) override;
  Status BeforeAttention(int layer) override;
  // Returns when everything that was to be sent has been, and what was to come has come.
  [[nodiscard]] Status Finish();

  Seconds waited() const { return waited_; }  // in BeforeAttention and Finish
  uint64_t sent_bytes() const;
  std::vector<LayerExchange> layers() const;

 private:
  int Tag(int layer, const KvRoute& route) const;
  std::span<std::byte> BytesOf(int layer, size_t route);
  void OnReceived(int layer, size_t route, Status status);
  void SendOn(int layer, size_t route);
  void EndTransferLocked(const Status& status);
  template <typename Ready>
  Status WaitFor(Ready&& ready, const char* what);

  // Constant after construction.
  Comm& comm_;
  const PagePool& pool_;
  const std::span<const PageId> pages_;
  const std::vector<KvRoute> routes_;
  const Seconds timeout_;
  const Clock& clock_;
  // By route; of parts of chunks that travel, all layers.
  std::vector<std::vector<std::byte>> staging_;

  // Owned by the thread of the forward pass.
  Seconds waited_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::vector<size_t> missing_;  // pieces of each layer that have not come
  size_t transfers_ = 0;         // that have not ended
  uint64_t progress_ = 0;        // transfers that have
  uint64_t sent_bytes_ = 0;
  std::vector<LayerExchange> layers_;
  std::optional<Error> error_;
};

}  // namespace kvcake
