// Which listings of servers never end.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvcake {

// Ends those whose pages name one another in a circle, as they come back to the name that is kept
// and replaced at ever longer intervals (Brent, 1980), and those of more pages than any store has.
class PagesSeen {
 public:
  static constexpr uint64_t kPagesMax = 1 << 20;  // of about a thousand names

  // The next page's name. kIo where that would go on for ever.
  Status GoOnTo(const std::string& next) {
    if (next == kept_) return Fail(ErrorCode::kIo, "it lists the same page again");
    if (++pages_ > kPagesMax) return Fail(ErrorCode::kIo, "its list has over {} pages", kPagesMax);
    if (pages_ == keep_at_) {
      kept_ = next;
      keep_at_ *= 2;
    }
    return {};
  }

 private:
  std::string kept_;
  uint64_t pages_ = 0, keep_at_ = 1;
};

}  // namespace kvcake
