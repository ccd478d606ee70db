#include "cake/compute_share.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr double kShareMin = 1e-3;  // to count on: a share of 0 does not stay
constexpr double kNewest = 0.125;   // weight of the last step

}  // namespace

ComputeShare::ComputeShare(SpeedTrace shares, int slice_tokens, int chunk_tokens)
    : shares_(std::move(shares)),
      slice_tokens_(slice_tokens),
      chunk_tokens_(chunk_tokens),
      typical_(std::max(kShareMin, shares_.SpeedAt(0))) {
  CHECK(chunk_tokens > 0 && slice_tokens > 0);
}

double ComputeShare::Tokens(double now_s) const {
  return kept_tokens_ + shares_.SpeedAt(now_s) * slice_tokens_;
}

int ComputeShare::Budget(double now_s) const {
  constexpr double kRounding = 1e-6;
  return static_cast<int>((Tokens(now_s) + kRounding) / chunk_tokens_);
}

void ComputeShare::Step(double begun_s, int chunks) {
  kept_tokens_ = std::clamp(Tokens(begun_s) - static_cast<double>(chunks) * chunk_tokens_, 0.0,
                            static_cast<double>(chunk_tokens_));
  typical_ += kNewest * (std::max(kShareMin, shares_.SpeedAt(begun_s)) - typical_);
}

}  // namespace kvcake
