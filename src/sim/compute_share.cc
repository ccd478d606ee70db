#include "sim/compute_share.h"

#include <algorithm>

#include "base/check.h"

namespace kvcake {
namespace {

constexpr double kShareMin = 1e-3;  // to count on: a share of 0 does not stay
constexpr double kNewest = 0.125;   // weight of the last step
constexpr int kMissedMax = 64;      // steps that are caught up with: no more matter

}  // namespace

ComputeShare::ComputeShare(SpeedTrace shares, int slice_tokens, int chunk_tokens)
    : shares_(std::move(shares)),
      slice_tokens_(slice_tokens),
      chunk_tokens_(chunk_tokens),
      typical_(Share(0)) {
  CHECK(chunk_tokens > 0 && slice_tokens > 0);
}

double ComputeShare::Share(double s) const { return std::max(kShareMin, shares_.SpeedAt(s)); }

double ComputeShare::Tokens(double now_s) const {
  return kept_tokens_ + shares_.SpeedAt(now_s) * slice_tokens_;
}

int ComputeShare::Budget(double now_s) {
  Watch(now_s);
  constexpr double kRounding = 1e-6;
  return static_cast<int>((Tokens(now_s) + kRounding) / chunk_tokens_);
}

void ComputeShare::Step(double begun_s, int chunks) {
  kept_tokens_ = std::clamp(Tokens(begun_s) - static_cast<double>(chunks) * chunk_tokens_, 0.0,
                            static_cast<double>(chunk_tokens_));
  typical_ += kNewest * (Share(begun_s) - typical_);
  seen_s_ = begun_s;
  step_s_ = 0;
}

// The others' steps go on while a restoration waits and runs none. How long they are the last one
// of its own has shown.
void ComputeShare::Watch(double now_s) {
  if (!seen_s_) {
    typical_ = Share(now_s);
    return;
  }
  if (step_s_ == 0) {
    step_s_ = now_s - *seen_s_;
    seen_s_ = now_s;
  }
  if (step_s_ <= 0) return;
  seen_s_ = std::max(*seen_s_, now_s - kMissedMax * step_s_);
  for (; now_s - *seen_s_ >= step_s_; *seen_s_ += step_s_) {
    typical_ += kNewest * (Share(*seen_s_) - typical_);
  }
}

}  // namespace kvcake
