// The KV cache of one prompt, exchanged between ranks while the layers of a forward pass go on.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "comm/comm.h"
#include "kv/layer_gate.h"
#include "kv/page_copier.h"
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

// What ranks need whose pages are a device's: what copies them, and memory of the host
// (page-locked, for CUDA) that all pieces pass through. Both stay while a gate does.
struct KvStaging {
  PageCopier* copier = nullptr;  // nullptr: pages are the host's memory
  std::span<std::byte> memory = {};
};

// Belongs to one forward pass. What comes is put into the pages where attention reads it, and sent
// on at once; whole chunks of pages in the host's memory without a copy. A message is one layer of
// one piece.
class KvGate : public LayerGate {
 public:
  // Posts the receives. Borrows all: `pages`, which cover the routes' chunks, stay drawn until
  // Finish has returned well, or the gate is gone. A wait in which nothing comes or goes for
  // `timeout` fails. kResourceExhausted: the staging is too small for any piece. Routes are in the
  // order of RoutesOf; all that go on go to one rank.
  static Result<std::unique_ptr<KvGate>> Create(Comm& comm, const PagePool& pool,
                                                std::span<const PageId> pages,
                                                std::vector<KvRoute> routes, Seconds timeout,
                                                const KvStaging& staging = {},
                                                const Clock& clock = Clock::Real());
  // Closes the Comm if transfers are left, with what has made the prompt fail if the gate knows it.
  ~KvGate() override;
  KvGate(const KvGate&) = delete;
  KvGate& operator=(const KvGate&) = delete;

  Status AfterKv(int layer) override;
  Status BeforeAttention(int layer) override;
  // Returns when everything that was to be sent has been, and what was to come has come.
  [[nodiscard]] Status Finish();

  // So far, while there was nothing to compute.
  Seconds waited() const { return waited_; }
  uint64_t sent_bytes() const;
  std::vector<LayerExchange> layers() const;

 private:
  // Room for pieces that do not come and go in their pages. Each layer's take it in the routes'
  // order, layer after layer, and begin again at the first slot. A device's pieces also leave in
  // this order, which is that in which the next rank has room for them: the first message that has
  // not come yet is never behind one that must wait for it.
  struct Slots {
    std::span<std::byte> memory = {};  // slot_bytes_ each
    size_t count = 0;
    size_t pieces = 0;  // of a layer
  };
  // A piece's place in the order of its slots.
  static constexpr int kInPage = -1;

  KvGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
         std::vector<KvRoute> routes, Seconds timeout, PageCopier* copier, const Clock& clock);
  Status MakeSlots(std::span<std::byte> memory);
  Status Share(std::span<std::byte> memory, Slots* slots) const;
  void PostReceives();
  void Receive(int layer, size_t route) EXCLUDES(mutex_);
  int Tag(int layer, const KvRoute& route) const;
  const Slots& SlotsOf(size_t route) const { return routes_[route].from >= 0 ? coming_ : going_; }
  Slots& SlotsOf(size_t route) { return routes_[route].from >= 0 ? coming_ : going_; }
  size_t UseOf(int layer, size_t route) const;
  int& UsersOf(int layer, size_t route) REQUIRES(mutex_);
  std::span<std::byte> BytesOf(int layer, size_t route);
  void OnReceived(int layer, size_t route, const Status& status) EXCLUDES(mutex_);
  void OnUnpacked(int layer, size_t route) EXCLUDES(mutex_);
  void SendOn(int layer, size_t route) EXCLUDES(mutex_);
  void SendInOrder(int layer, size_t route) EXCLUDES(mutex_);
  void Send(int layer, size_t route) EXCLUDES(mutex_);
  bool DoneLocked() const REQUIRES(mutex_) { return transfers_ == 0 && left_ == 0; }
  Status SendOwn(int layer, size_t route) EXCLUDES(mutex_);
  void LeaveSlot(int layer, size_t route) EXCLUDES(mutex_);
  void EndTransferLocked(const Status& status) REQUIRES(mutex_);
  template <typename Ready>
  Status WaitFor(int layer, Ready&& ready, const char* what) EXCLUDES(mutex_);

  // Constant after construction.
  Comm& comm_;
  const PagePool& pool_;
  const std::span<const PageId> pages_;
  const std::vector<KvRoute> routes_;
  const Seconds timeout_;
  PageCopier* const copier_;
  const Clock& clock_;
  Slots coming_, going_;
  std::vector<int> places_;  // by route: kInPage, or its place among the staged ones of a layer
  size_t slot_bytes_ = 0;    // of the largest staged piece
  std::vector<size_t> staged_coming_;   // routes, by place
  std::vector<size_t> leaving_;         // routes that are sent on, ascending
  std::vector<std::byte> own_staging_;  // of pages in the host's memory: all parts of chunks

  // Owned by the thread of the forward pass.
  Seconds waited_{0};

  mutable Mutex mutex_;
  CondVar wake_;
  std::vector<size_t> missing_ GUARDED_BY(mutex_);  // pieces of each layer that have not come
  // Transfers and copies that use each slot.
  std::vector<int> coming_users_ GUARDED_BY(mutex_), going_users_ GUARDED_BY(mutex_);
  // Pieces of all layers that have not come, or begun to leave.
  size_t left_ GUARDED_BY(mutex_) = 0;
  size_t transfers_ GUARDED_BY(mutex_) = 0;   // and copies, that have begun and not ended
  uint64_t progress_ GUARDED_BY(mutex_) = 0;  // transfers that have
  uint64_t sent_bytes_ GUARDED_BY(mutex_) = 0;
  // Pieces of a device that may be sent, in the order in which they leave.
  std::vector<char> ready_ GUARDED_BY(mutex_);
  size_t next_send_ GUARDED_BY(mutex_) = 0;  // of these
  bool sending_ GUARDED_BY(mutex_) = false;  // a thread sends what is ready
  std::vector<LayerExchange> layers_ GUARDED_BY(mutex_);
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
