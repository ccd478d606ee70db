// RoPE in a config.json: the older spelling (`rope_scaling` and `rope_theta`) and the newer
// (`rope_parameters`).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/json_field.h"
#include "model/config.h"

namespace kvcake {

// As Hugging Face transformers reads them: rope_scaling goes before rope_parameters, its fields
// before those beside it. Scalings that kvcake does not compute are refused with the reason.
Result<RopeConfig> ReadRope(const JsonField& fields, int max_position_embeddings,
                            double theta_absent);
// The older spelling, which every version reads: sets `rope_theta` and `rope_scaling`.
void WriteRope(const RopeConfig& rope, nlohmann::json* config);

}  // namespace kvcake
