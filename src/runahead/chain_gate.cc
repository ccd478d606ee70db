#include "runahead/chain_gate.h"

#include <utility>

#include "base/check.h"

namespace kvcake {

ChainGate::ChainGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
                     const ChainPlace& place, Seconds timeout, const Clock& clock)
    : comm_(comm),
      pool_(pool),
      pages_(pages),
      place_(place),
      timeout_(timeout),
      clock_(clock),
      missing_(pool.layout().layers, 0) {
  const KvLayout& layout = pool.layout();
  CHECK(place.origin % layout.chunk_tokens == 0);
  CHECK(pages.size() * layout.chunk_tokens >= static_cast<size_t>(place.end()));
  for (int owner = 0; owner <= place.place; ++owner) {
    if (owner == place.place) pieces_before_ = pieces_.size();
    const int begin = place.origin + place.partition.begin(owner);
    const int end = place.origin + place.partition.bounds[owner + 1];
    for (const KvPiece& piece : PiecesOf(begin, end, layout.chunk_tokens)) pieces_.push_back(piece);
  }
  staging_.resize(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const bool travels = i < pieces_before_ || !place.last();
    if (travels && !pieces_[i].whole(layout)) {
      staging_[i].resize(layout.layers * pieces_[i].bytes(layout));
    }
  }
  CHECK(kChainTags + pieces_.size() * layout.layers < static_cast<size_t>(kTagLimit));
  PostReceives();
}

ChainGate::~ChainGate() {
  {
    std::lock_guard lock(mutex_);
    if (transfers_ == 0) return;
  }
  comm_.Close({ErrorCode::kCancelled, "a prompt's chain has failed"});
}

int ChainGate::Tag(int layer, size_t piece) const {
  // Pieces are numbered from the prompt's beginning, so all ranks number them alike.
  return kChainTags + static_cast<int>(piece) * pool_.layout().layers + layer;
}

std::span<std::byte> ChainGate::BytesOf(int layer, size_t piece) {
  if (staging_[piece].empty()) return SlabOf(pool_, pages_[pieces_[piece].chunk], layer);
  const size_t bytes = pieces_[piece].bytes(pool_.layout());
  return std::span(staging_[piece]).subspan(layer * bytes, bytes);
}

// In the order in which they will be needed.
void ChainGate::PostReceives() {
  const int layers = pool_.layout().layers;
  if (pieces_before_ == 0) return;
  missing_.assign(layers, pieces_before_);
  transfers_ = layers * pieces_before_;
  const int from = place_.first_rank + place_.place - 1;
  for (int layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < pieces_before_; ++i) {
      comm_.Receive(from, Tag(layer, i), BytesOf(layer, i),
                    [this, layer, i](Status status) { OnReceived(layer, i, std::move(status)); });
    }
  }
}

void ChainGate::OnReceived(int layer, size_t piece, Status status) {
  if (status) {
    if (!place_.last()) SendOn(layer, piece);
    if (!staging_[piece].empty()) {
      UnpackPiece(pool_, pages_[pieces_[piece].chunk], layer, pieces_[piece],
                  BytesOf(layer, piece));
    }
  }
  std::lock_guard lock(mutex_);
  --transfers_;
  ++progress_;
  if (status) {
    --missing_[layer];
  } else {
    FailLocked(status.error());
  }
  wake_.notify_all();  // under the lock: the gate may be gone after it
}

void ChainGate::SendOn(int layer, size_t piece) {
  const std::span<const std::byte> bytes = BytesOf(layer, piece);
  {
    std::lock_guard lock(mutex_);
    ++transfers_;
    sent_bytes_ += bytes.size();
  }
  comm_.Send(place_.first_rank + place_.place + 1, Tag(layer, piece), bytes,
             [this](Status status) { OnSent(std::move(status)); });
}

void ChainGate::OnSent(Status status) {
  std::lock_guard lock(mutex_);
  --transfers_;
  ++progress_;
  if (!status) FailLocked(status.error());
  wake_.notify_all();
}

void ChainGate::FailLocked(Error error) {
  if (!error_) error_ = std::move(error);
}

Status ChainGate::AfterKv(int layer) {
  if (place_.last()) return {};
  for (size_t i = pieces_before_; i < pieces_.size(); ++i) {
    if (!staging_[i].empty()) {
      PackPiece(pool_, pages_[pieces_[i].chunk], layer, pieces_[i], BytesOf(layer, i));
    }
    SendOn(layer, i);
  }
  return {};
}

template <typename Ready>
Status ChainGate::WaitFor(Ready&& ready, const char* what) {
  const TimePoint began = clock_.Now();
  std::unique_lock lock(mutex_);
  while (!ready() && !error_) {
    const uint64_t before = progress_;
    const auto changed = [&] { return ready() || error_ || progress_ != before; };
    if (wake_.wait_for(lock, timeout_, changed)) continue;
    error_ = Error{ErrorCode::kDeadline,
                   fmt::format("rank {}: nothing of a prompt's KV cache has {} for {:g} s: a "
                               "neighbour hangs, or the network does (--rank-timeout)",
                               comm_.rank(), what, timeout_.count())};
  }
  waited_ += clock_.Now() - began;
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

Status ChainGate::BeforeAttention(int layer) {
  return WaitFor([this, layer] { return missing_[layer] == 0; }, "come");
}

Status ChainGate::Finish() {
  return WaitFor([this] { return transfers_ == 0; }, "gone on");
}

}  // namespace kvcake
