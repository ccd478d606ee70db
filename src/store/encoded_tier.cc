#include "store/encoded_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/cpu.h"
#include "base/large_pages.h"
#include "store/chunk_format.h"
#include "store/chunk_seal.h"

namespace kvcake {
namespace {

int ReadsMax(const Tier& inner, uint64_t file_bytes) {
  const uint64_t by_bytes = inner.max_read_bytes_in_flight() / file_bytes;
  return static_cast<int>(std::clamp<uint64_t>(by_bytes, 1, inner.max_reads_in_flight()));
}

std::byte* NewStaging(uint64_t bytes) {
  std::byte* const memory = AllocateLargePages(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// A thread's own time: what others do on its core meanwhile is not the codec's.
Seconds CoreTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

template <typename Number>
std::span<Number> Numbers(auto bytes) {
  return {reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

ReadResult Cancelled() { return ReadResult{Fail(ErrorCode::kCancelled, "read cancelled")}; }

}  // namespace

EncodedTier::EncodedTier(std::unique_ptr<Tier> inner_tier, std::unique_ptr<LayerCodec> codec,
                         EncodedTierOptions options)
    : TierDecorator(std::move(inner_tier)),
      options_(options),
      codec_(std::move(codec)),
      reads_forwarded_max_(ReadsMax(inner(), options.form.FileBytesMax(options.layout))),
      read_slots_(reads_forwarded_max_ + options.decode_threads),
      slot_bytes_(options.form.FileBytesMax(options.layout)),
      staging_bytes_(static_cast<uint64_t>(read_slots_ + options.write_slots) * slot_bytes_),
      staging_(NewStaging(staging_bytes_)),
      decoders_(options.decode_threads) {
  CHECK(codec_ != nullptr && !options_.form.raw() && options_.write_slots > 0);
  CHECK(options_.form.encrypted == (options_.key != nullptr));
  std::span<std::byte> left(staging_.get(), staging_bytes_);
  for (int i = 0; i < read_slots_ + options_.write_slots; ++i) {
    if (i < read_slots_) {
      free_read_slots_.push_back(left.first(slot_bytes_));
    } else {
      write_slots_.GiveBack(left.first(slot_bytes_));
    }
    left = left.subspan(slot_bytes_);
  }
}

EncodedTier::~EncodedTier() {
  std::vector<ReadId> ids;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, read] : reads_) ids.push_back(id);
  }
  for (ReadId id : ids) Cancel(id);
  MutexLock lock(mutex_);
  while (unanswered_ > 0) changed_.Wait(mutex_);
}

uint64_t EncodedTier::max_read_bytes_in_flight() const {
  return read_slots_ * options_.layout.page_bytes();
}

int EncodedTier::max_writes_in_flight() const {
  return std::min(inner().max_writes_in_flight(), options_.write_slots);
}

ReadId EncodedTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  ReadId id;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    ++unanswered_;
    reads_.emplace(id, Read{.request = std::move(request)});
    waiting_.push_back(id);
  }
  StartWaiting();
  return id;
}

void EncodedTier::StartWaiting() {
  while (true) {
    ReadRequest forwarded;
    ReadId id;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty() || free_read_slots_.empty() ||
          reads_forwarded_ == reads_forwarded_max_) {
        return;
      }
      id = waiting_.front();
      waiting_.pop_front();
      ++reads_forwarded_;
      Read& read = reads_.at(id);
      read.slot = free_read_slots_.back();
      free_read_slots_.pop_back();
      const ReadRequest& request = read.request;
      forwarded = {.key = request.key,
                   .parent = request.parent,
                   .landing = read.slot,
                   .done = [this, id](ReadResult r) { OnInnerDone(id, std::move(r)); },
                   .layers = request.layers};
    }
    ForwardGet(id, std::move(forwarded));
    if (IsCancelled(id)) ForwardCancel(id);  // which came before the inner tier knew of it
  }
}

bool EncodedTier::IsCancelled(ReadId id) {
  MutexLock lock(mutex_);
  const auto it = reads_.find(id);
  return it != reads_.end() && it->second.cancelled;
}

// On a thread of the inner tier, which has other reads to see to.
void EncodedTier::OnInnerDone(ReadId id, ReadResult result) {
  {
    MutexLock lock(mutex_);
    --reads_forwarded_;
    reads_.at(id).result = std::move(result);
  }
  StartWaiting();
  decoders_.Soon([this, id] { End(id); });
}

void EncodedTier::Cancel(ReadId id) {
  {
    MutexLock lock(mutex_);
    const auto it = reads_.find(id);
    if (it == reads_.end()) return;
    Read& read = it->second;
    const bool before = std::exchange(read.cancelled, true);
    if (read.slot.empty()) {
      if (before) return;
      std::erase(waiting_, id);
      read.result = Cancelled();
      decoders_.Soon([this, id] { End(id); });
      return;
    }
  }
  ForwardCancel(id);  // which does nothing to a read that is being decoded
}

void EncodedTier::End(ReadId id) {
  Read* read = nullptr;
  {
    MutexLock lock(mutex_);
    read = &reads_.at(id);  // stays where it is: nobody else takes it out
    if (read->result.status && read->cancelled) read->result = Cancelled();
  }
  if (read->result.status) DecodeOrRefuse(*read);
  std::unordered_map<ReadId, Read>::node_type node;
  {
    MutexLock lock(mutex_);
    node = reads_.extract(id);
    if (!read->slot.empty()) free_read_slots_.push_back(read->slot);
  }
  StartWaiting();  // first: the inner tier is not to wait for what `done` does
  read->request.done(std::move(read->result));
  node = {};  // what `done` captured goes before the tier may
  MutexLock lock(mutex_);
  --unanswered_;
  changed_.NotifyAll();
}

void EncodedTier::DecodeOrRefuse(Read& read) {
  const Seconds began = CoreTime();
  const Status status = Decode(read);
  const Seconds took = CoreTime() - began;
  decodes_.Add(took);
  if (status) {
    read.result.core_s += took.count();
    read.result.bytes = ReadBytes(options_.layout, read.request);
    return;
  }
  if (status.error().code == ErrorCode::kCorrupt) {
    spdlog::warn("store: a chunk of {} cannot be decoded, and goes: {}", name(),
                 status.error().message);
    (void)inner().Evict(read.request.key);
  }
  read.result = ReadResult{status};
  MutexLock lock(mutex_);
  ++refused_;
}

Status EncodedTier::Decode(Read& read) const {
  const KvLayout& layout = options_.layout;
  const ConstHeaderBytes bytes_of_header = read.slot.first<kPageHeaderBytes>();
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeHeader(bytes_of_header));
  std::optional<PartOpener> opener;
  if (options_.key) opener.emplace(*options_.key, read.request.key, bytes_of_header, header);
  const auto& some = read.request.layers;
  const LayerRange layers = some.value_or(LayerRange{0, layout.layers});
  uint64_t from = header.layer_offset(layers.first);
  uint64_t to = some ? 0 : kPageHeaderBytes;
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
    const auto slab = read.request.landing.subspan(to, layout.slab_bytes());
    const auto payload = slab.first(layout.slab_payload_bytes());
    const uint64_t bytes = header.layer_bytes(layer);
    const auto part = read.slot.subspan(from, bytes);
    Status decoded;
    if (opener) decoded = opener->Open(layer, part);
    if (decoded) {
      decoded = codec_->Decode({.layer = layer, .position = header.position}, part,
                               Numbers<uint16_t>(payload));
    }
    if (!decoded) {
      return Fail(decoded.error().code, "layer {}: {}", layer, decoded.error().message);
    }
    std::memset(slab.data() + payload.size(), 0, slab.size() - payload.size());
    from += bytes;
    to += layout.slab_bytes();
  }
  return {};
}

Status EncodedTier::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() >= options_.layout.page_bytes());
  if (InnerKeeps(chunk.key)) return {};  // before it is encoded for nothing
  const Slot slot = write_slots_.Draw();
  const Seconds began = CoreTime();
  const auto bytes = Encode(chunk, slot);
  encodes_.Add(CoreTime() - began);
  Status status;
  if (bytes) {
    if (chunk.page_read) chunk.page_read();
    ChunkWrite encoded = chunk;
    encoded.page = slot.first(*bytes);
    encoded.page_read = nullptr;
    status = inner().Put(encoded);
  } else {
    status = tl::unexpected(bytes.error());
    inner().Disclaim({&chunk.key, 1});  // others need not wait for what will not come
  }
  write_slots_.GiveBack(slot);
  return status;
}

Result<uint64_t> EncodedTier::Encode(const ChunkWrite& chunk, Slot slot) const {
  const KvLayout& layout = options_.layout;
  ChunkHeader header;
  header.root = options_.root;
  header.key = chunk.key;
  header.parent = chunk.parent;
  header.layout = layout;
  header.codec = options_.form.codec;
  header.tables = options_.form.tables;
  if (options_.key) header.encryption.emplace();  // so that it has parts, whatever the codec
  header.numeric_path = chunk.numeric_path;
  header.position = chunk.position;
  uint64_t at = kPageHeaderBytes;
  for (int layer = 0; layer < layout.layers; ++layer) {
    const auto payload = chunk.page.subspan(layout.slab_offset(layer), layout.slab_payload_bytes());
    const auto part = slot.subspan(at, codec_->part_bytes_max());
    ASSIGN_OR_RETURN(const uint64_t bytes,
                     codec_->Encode({.layer = layer, .position = chunk.position},
                                    Numbers<const uint16_t>(payload), part));
    header.parts.push_back({.bytes = bytes});
    if (!options_.key) header.parts.back().checksum = Xxh3_64(part.first(bytes));
    at += bytes;
  }
  const Slot rest = slot.subspan(at, header.file_bytes() - at);
  std::memset(rest.data(), 0, rest.size());
  if (options_.key) {
    RETURN_IF_ERROR(SealChunk(*options_.key, header, slot));
  } else {
    EncodeHeader(slot.first<kPageHeaderBytes>(), header);
  }
  return header.file_bytes();
}

TierStats EncodedTier::Stats() const {
  TierStats stats = inner().Stats();
  stats.encodes = encodes_.totals();
  stats.decodes = decodes_.totals();
  MutexLock lock(mutex_);
  stats.reads -= std::min(stats.reads, refused_);
  stats.reads_failed += refused_;
  return stats;
}

}  // namespace kvcake
