#include "model/emulated_profile.h"

#include <limits>

#include "model/config_fields.h"
#include "model/json_file.h"

namespace kvcake {

Result<EmulatedProfile> ParseEmulatedProfile(const nlohmann::json& json,
                                             const std::string& source) {
  constexpr double kSecondsMax = 1e6;
  const Fields fields(json, source);
  if (!json.is_object()) return fields.Invalid("a profile is a JSON object");
  EmulatedProfile profile;
  ASSIGN_OR_RETURN(profile.name, fields.Text("name"));
  if (profile.name.empty()) return fields.Invalid("name is missing");
  ASSIGN_OR_RETURN(profile.layers, fields.Int("layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(const int bytes,
                   fields.Int("kv_bytes_per_token", 4, std::numeric_limits<int>::max()));
  profile.kv_bytes_per_token = bytes;
  ASSIGN_OR_RETURN(profile.max_positions, fields.Int("max_positions", 1, kMaxPositions));
  ASSIGN_OR_RETURN(const std::string attention, fields.Text("attention"));
  if (attention != "causal" && attention != "dense") {
    return fields.Invalid("attention must be \"causal\" or \"dense\"");
  }
  const bool dense = attention == "dense";
  profile.attention =
      dense ? EmulatedProfile::Attention::kDense : EmulatedProfile::Attention::kCausal;
  ASSIGN_OR_RETURN(profile.c0, fields.Number("c0", 0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.g, fields.Number("g", 0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.b, fields.Number("b", 0, kSecondsMax));
  ASSIGN_OR_RETURN(profile.a, fields.Number("a", 0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.floor, fields.Number("floor", 0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.link_latency_s, fields.Number("link_latency_s", 0, kSecondsMax, 0.0));
  if (dense ? profile.g > 0 : profile.floor > 0) {
    return fields.Invalid(dense ? "g belongs to causal attention"
                                : "floor belongs to dense attention");
  }
  if (profile.SecondsFor(0, 1) <= 0) return fields.Invalid("compute takes no time: set b");
  return profile;
}

Result<EmulatedProfile> LoadEmulatedProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  return ParseEmulatedProfile(json, path);
}

}  // namespace kvcake
