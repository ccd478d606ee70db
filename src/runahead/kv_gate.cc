#include "runahead/kv_gate.h"

#include <utility>

#include "base/check.h"

namespace kvcake {

KvGate::KvGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
               std::vector<KvRoute> routes, Seconds timeout, const Clock& clock)
    : comm_(comm),
      pool_(pool),
      pages_(pages),
      routes_(std::move(routes)),
      timeout_(timeout),
      clock_(clock),
      staging_(routes_.size()) {
  const KvLayout& layout = pool.layout();
  size_t coming = 0;
  for (size_t i = 0; i < routes_.size(); ++i) {
    const KvRoute& route = routes_[i];
    CHECK(route.piece.chunk < static_cast<int>(pages.size()));
    CHECK(route.number < (kTagLimit - kKvTags) / layout.layers);
    const bool travels = route.from >= 0 || route.to >= 0;
    if (travels && !route.piece.whole(layout)) {
      staging_[i].resize(layout.layers * route.piece.bytes(layout));
    }
    coming += route.from >= 0 ? 1 : 0;
  }
  missing_.assign(layout.layers, coming);
  layers_.resize(layout.layers);
  transfers_ = layout.layers * coming;
  for (int layer = 0; layer < layout.layers; ++layer) {  // in the order in which it is needed
    for (size_t i = 0; i < routes_.size(); ++i) {
      if (routes_[i].from < 0) continue;
      comm_.Receive(routes_[i].from, Tag(layer, routes_[i]), BytesOf(layer, i),
                    [this, layer, i](Status status) { OnReceived(layer, i, std::move(status)); });
    }
  }
}

KvGate::~KvGate() {
  {
    std::lock_guard lock(mutex_);
    if (transfers_ == 0) return;
  }
  comm_.Close({ErrorCode::kCancelled, "the ranks' prompt has failed"});
  // A send that a `done` had begun may end after the others.
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return transfers_ == 0; });
}

uint64_t KvGate::sent_bytes() const {
  std::lock_guard lock(mutex_);
  return sent_bytes_;
}

std::vector<LayerExchange> KvGate::layers() const {
  std::lock_guard lock(mutex_);
  return layers_;
}

int KvGate::Tag(int layer, const KvRoute& route) const {
  return kKvTags + route.number * pool_.layout().layers + layer;
}

std::span<std::byte> KvGate::BytesOf(int layer, size_t route) {
  const KvPiece& piece = routes_[route].piece;
  if (staging_[route].empty()) return SlabOf(pool_, pages_[piece.chunk], layer);
  const size_t bytes = piece.bytes(pool_.layout());
  return std::span(staging_[route]).subspan(layer * bytes, bytes);
}

void KvGate::OnReceived(int layer, size_t route, Status status) {
  if (status) {
    SendOn(layer, route);
    if (!staging_[route].empty()) {
      const KvPiece& piece = routes_[route].piece;
      UnpackPiece(pool_, pages_[piece.chunk], layer, piece, BytesOf(layer, route));
    }
  }
  std::lock_guard lock(mutex_);
  if (status) --missing_[layer];
  EndTransferLocked(status);
}

void KvGate::SendOn(int layer, size_t route) {
  const int to = routes_[route].to;
  if (to < 0) return;
  const std::span<const std::byte> bytes = BytesOf(layer, route);
  {
    std::lock_guard lock(mutex_);
    ++transfers_;
    sent_bytes_ += bytes.size();
  }
  comm_.Send(to, Tag(layer, routes_[route]), bytes, [this, layer](Status status) {
    std::lock_guard lock(mutex_);
    layers_[layer].sent = clock_.Now();
    EndTransferLocked(status);
  });
}

// Wakes under the lock: the gate may be gone after it.
void KvGate::EndTransferLocked(const Status& status) {
  --transfers_;
  ++progress_;
  if (!status && !error_) error_ = status.error();
  wake_.notify_all();
}

Status KvGate::AfterKv(int layer) {
  {
    std::lock_guard lock(mutex_);
    layers_[layer].kv = clock_.Now();
  }
  for (size_t i = 0; i < routes_.size(); ++i) {
    if (routes_[i].from >= 0) continue;
    if (!staging_[i].empty()) {
      const KvPiece& piece = routes_[i].piece;
      PackPiece(pool_, pages_[piece.chunk], layer, piece, BytesOf(layer, i));
    }
    SendOn(layer, i);
  }
  return {};
}

template <typename Ready>
Status KvGate::WaitFor(Ready&& ready, const char* what) {
  const TimePoint began = clock_.Now();
  std::unique_lock lock(mutex_);
  while (!ready() && !error_) {
    const uint64_t before = progress_;
    const auto changed = [&] { return ready() || error_ || progress_ != before; };
    if (wake_.wait_for(lock, timeout_, changed)) continue;
    error_ = Error{ErrorCode::kDeadline,
                   fmt::format("rank {}: nothing of a prompt's KV cache has {} for {:g} s: "
                               "another rank hangs, or the network does (--rank-timeout)",
                               comm_.rank(), what, timeout_.count())};
  }
  waited_ += clock_.Now() - began;
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

Status KvGate::BeforeAttention(int layer) {
  RETURN_IF_ERROR(WaitFor([this, layer] { return missing_[layer] == 0; }, "come"));
  std::lock_guard lock(mutex_);
  layers_[layer].prefix = clock_.Now();
  return {};
}

Status KvGate::Finish() {
  return WaitFor([this] { return transfers_ == 0; }, "gone on");
}

}  // namespace kvcake
