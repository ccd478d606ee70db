// JSON as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvcake {

// `json` is a nlohmann::json of any kind. In one line, or indented by so many spaces; what is not
// UTF-8 becomes U+FFFD, where the library would throw.
template <typename Json>
std::string DumpJson(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace kvcake
