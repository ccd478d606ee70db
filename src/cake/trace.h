// A restoration's timeline for chrome://tracing and Perfetto: one row per lane.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cake/report.h"

namespace kvcake {

nlohmann::json ChromeTrace(const RestoreReport& report);

}  // namespace kvcake
