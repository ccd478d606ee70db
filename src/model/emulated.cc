#include "model/emulated.h"

#include <algorithm>
#include <array>
#include <thread>

#include "base/check.h"
#include "base/hash.h"

namespace kvcake {
namespace {

void SleepUntil(TimePoint t) {
  std::this_thread::sleep_until(
      std::chrono::time_point_cast<std::chrono::steady_clock::duration>(t));
}

KvIdentity IdentityOf(const EmulatedProfile& p, const KvLayout& layout,
                      std::string_view lossy_lineage) {
  KvIdentity identity;
  identity.Add("arch", "emulated")
      .Add("profile", p.name)
      .Add("layers", p.layers)
      .Add("kv_bytes_per_token", static_cast<int64_t>(p.kv_bytes_per_token))
      .Add("scale", kEmulatedScale)
      .Add("chunk_tokens", layout.chunk_tokens)
      .Add("layout", "v1");
  if (!lossy_lineage.empty()) identity.Add("lossy", lossy_lineage);
  return identity;
}

}  // namespace

KvLayout EmulatedModel::LayoutFor(const EmulatedProfile& profile, int chunk_tokens) {
  const uint64_t per_layer = profile.kv_bytes_per_token / (4ull * profile.layers);
  return {.layers = profile.layers,
          .kv_heads = 1,
          .head_dim = static_cast<int>(std::max<uint64_t>(2, per_layer / kEmulatedScale)),
          .chunk_tokens = chunk_tokens};
}

double EmulatedModel::ScaleRate(const EmulatedProfile& profile, const KvLayout& layout,
                                double bytes_per_s) {
  const double real = static_cast<double>(profile.kv_bytes_per_token) * layout.chunk_tokens;
  return bytes_per_s * static_cast<double>(layout.page_bytes()) / real;
}

std::vector<int32_t> EmulatedModel::TokensOf(std::string_view text) {
  constexpr size_t kBytes = 4;
  std::vector<int32_t> tokens;
  for (size_t at = 0; at < text.size(); at += kBytes) {
    const auto piece = std::as_bytes(std::span(text.substr(at, kBytes)));
    tokens.push_back(static_cast<int32_t>(Xxh3_64(piece) % kVocab));
  }
  return tokens;
}

EmulatedModel::EmulatedModel(EmulatedProfile profile, const PagePool& pages, int max_batch_tokens,
                             int vocab_size, const Clock& clock,
                             std::function<void(TimePoint)> sleep_until,
                             std::string_view lossy_lineage)
    : profile_(std::move(profile)),
      pages_(pages),
      max_batch_tokens_(max_batch_tokens),
      vocab_size_(vocab_size),
      clock_(clock),
      sleep_until_(sleep_until ? std::move(sleep_until) : SleepUntil),
      identity_(IdentityOf(profile_, pages.layout(), lossy_lineage)) {
  CHECK(pages.layout() == LayoutFor(profile_, pages.layout().chunk_tokens));
}

double EmulatedModel::BatchSeconds(std::span<const Slice> batch) const {
  if (batch.empty()) return 0;
  double seconds = profile_.c0;
  for (const Slice& slice : batch) {
    const int tokens = static_cast<int>(slice.tokens.size());
    const bool dense = profile_.attention == EmulatedProfile::Attention::kDense;
    const int prefix = dense ? std::max(slice.start, slice.dense_keys - tokens) : slice.start;
    seconds += profile_.MarginalSecondsFor(prefix, tokens);
  }
  return std::max(profile_.floor, seconds);
}

void EmulatedModel::WriteKv(const Slice& slice, int layer) const {
  const KvLayout& kv = layout();
  for (size_t i = 0; i < slice.tokens.size(); ++i) {
    const int position = slice.start + static_cast<int>(i);
    uint16_t* slab = pages_.Slab(slice.pages[position / kv.chunk_tokens], layer);
    uint16_t* k = slab + static_cast<uint64_t>(position % kv.chunk_tokens) * kv.head_dim;
    std::fill_n(k, kv.head_dim, static_cast<uint16_t>(slice.tokens[i]));
    std::fill_n(k + kv.plane_elements(), kv.head_dim, static_cast<uint16_t>(position + layer));
  }
}

uint64_t EmulatedModel::Digest(const Slice& slice, int end) const {
  const KvLayout& kv = layout();
  uint64_t digest = 0;
  for (int begin = 0; begin < end; begin += kv.chunk_tokens) {
    const size_t tokens = std::min(kv.chunk_tokens, end - begin);
    for (int layer = 0; layer < kv.layers; ++layer) {
      const uint16_t* k = pages_.Slab(slice.pages[begin / kv.chunk_tokens], layer);
      const size_t elements = tokens * kv.head_dim;
      const std::array<uint64_t, 3> parts{
          digest, Xxh3_64(std::as_bytes(std::span(k, elements))),
          Xxh3_64(std::as_bytes(std::span(k + kv.plane_elements(), elements)))};
      digest = Xxh3_64(std::as_bytes(std::span(parts)));
    }
  }
  return digest;
}

void EmulatedModel::AddLogits(const Slice& slice) {
  const int end = slice.start + static_cast<int>(slice.tokens.size());
  if (slice.logits == Slice::Logits::kNone) return;
  const int first = slice.logits == Slice::Logits::kLast ? end : slice.start + 1;
  for (int row = first; row <= end; ++row) {
    logits_.resize(logits_.size() + vocab_size_, 0.0f);
    logits_[logits_.size() - vocab_size_ + Digest(slice, row) % vocab_size_] = 10.0f;
  }
}

Result<std::span<const float>> EmulatedModel::Forward(std::span<const Slice> batch) {
  const TimePoint began = clock_.Now();
  const double seconds = BatchSeconds(batch);
  LayerGate* gate = batch.empty() ? nullptr : batch[0].gate;
  for (const Slice& slice : batch) CHECK(slice.gate == gate);
  TimePoint due = began;  // without what others keep it waiting for, however late it wakes up
  for (int layer = 0; layer < profile_.layers; ++layer) {
    for (const Slice& slice : batch) {
      if (slice.write_kv) WriteKv(slice, layer);
    }
    if (gate == nullptr) continue;
    RETURN_IF_ERROR(gate->AfterKv(layer));
    const TimePoint written = clock_.Now();
    RETURN_IF_ERROR(gate->BeforeAttention(layer));
    due += clock_.Now() - written + Seconds(seconds / profile_.layers);
    sleep_until_(due);
  }
  logits_.clear();
  for (const Slice& slice : batch) AddLogits(slice);
  if (gate == nullptr) sleep_until_(began + Seconds(seconds));
  return std::span<const float>(logits_);
}

}  // namespace kvcake
