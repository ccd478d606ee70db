// The fields of OpenAI's API and of vLLM's that kvcake knows and does not honour. A request that
// has one is refused by its name, unless its value asks for nothing; fields that are in no table
// are ignored.
#pragma once

#include <nlohmann/json.hpp>

#include "server/request_fields.h"

namespace kvcake {

enum class Endpoint { kCompletion, kChat, kTokenize };

// Notes an error for the first field of the request that is not honoured.
void RefuseUnsupported(Endpoint endpoint, RequestFields* fields);

// null, false, an empty text, array or object.
bool AsksForNothing(const nlohmann::json& value);

}  // namespace kvcake
