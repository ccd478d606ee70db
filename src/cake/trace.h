// A restoration's timeline for chrome://tracing and Perfetto: one row per lane.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "cake/report.h"

namespace kvcake {

nlohmann::json ChromeTrace(const RestoreReport& report);
// To a file; kIo names it.
[[nodiscard]] Status WriteChromeTrace(const std::string& path, const RestoreReport& report);

}  // namespace kvcake
