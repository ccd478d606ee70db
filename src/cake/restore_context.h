// What the parts of a Restorer share; constant while it lives.
#pragma once

#include "cake/restorer.h"

namespace kvcake {

struct RestoreContext {
  PagePool& pool;
  ComputeCost& cost;
  const Clock& clock;
  const Restorer::Options options;

  double chunk_bytes() const { return static_cast<double>(pool.layout().page_bytes()); }
};

}  // namespace kvcake
