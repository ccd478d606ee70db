#include "model/config_rope.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/family.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;

tl::unexpected<Error> RefuseScaling(const JsonField& fields, const std::string& type) {
  if (type == "dynamic" || type == "longrope" || type == "su") {
    return fields.Unsupported(
        fmt::format("RoPE scaling {}: its angles depend on how long the prompt is, so a KV cache "
                    "cannot be reused across lengths; use the model without this scaling",
                    type));
  }
  return fields.Unsupported(
      fmt::format("RoPE scaling {}; kvcake computes default, linear, llama3 and yarn", type));
}

Status ReadLlama3(const JsonField& fields, RopeConfig* rope) {
  ASSIGN_OR_RETURN(rope->low_freq_factor, fields["low_freq_factor"].Number(1e-6, kMaxFactor));
  ASSIGN_OR_RETURN(rope->high_freq_factor, fields["high_freq_factor"].Number(1e-6, kMaxFactor));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return fields["high_freq_factor"].Bad(
        fmt::format("is {}; it must be greater than low_freq_factor ({})", rope->high_freq_factor,
                    rope->low_freq_factor));
  }
  return {};
}

// What attention gains where a context is `factor` times as long (YaRN, section 3.4).
double AttentionFactor(double factor, double scale) { return 0.1 * scale * std::log(factor) + 1; }

Status ReadYarn(const JsonField& fields, RopeConfig* rope) {
  if (rope->theta <= 1) {
    return fields.Bad("cannot be yarn where rope_theta is 1: all pairs turn equally often");
  }
  // Hugging Face transformers takes zero for absent; what is smaller than a millionth is zero here.
  const auto number = [&](const char* name, double absent) -> Result<double> {
    ASSIGN_OR_RETURN(const double value, fields[name].Number(0, kMaxFactor, absent));
    return value < 1e-6 ? absent : value;
  };
  ASSIGN_OR_RETURN(rope->beta_fast, number("beta_fast", 32));
  ASSIGN_OR_RETURN(rope->beta_slow, number("beta_slow", 1));
  if (rope->beta_fast < rope->beta_slow) {
    return fields["beta_fast"].Bad(
        fmt::format("is {}; it must be at least beta_slow ({})", rope->beta_fast, rope->beta_slow));
  }
  ASSIGN_OR_RETURN(rope->truncate, fields["truncate"].Flag(true));
  ASSIGN_OR_RETURN(const double scale, number("mscale", 0));
  ASSIGN_OR_RETURN(const double scale_all, number("mscale_all_dim", 0));
  const double computed =
      scale != 0 && scale_all != 0
          ? AttentionFactor(rope->factor, scale) / AttentionFactor(rope->factor, scale_all)
          : AttentionFactor(rope->factor, 1);
  ASSIGN_OR_RETURN(rope->attention_factor,
                   fields["attention_factor"].Number(1e-6, kMaxFactor, computed));
  return {};
}

Status ReadScaling(const JsonField& top, const JsonField& fields, int max_position_embeddings,
                   RopeConfig* rope) {
  ASSIGN_OR_RETURN(std::string type, fields["rope_type"].Text("", kNameBytes));
  if (type.empty()) {
    ASSIGN_OR_RETURN(type, fields["type"].Text("", kNameBytes));
  }
  if (type.empty() || type == "default") return {};
  if (type != "linear" && type != "llama3" && type != "yarn") return RefuseScaling(fields, type);
  ASSIGN_OR_RETURN(rope->factor, fields["factor"].Number(1, kMaxFactor));
  rope->kind = RopeConfig::Kind::kLinear;
  if (type == "linear") return {};
  constexpr const char* kOriginal = "original_max_position_embeddings";
  ASSIGN_OR_RETURN(const int inner,
                   fields[kOriginal].Int(1, kMaxPositions, max_position_embeddings));
  ASSIGN_OR_RETURN(rope->original_max_positions, top[kOriginal].Int(1, kMaxPositions, inner));
  const bool llama3 = type == "llama3";
  rope->kind = llama3 ? RopeConfig::Kind::kLlama3 : RopeConfig::Kind::kYarn;
  return llama3 ? ReadLlama3(fields, rope) : ReadYarn(fields, rope);
}

Status CheckWhollyRotated(const JsonField& fields) {
  const JsonField field = fields["partial_rotary_factor"];
  ASSIGN_OR_RETURN(const double rotary, field.Number(0, 1, 1.0));
  if (rotary == 1) return {};
  return field.Unsupported(fmt::format("is {}; kvcake rotates whole heads only", rotary));
}

}  // namespace

Result<RopeConfig> ReadRope(const JsonField& fields, int max_position_embeddings,
                            double theta_absent) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, fields["rope_theta"].Number(1, 1e15, theta_absent));
  RETURN_IF_ERROR(CheckWhollyRotated(fields));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (fields[name].null()) continue;
    RETURN_IF_ERROR(fields[name].CheckObject());
    const JsonField inner = fields[name].AsRoot();
    if (inner.value().empty()) continue;
    for (const auto& [key, value] : inner.value().items()) {
      if (value.is_object()) {
        return inner.Unsupported(fmt::format("one RoPE for each kind of layer ({})", key));
      }
    }
    RETURN_IF_ERROR(CheckWhollyRotated(inner));
    ASSIGN_OR_RETURN(rope.theta, inner["rope_theta"].Number(1, 1e15, rope.theta));
    RETURN_IF_ERROR(ReadScaling(fields, inner, max_position_embeddings, &rope));
    break;
  }
  return rope;
}

void WriteRope(const RopeConfig& rope, json* config) {
  json scaling;
  if (rope.kind == RopeConfig::Kind::kLinear) {
    scaling = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.kind == RopeConfig::Kind::kLlama3) {
    scaling = {{"rope_type", "llama3"},
               {"factor", rope.factor},
               {"low_freq_factor", rope.low_freq_factor},
               {"high_freq_factor", rope.high_freq_factor},
               {"original_max_position_embeddings", rope.original_max_positions}};
  } else if (rope.kind == RopeConfig::Kind::kYarn) {
    scaling = {{"rope_type", "yarn"},
               {"factor", rope.factor},
               {"original_max_position_embeddings", rope.original_max_positions},
               {"beta_fast", rope.beta_fast},
               {"beta_slow", rope.beta_slow},
               {"truncate", rope.truncate},
               {"attention_factor", rope.attention_factor}};
  }
  (*config)["rope_theta"] = rope.theta;
  (*config)["rope_scaling"] = scaling;
}

}  // namespace kvcake
