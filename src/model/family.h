// The families of models: what the config.json of each says, translated to and from ModelConfig.
// Adding one is a row in family.cc (docs/architecture.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json_field.h"
#include "model/config.h"
#include "model/config_limits.h"

namespace kvcake {

// Hugging Face's defaults for fields that a family's config.json may leave out.
struct FamilyDefaults {
  int kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;  // 0: hidden_size / heads
  int max_positions = 0;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  int32_t bos_token = -1;
  int32_t eos_token = -1;
  bool tie_embeddings = false;
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // the one in `architectures`
  FamilyDefaults defaults;
  // Fills in all but the tokens.
  Status (*read)(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config);
  // Adds what `read` reads.
  void (*write)(const ModelConfig& config, nlohmann::json* json);
};

std::span<const Family> Families();

// ---- shared by families ----

constexpr size_t kNameBytes = 200;  // of names, which errors show whole

// Not absent, but null: some fields mean another thing then.
inline bool IsNull(const JsonField& field) { return field.null() && !field.absent(); }
// A value of any kind as text, short enough for a message.
std::string JsonText(const nlohmann::json& value);

// heads a multiple of kv_heads, head_dim even and not too large: names the fields otherwise.
Status CheckHeads(const JsonField& fields, const ModelConfig& config, const char* kv_heads_name);
// From and to config.json's max_position_embeddings, which linear RoPE stretches by its factor, and
// yarn what it says of the original context.
void SetContext(int max_position_embeddings, ModelConfig* config);
int MaxPositionEmbeddings(const ModelConfig& config);

// What the tensors of experts are called.
void NameQwenExperts(TensorNames* names);
void NameMixtralExperts(TensorNames* names);

// What all Falcons have, and the tensor names that go with config->block.
void DescribeFalcon(ModelConfig* config);
// Falcon, in its older and newer spellings (family_falcon.cc).
Status ReadFalcon(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config);
void WriteFalcon(const ModelConfig& config, nlohmann::json* json);

}  // namespace kvcake
