// The families of models: what the config.json of each says, translated to and from ModelConfig.
// Adding one is a row in family.cc (docs/architecture.md).
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"
#include "model/config_fields.h"

namespace kvcake {

// Hugging Face's defaults for fields that a family's config.json may leave out.
struct FamilyDefaults {
  int kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;  // 0: hidden_size / heads
  int max_positions = 0;
  int32_t bos_token = -1;
  int32_t eos_token = -1;
  bool tie_embeddings = false;
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // the one in `architectures`
  FamilyDefaults defaults;
  // Fills in all but the tokens. The fields' source names the file.
  Status (*read)(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config);
  // Adds what `read` reads.
  void (*write)(const ModelConfig& config, nlohmann::json* json);
};

std::span<const Family> Families();

// ---- shared by families ----

// heads a multiple of kv_heads, head_dim even and not too large: names the fields otherwise.
Status CheckHeads(const Fields& fields, const ModelConfig& config, const char* kv_heads_name);
// From and to config.json's max_position_embeddings, which linear RoPE stretches by its factor.
void SetContext(int max_position_embeddings, ModelConfig* config);
int MaxPositionEmbeddings(const ModelConfig& config);

// What all Falcons have, and the tensor names that go with config->block.
void DescribeFalcon(ModelConfig* config);
// Falcon, in its older and newer spellings (family_falcon.cc).
Status ReadFalcon(const Fields& fields, const FamilyDefaults& defaults, ModelConfig* config);
void WriteFalcon(const ModelConfig& config, nlohmann::json* json);

}  // namespace kvcake
