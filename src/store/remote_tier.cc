#include "store/remote_tier.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <optional>
#include <utility>

#include "base/check.h"
#include "store/chunk_bytes.h"
#include "store/chunk_format.h"
#include "store/verify_read.h"

namespace kvcake {

namespace {

// Answers of a look are told so many at a time, or all that are left.
constexpr size_t kToldAtOnce = 32;

}  // namespace

struct RemoteTier::Read {
  struct alignas(8) HeaderBlock {
    std::array<std::byte, kPageHeaderBytes> bytes;
  };

  ReadRequest request;
  ReadId id = 0;
  std::atomic<bool> cancelled{false};
  HeaderBlock header = {};  // of a read of some layers of a raw chunk; else it is in the landing
  int parts = 0;            // of the value, which are due
  uint64_t landed = 0;
  bool is_header = false;  // that part is due, to know where its layers are
  Status status = {};      // the first failure
  NumericPath numeric_path = NumericPath::kUnknown;
};

struct RemoteTier::Looking {
  LookRequest request;
  std::vector<std::optional<bool>> held;
  // How many keys, from the first on, were asked about, have answers, and were told.
  size_t asked = 0, known = 0, told = 0;
  size_t misses = 0;  // the last answers in a row, of those that are told
  bool is_wanted = true;
  TimePoint began{};
};

Result<std::unique_ptr<RemoteTier>> RemoteTier::Open(RemoteTierOptions options,
                                                     std::unique_ptr<RemoteStore> store) {
  const uint64_t reads_min = std::clamp(options.max_reads_in_flight, 1, kReadsMin);
  options.max_read_bytes_in_flight = std::max(
      options.max_read_bytes_in_flight, reads_min * options.form.FileBytesMax(options.layout));
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::move(options), std::move(store)));
  RETURN_IF_ERROR(CheckStorable(tier->options_.layout, tier->options_.form.codec,
                                tier->options_.form.encrypted));
  return tier;
}

RemoteTier::RemoteTier(RemoteTierOptions options, std::unique_ptr<RemoteStore> store)
    : options_(std::move(options)),
      kind_(ChunkKind::Of(options_)),
      reading_("reading chunks from " + options_.name),
      writing_("writing chunks to " + options_.name),
      known_(options_.known_keys_max),
      read_faults_(reading_.c_str()),
      write_faults_(writing_.c_str()),
      store_(store.get()),
      owned_store_(std::move(store)) {}

RemoteTier::~RemoteTier() {
  std::promise<void> closed;
  store_->Post([&] { store_->Close([&] { closed.set_value(); }); });
  closed.get_future().wait();
  owned_store_.reset();
  MutexLock lock(mutex_);
  CHECK(reads_.empty());
}

ReadId RemoteTier::Get(ReadRequest request) {
  kind_.CheckRequest(request);
  const auto read = std::make_shared<Read>();
  read->request = std::move(request);
  {
    MutexLock lock(mutex_);
    read->id = next_id_++;
    reads_[read->id] = read;
  }
  store_->Post([this, read] { Begin(read); });
  return read->id;
}

void RemoteTier::Cancel(ReadId id) {
  MutexLock lock(mutex_);
  if (const auto at = reads_.find(id); at != reads_.end()) at->second->cancelled = true;
}

void RemoteTier::Begin(const ReadPtr& read) {
  if (read->cancelled || store_->is_closing()) {
    read->status = Fail(ErrorCode::kCancelled, "the read was cancelled");
    return Finish(read);
  }
  const auto landing = read->request.landing.first(kind_.LandingBytes(read->request));
  const auto& layers = read->request.layers;
  if (!layers) return AskForPart(read, 0, landing);
  if (!options_.form.raw()) {
    read->is_header = true;
    return AskForPart(read, 0, landing.first<kPageHeaderBytes>());
  }
  read->parts = 1;  // the second is still to be asked for
  AskForPart(read, 0, read->header.bytes);
  --read->parts;
  AskForPart(read, options_.layout.slab_offset(layers->first), landing);
}

void RemoteTier::AskForPart(const ReadPtr& read, uint64_t offset, std::span<std::byte> landing) {
  ++read->parts;
  store_->Get({.key = read->request.key,
               .offset = offset,
               .landing = landing,
               .is_whole = !read->request.layers,
               .may_be_shorter = !read->request.layers && !options_.form.raw(),
               .is_wanted = [read] { return !read->cancelled; },
               .done = [this, read](Result<uint64_t> landed) { OnPart(read, std::move(landed)); }});
}

void RemoteTier::OnPart(const ReadPtr& read, Result<uint64_t> landed) {
  if (landed) {
    read->landed += *landed;
  } else if (read->status) {
    read->status = tl::unexpected(landed.error());
  }
  if (--read->parts > 0) return;
  if (read->status && std::exchange(read->is_header, false)) return AskForParts(read);
  if (read->status) read->status = Verify(*read);
  Finish(read);
}

void RemoteTier::AskForParts(const ReadPtr& read) {
  const auto& [key, parent, landing, done, layers] = read->request;
  const auto header = DecodeHeaderFor(landing.first<kPageHeaderBytes>(), read->request, kind_);
  if (!header) {
    read->status = tl::unexpected(header.error());
  } else if (read->cancelled || store_->is_closing()) {
    read->status = Fail(ErrorCode::kCancelled, "the read was cancelled");
  } else {
    const uint64_t begin = header->layer_offset(layers->first);
    const uint64_t end = header->layer_offset(layers->first + layers->count);
    return AskForPart(read, begin, landing.subspan(begin, end - begin));
  }
  Finish(read);
}

Status RemoteTier::Verify(Read& read) const {
  const bool is_apart = read.request.layers && options_.form.raw();
  const auto landing = read.request.landing;
  if (!is_apart && read.landed < kPageHeaderBytes) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, fewer than a header", read.landed);
  }
  const auto header = is_apart ? ConstHeaderBytes(read.header.bytes)
                               : ConstHeaderBytes(landing.first<kPageHeaderBytes>());
  ASSIGN_OR_RETURN(read.numeric_path, VerifyRead(header, read.request, kind_, read.landed));
  return {};
}

void RemoteTier::Finish(const ReadPtr& read) {
  const ChunkKey key = read->request.key;
  const bool corrupt = !read->status && read->status.error().code == ErrorCode::kCorrupt;
  const bool missing = !read->status && read->status.error().code == ErrorCode::kNotFound;
  const bool cancelled = !read->status && read->status.error().code == ErrorCode::kCancelled;
  if (read->status) {
    known_.Add(key);
    read_faults_.Succeeded();
  } else if ((corrupt || missing) && known_.Remove(key) && missing) {
    known_.Clear();  // it has been emptied, or evicts: what else is still there has to be asked
  }
  if (!read->status && !missing && !cancelled) {
    read->status.error().message =
        fmt::format("chunk {}: {}", key.Hex(), read->status.error().message);
    read_faults_.Failed(read->status.error());
  }
  if (corrupt && !store_->is_closing()) store_->Discard(key);
  ReadResult result{.status = read->status, .numeric_path = read->numeric_path};
  if (read->status) {
    result.bytes = options_.form.raw() ? ReadBytes(options_.layout, read->request) : read->landed;
  }
  {
    MutexLock lock(mutex_);
    stats_.reads += read->status.has_value();
    stats_.read_bytes += result.bytes;
    stats_.reads_failed += !read->status && !missing && !cancelled;
    stats_.quarantined += corrupt;
    reads_.erase(read->id);
  }
  read->request.done(std::move(result));
}

bool RemoteTier::Look(LookRequest request) {
  if (request.keys.empty()) return false;
  const auto looking = std::make_shared<Looking>();
  looking->held.resize(request.keys.size());
  looking->request = std::move(request);
  looking->began = Clock::Real().Now();
  store_->Post([this, looking] { LookOn(looking); });
  return true;
}

void RemoteTier::LookOn(const LookingPtr& looking) {
  auto& [request, held, asked, known, told, misses, is_wanted, began] = *looking;
  if (!is_wanted) return;
  for (; known < held.size() && held[known]; ++known) misses = *held[known] ? 0 : misses + 1;
  if (misses >= options_.looks_at_once || store_->is_closing()) {
    while (asked < held.size()) held[asked++] = false;
    while (known < held.size() && held[known]) ++known;
  }
  while (asked < held.size() && asked - known < options_.looks_at_once) {
    const size_t i = asked++;
    store_->Has(request.keys[i], [this, looking, i](Result<bool> answer) {
      OnLooked(looking, i, std::move(answer));
    });
  }
  const bool is_all = known == held.size();
  if (known == told || (!is_all && known - told < kToldAtOnce)) return;
  std::vector<bool> flags;
  for (size_t at = told; at < known; ++at) flags.push_back(*held[at]);
  is_wanted = request.found(std::exchange(told, known), flags);
  if (is_all || !is_wanted) looks_.Add(Clock::Real().Now() - began);
}

void RemoteTier::OnLooked(const LookingPtr& looking, size_t i, Result<bool> answer) {
  const ChunkKey& key = looking->request.keys[i];
  const bool held = answer && *answer;
  if (held) {
    known_.Add(key);
  } else if (answer) {
    known_.Remove(key);
  } else if (answer.error().code != ErrorCode::kCancelled) {
    read_faults_.Failed(answer.error());
  }
  looking->held[i] = held;
  LookOn(looking);
}

void RemoteTier::Unpin(std::span<const ChunkKey> keys) {
  if (!store_->renews()) return;
  store_->Post([this, keys = std::vector(keys.begin(), keys.end())] {
    if (!store_->is_closing()) store_->Touch(keys);
  });
}

Status RemoteTier::Put(const ChunkWrite& chunk) {
  if (known_.Contains({&chunk.key, 1})[0]) {
    Disclaim({&chunk.key, 1});
    return {};
  }
  const ChunkBytes bytes(chunk, kind_);
  const Result<PutOutcome> put = store_->Put(chunk.key, bytes.pieces());
  const bool found = put && *put == PutOutcome::kWasThere;
  if (put) {
    known_.Add(chunk.key);
    write_faults_.Succeeded();
  } else {
    write_faults_.Failed(put.error());
  }
  Disclaim({&chunk.key, 1});
  MutexLock lock(mutex_);
  stats_.writes_failed += !put;
  stats_.writes += put && !found;
  stats_.writes_found += found;
  if (put && !found) stats_.write_bytes += bytes.bytes();
  if (!put) return tl::unexpected(put.error());
  return {};
}

Status RemoteTier::Evict(const ChunkKey& key) {
  ASSIGN_OR_RETURN(const bool was_there, store_->Remove(key));
  known_.Remove(key);
  MutexLock lock(mutex_);
  stats_.evicted += was_there;
  return {};
}

TierStats RemoteTier::Stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = known_.size();
  // How long an encoded chunk is only those have told that came and went.
  const uint64_t moved = stats_.reads + stats_.writes;
  const uint64_t mean = moved > 0 ? (stats_.read_bytes + stats_.write_bytes) / moved : 0;
  stats.bytes = stats.chunks * (options_.form.raw() ? options_.layout.page_bytes() : mean);
  stats.looks = looks_.totals();
  return stats;
}

}  // namespace kvcake
