// A model without weights: it waits for as long as a profile says, so that the engine, the claims
// and the store meet the speeds of a machine that is not here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "model/emulated_profile.h"
#include "model/model.h"

namespace kvcake {

// One byte of a page stands for this many of the real KV cache, padding apart: links are to be
// slowed down by ScaleRate.
constexpr int kEmulatedScale = 256;

// The KV cache it writes names the token and its position, and its logits are a function of the
// whole cache before them: a wrong or missing chunk changes the answer, as it would a model's.
class EmulatedModel : public Model {
 public:
  static constexpr int kVocab = 32000;  // unless a tokenizer says otherwise

  static KvLayout LayoutFor(const EmulatedProfile& profile, int chunk_tokens);
  // What a link of this rate has to deliver of the emulated pages to keep the real one's time.
  static double ScaleRate(const EmulatedProfile& profile, const KvLayout& layout,
                          double bytes_per_s);

  // Ids for a text, one for four bytes: for want of a tokenizer.
  static std::vector<int32_t> TokensOf(std::string_view text);

  // Borrows the pages, whose layout must be LayoutFor. `lossy_lineage`: MakeIdentity's.
  // `sleep_until` is for tests.
  EmulatedModel(EmulatedProfile profile, const PagePool& pages, int max_batch_tokens,
                int vocab_size = kVocab, const Clock& clock = Clock::Real(),
                std::function<void(TimePoint)> sleep_until = {},
                std::string_view lossy_lineage = {});

  const KvLayout& layout() const override { return pages_.layout(); }
  const KvIdentity& identity() const override { return identity_; }
  NumericPath numeric_path() const override { return NumericPath::kF32; }
  int vocab_size() const override { return vocab_size_; }
  int max_positions() const override { return profile_.max_positions; }
  int max_batch_tokens() const override { return max_batch_tokens_; }
  // A batch takes its slices' times together, the fixed part once.
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override;

 private:
  double BatchSeconds(std::span<const Slice> batch) const;
  void WriteKv(const Slice& slice, int layer) const;
  // What the cache of [0, end) holds, in one number.
  uint64_t Digest(const Slice& slice, int end) const;
  void AddLogits(const Slice& slice);

  const EmulatedProfile profile_;
  const PagePool& pages_;
  const int max_batch_tokens_;
  const int vocab_size_;
  const Clock& clock_;
  const std::function<void(TimePoint)> sleep_until_;
  KvIdentity identity_;
  std::vector<float> logits_;
};

}  // namespace kvcake
