// What becomes of requests when others hold the pages that they were promised: reads of a device
// that hangs, writes that do not return.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "engine/admission.h"
#include "engine/completions.h"

namespace kvcake {

struct PageShortageOptions {
  // Without a page for so long, the youngest gives its own: late reads and writes are rarely later.
  Seconds patience{1};
  // Without a page for so long although nobody younger has any to give, or kept from running at all
  // by pages that others hold: the request ends with an error.
  Seconds stall_timeout{30};
};

// Engine thread only.
class PageShortage {
 public:
  // Borrows all but the options.
  PageShortage(Admission& admission, Completions& completions, const Clock& clock,
               const PageShortageOptions& options)
      : admission_(admission), completions_(completions), clock_(clock), options_(options) {}

  // Before a step is planned, which may preempt or end requests. held: pages that nobody is
  // promised and that late reads and writes hold now.
  void Look(uint64_t held);
  // lacks_pages: somebody who runs went without a page in the step that was planned.
  void Planned(bool lacks_pages);

 private:
  void Fail(Sequence& sequence);

  Admission& admission_;
  Completions& completions_;
  const Clock& clock_;
  const PageShortageOptions options_;
  std::optional<TimePoint> since_;  // somebody who runs has gone without a page
  TimePoint asked_{};               // when the youngest last gave its own, since then
};

}  // namespace kvcake
