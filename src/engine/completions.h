// Ends sequences, and keeps what came of them until it is asked for.
#pragma once

#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "engine/admission.h"
#include "engine/tenant_pages.h"

namespace kvcake {

// Engine thread only.
class Completions {
 public:
  // Borrows all. As many results wait to be taken as there can be sequences at once; beyond that
  // the oldest are forgotten.
  Completions(Admission& admission, TenantPages& owned, const Clock& clock)
      : admission_(admission), owned_(owned), clock_(clock) {}

  // Its pages, claims and loads are given back at once, and its result can be taken. Whoever owns
  // the sequence may destroy it.
  void Finish(Sequence& sequence, FinishReason reason);

  bool contains(SequenceId id) const { return finished_.contains(id); }
  // The result of this sequence, once.
  std::optional<Completion> Take(SequenceId id);
  // The oldest result of all.
  std::optional<std::pair<SequenceId, Completion>> TakeAny();

 private:
  Admission& admission_;
  TenantPages& owned_;
  const Clock& clock_;
  std::map<SequenceId, Completion> finished_;
};

}  // namespace kvcake
