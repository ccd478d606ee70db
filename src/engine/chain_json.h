// How several ranks prefilled a prompt, as it is shown to people and in logs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "engine/request.h"

namespace kvcake {

// The bounds, and what each rank computed, waited, sent and held; null where one process did it
// all.
nlohmann::ordered_json ChainJson(const std::optional<ChainReport>& chain);

}  // namespace kvcake
