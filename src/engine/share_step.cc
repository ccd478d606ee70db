#include "engine/share_step.h"

#include <algorithm>

namespace kvcake {

int ShareStep(std::span<const std::unique_ptr<Sequence>> running, const ComputeFit& fit,
              Seconds step_max, int chunk_tokens, int most) {
  int prefix = 0;  // the slice that costs the most is a long prompt's last
  for (const auto& sequence : running) {
    if (sequence->state == Sequence::State::kDecoding) continue;
    prefix = std::max(prefix, sequence->prefill_tokens);
  }
  int tokens = chunk_tokens;
  while (tokens + chunk_tokens <= most &&
         fit.SecondsFor(prefix, tokens + chunk_tokens) <= step_max.count()) {
    tokens += chunk_tokens;
  }
  return fit.known() ? tokens : most;
}

}  // namespace kvcake
