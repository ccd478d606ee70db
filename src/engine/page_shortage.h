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

// However many run, a request that cannot be served has given its pages back or ended with an error
// within twice the stall time-out: half of that time-out is for the youngest to give theirs one by
// one, then all give theirs that are younger than who goes without; one alone goes without for the
// whole of it. Engine thread only.
class PageShortage {
 public:
  // Borrows all but the options.
  PageShortage(Admission& admission, Completions& completions, const Clock& clock,
               const PageShortageOptions& options)
      : admission_(admission), completions_(completions), clock_(clock), options_(options) {}

  // Before a step is planned: preempts or ends requests, by who of them went without a page in the
  // steps before (Sequence::short_since). held: pages that nobody is promised and that late reads
  // and writes hold now.
  void Look(uint64_t held);

 private:
  void Note(TimePoint now);
  void Fail(Sequence& sequence);

  Admission& admission_;
  Completions& completions_;
  const Clock& clock_;
  const PageShortageOptions options_;
  // Somebody who runs goes without a page; a pause that is no longer than the patience, as when the
  // youngest has given a few, does not end it.
  std::optional<TimePoint> since_;
  TimePoint last_short_{};
  TimePoint asked_{};  // when the youngest last gave its own, since then
};

}  // namespace kvcake
