#include "runahead/kv_gate.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvcake {

Result<std::unique_ptr<KvGate>> KvGate::Create(Comm& comm, const PagePool& pool,
                                               std::span<const PageId> pages,
                                               std::vector<KvRoute> routes, Seconds timeout,
                                               const KvStaging& staging, const Clock& clock) {
  std::unique_ptr<KvGate> gate(
      new KvGate(comm, pool, pages, std::move(routes), timeout, staging.copier, clock));
  RETURN_IF_ERROR(gate->MakeSlots(staging.memory));
  gate->PostReceives();
  return gate;
}

KvGate::KvGate(Comm& comm, const PagePool& pool, std::span<const PageId> pages,
               std::vector<KvRoute> routes, Seconds timeout, PageCopier* copier, const Clock& clock)
    : comm_(comm),
      pool_(pool),
      pages_(pages),
      routes_(std::move(routes)),
      timeout_(timeout),
      copier_(copier),
      clock_(clock) {
  const KvLayout& layout = pool.layout();
  layers_.resize(layout.layers);
  for (size_t i = 0; i < routes_.size(); ++i) {
    const KvRoute& route = routes_[i];
    CHECK(route.piece.chunk < static_cast<int>(pages.size()));
    CHECK(route.number < (kTagLimit - kKvTags) / layout.layers);
    if (route.to >= 0) leaving_.push_back(i);
    const bool travels = route.from >= 0 || route.to >= 0;
    if (!travels || (copier == nullptr && route.piece.whole(layout))) {
      places_.push_back(kInPage);
      continue;
    }
    if (route.from >= 0) staged_coming_.push_back(i);
    places_.push_back(static_cast<int>(SlotsOf(i).pieces++));
    slot_bytes_ = std::max(slot_bytes_, route.piece.bytes(layout));
  }
  if (copier != nullptr) ready_.resize(layout.layers * leaving_.size());
}

Status KvGate::MakeSlots(std::span<std::byte> memory) {
  if (slot_bytes_ == 0) return {};
  const size_t layers = pool_.layout().layers;
  const size_t all_coming = layers * coming_.pieces, all_going = layers * going_.pieces;
  if (copier_ == nullptr) {
    own_staging_.resize((all_coming + all_going) * slot_bytes_);
    memory = own_staging_;
  }
  const size_t room = memory.size() / slot_bytes_;
  coming_.count = std::min(all_coming, room - std::min(room / 2, all_going));
  going_.count = std::min(all_going, room - coming_.count);
  RETURN_IF_ERROR(Share(memory, &coming_));
  RETURN_IF_ERROR(Share(memory.subspan(coming_.memory.size()), &going_));
  MutexLock lock(mutex_);
  coming_users_.resize(coming_.count);
  going_users_.resize(going_.count);
  return {};
}

// Its first bytes, for as many slots as are counted.
Status KvGate::Share(std::span<std::byte> memory, Slots* slots) const {
  if (slots->pieces > 0 && slots->count == 0) {
    return Fail(ErrorCode::kResourceExhausted,
                "rank {}: what ranks send each other passes through pieces of {} bytes, and "
                "--staging-capacity has {} bytes: raise it",
                comm_.rank(), slot_bytes_, memory.size());
  }
  slots->memory = memory.first(slots->count * slot_bytes_);
  return {};
}

// In the order in which it is needed.
void KvGate::PostReceives() {
  const int layers = pool_.layout().layers;
  const size_t coming =
      std::ranges::count_if(routes_, [](const KvRoute& r) { return r.from >= 0; });
  {
    MutexLock lock(mutex_);
    missing_.assign(layers, coming);
    left_ = layers * (coming + leaving_.size());
  }
  for (int layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < routes_.size(); ++i) {
      if (routes_[i].from < 0) continue;
      if (places_[i] == kInPage || UseOf(layer, i) < coming_.count) Receive(layer, i);
    }
  }
}

KvGate::~KvGate() {
  Error why = {ErrorCode::kCancelled, "the ranks' prompt has failed"};
  {
    MutexLock lock(mutex_);
    if (DoneLocked()) return;
    if (error_) why = *error_;
  }
  comm_.Close(std::move(why));
  // A send that a `done` had begun may end after the others, and copies may.
  MutexLock lock(mutex_);
  while (transfers_ > 0) wake_.Wait(mutex_);
}

uint64_t KvGate::sent_bytes() const {
  MutexLock lock(mutex_);
  return sent_bytes_;
}

std::vector<LayerExchange> KvGate::layers() const {
  MutexLock lock(mutex_);
  return layers_;
}

int KvGate::Tag(int layer, const KvRoute& route) const {
  return kKvTags + route.number * pool_.layout().layers + layer;
}

size_t KvGate::UseOf(int layer, size_t route) const {
  return layer * SlotsOf(route).pieces + places_[route];
}

int& KvGate::UsersOf(int layer, size_t route) {
  std::vector<int>& users = routes_[route].from >= 0 ? coming_users_ : going_users_;
  return users[UseOf(layer, route) % users.size()];
}

std::span<std::byte> KvGate::BytesOf(int layer, size_t route) {
  const KvPiece& piece = routes_[route].piece;
  if (places_[route] == kInPage) return SlabOf(pool_, pages_[piece.chunk], layer);
  const Slots& slots = SlotsOf(route);
  return slots.memory.subspan(UseOf(layer, route) % slots.count * slot_bytes_,
                              piece.bytes(pool_.layout()));
}

void KvGate::Receive(int layer, size_t route) {
  {
    MutexLock lock(mutex_);
    ++transfers_;
  }
  comm_.Receive(routes_[route].from, Tag(layer, routes_[route]), BytesOf(layer, route),
                [this, layer, route](const Status& status) { OnReceived(layer, route, status); });
}

void KvGate::OnReceived(int layer, size_t route, const Status& status) {
  if (!status) {
    MutexLock lock(mutex_);
    return EndTransferLocked(status);
  }
  const bool staged = places_[route] != kInPage;
  if (staged) {
    MutexLock lock(mutex_);
    UsersOf(layer, route) = routes_[route].to >= 0 ? 2 : 1;
  }
  SendOn(layer, route);
  if (!staged) return OnUnpacked(layer, route);
  const KvPiece& piece = routes_[route].piece;
  const PageId page = pages_[piece.chunk];
  const auto unpacked = [this, layer, route] { OnUnpacked(layer, route); };
  UnpackPiece(copier_, pool_, page, layer, piece, BytesOf(layer, route), unpacked);
}

// It is in its page now.
void KvGate::OnUnpacked(int layer, size_t route) {
  LeaveSlot(layer, route);
  MutexLock lock(mutex_);
  --missing_[layer];
  --left_;
  EndTransferLocked({});
}

// The last to leave lets the slot's next piece come.
void KvGate::LeaveSlot(int layer, size_t route) {
  if (places_[route] == kInPage) return;
  {
    MutexLock lock(mutex_);
    if (--UsersOf(layer, route) > 0) return;
  }
  if (routes_[route].from < 0) return;
  const size_t next = UseOf(layer, route) + coming_.count;
  if (next >= pool_.layout().layers * coming_.pieces) return;
  Receive(static_cast<int>(next / coming_.pieces), staged_coming_[next % coming_.pieces]);
}

void KvGate::SendOn(int layer, size_t route) {
  if (routes_[route].to < 0) return;
  if (copier_ != nullptr) {
    SendInOrder(layer, route);
  } else {
    Send(layer, route);
  }
}

// Sends what this piece was the first to wait for, unless another thread is at it.
void KvGate::SendInOrder(int layer, size_t route) {
  const size_t place = std::ranges::lower_bound(leaving_, route) - leaving_.begin();
  MutexLock lock(mutex_);
  ready_[layer * leaving_.size() + place] = 1;
  if (sending_) return;
  sending_ = true;
  for (; next_send_ < ready_.size() && ready_[next_send_] != 0; ++next_send_) {
    const size_t send = next_send_;
    lock.Unlock();
    Send(static_cast<int>(send / leaving_.size()), leaving_[send % leaving_.size()]);
    lock.Lock();
  }
  sending_ = false;
}

void KvGate::Send(int layer, size_t route) {
  const std::span<const std::byte> bytes = BytesOf(layer, route);
  {
    MutexLock lock(mutex_);
    ++transfers_;
    --left_;
    sent_bytes_ += bytes.size();
  }
  comm_.Send(routes_[route].to, Tag(layer, routes_[route]), bytes,
             [this, layer, route](const Status& status) {
               LeaveSlot(layer, route);
               MutexLock lock(mutex_);
               layers_[layer].sent = clock_.Now();
               EndTransferLocked(status);
             });
}

// Wakes under the lock: the gate may be gone after it.
void KvGate::EndTransferLocked(const Status& status) {
  --transfers_;
  ++progress_;
  if (!status && !error_) error_ = status.error();
  wake_.NotifyAll();
}

Status KvGate::AfterKv(int layer) {
  const auto reached = [this, layer] {
    MutexLock lock(mutex_);
    layers_[layer].kv = clock_.Now();
    EndTransferLocked({});
  };
  {
    MutexLock lock(mutex_);
    ++transfers_;
  }
  if (copier_ != nullptr) {
    copier_->AfterOperations(reached);
  } else {
    reached();
  }
  for (size_t i = 0; i < routes_.size(); ++i) {
    if (routes_[i].from < 0 && routes_[i].to >= 0) RETURN_IF_ERROR(SendOwn(layer, i));
  }
  return {};
}

// Waits while there is no room for it.
Status KvGate::SendOwn(int layer, size_t route) {
  if (places_[route] == kInPage) {
    SendOn(layer, route);
    return {};
  }
  RETURN_IF_ERROR(WaitFor(
      layer,
      [this, layer, route] {
        mutex_.AssertHeld();
        return UsersOf(layer, route) == 0;
      },
      "gone on"));
  {
    MutexLock lock(mutex_);
    UsersOf(layer, route) = 1;
    ++transfers_;
  }
  const KvPiece& piece = routes_[route].piece;
  const auto packed = [this, layer, route] {
    SendOn(layer, route);
    MutexLock lock(mutex_);
    EndTransferLocked({});
  };
  PackPiece(copier_, pool_, pages_[piece.chunk], layer, piece, BytesOf(layer, route), packed);
  return {};
}

// At this layer: while a device computes up to it, its host waits and it does not.
template <typename Ready>
Status KvGate::WaitFor(int layer, Ready&& ready, const char* what) {
  const TimePoint began = clock_.Now();
  MutexLock lock(mutex_);
  while (!ready() && !error_) {
    const uint64_t before = progress_;
    const TimePoint deadline = Clock::Real().Now() + timeout_;
    while (!ready() && !error_ && progress_ == before && wake_.WaitUntil(mutex_, deadline)) {
    }
    if (ready() || error_ || progress_ != before) continue;
    error_ = Error{ErrorCode::kDeadline,
                   fmt::format("rank {}: nothing of a prompt's KV cache has {} for {:g} s: "
                               "another rank hangs, or the network does (--rank-timeout)",
                               comm_.rank(), what, timeout_.count())};
  }
  const TimePoint reached = layers_[layer].kv;
  if (reached != TimePoint{}) waited_ += clock_.Now() - std::max(began, reached);
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

Status KvGate::BeforeAttention(int layer) {
  RETURN_IF_ERROR(WaitFor(
      layer,
      [this, layer] {
        mutex_.AssertHeld();
        return missing_[layer] == 0;
      },
      "come"));
  MutexLock lock(mutex_);
  layers_[layer].prefix = clock_.Now();
  return {};
}

Status KvGate::Finish() {
  return WaitFor(
      pool_.layout().layers - 1,
      [this] {
        mutex_.AssertHeld();
        return DoneLocked();
      },
      "gone on");
}

}  // namespace kvcake
