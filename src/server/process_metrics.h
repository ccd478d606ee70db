// What Prometheus' own clients tell of a process, by their names: memory, time, descriptors.
#pragma once

#include "server/prometheus.h"

namespace kvcake {

// This process; what /proc does not tell is left out.
void AddProcess(PrometheusText* text);

}  // namespace kvcake
