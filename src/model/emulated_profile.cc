#include "model/emulated_profile.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_field.h"
#include "base/json_file.h"
#include "model/config_limits.h"

namespace kvcake {

Result<EmulatedProfile> ParseEmulatedProfile(const nlohmann::json& json,
                                             const std::string& source) {
  constexpr double kSecondsMax = 1e6;
  const JsonField fields(json, source);
  if (!json.is_object()) return fields.Bad("a profile is a JSON object");
  EmulatedProfile profile;
  ASSIGN_OR_RETURN(profile.name, fields["name"].Text(""));
  if (profile.name.empty()) return fields.Bad("name is missing");
  ASSIGN_OR_RETURN(profile.layers, fields["layers"].Int(1, kMaxLayers));
  ASSIGN_OR_RETURN(const int bytes,
                   fields["kv_bytes_per_token"].Int(4, std::numeric_limits<int>::max()));
  profile.kv_bytes_per_token = bytes;
  ASSIGN_OR_RETURN(profile.max_positions, fields["max_positions"].Int(1, kMaxPositions));
  ASSIGN_OR_RETURN(const std::string attention, fields["attention"].Text(""));
  if (attention != "causal" && attention != "dense") {
    return fields.Bad("attention must be \"causal\" or \"dense\"");
  }
  const bool dense = attention == "dense";
  profile.attention =
      dense ? EmulatedProfile::Attention::kDense : EmulatedProfile::Attention::kCausal;
  ASSIGN_OR_RETURN(profile.c0, fields["c0"].Number(0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.g, fields["g"].Number(0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.b, fields["b"].Number(0, kSecondsMax));
  ASSIGN_OR_RETURN(profile.a, fields["a"].Number(0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.floor, fields["floor"].Number(0, kSecondsMax, 0.0));
  ASSIGN_OR_RETURN(profile.link_latency_s, fields["link_latency_s"].Number(0, kSecondsMax, 0.0));
  if (dense ? profile.g > 0 : profile.floor > 0) {
    return fields.Bad(dense ? "g belongs to causal attention" : "floor belongs to dense attention");
  }
  if (profile.SecondsFor(0, 1) <= 0) return fields.Bad("compute takes no time: set b");
  return profile;
}

Result<EmulatedProfile> LoadEmulatedProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  return ParseEmulatedProfile(json, path);
}

}  // namespace kvcake
