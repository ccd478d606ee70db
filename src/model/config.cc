#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/json_file.h"
#include "model/family.h"
#include "model/model_dir.h"
#include "model/tensor_list.h"
#include "ops/attention.h"

namespace kvcake {

namespace {

using nlohmann::json;

// The first Llamas were uploaded as LLaMAForCausalLM.
bool Is(const json& architectures, const Family& family) {
  if (!architectures.is_array() || architectures.size() != 1 || !architectures[0].is_string()) {
    return false;
  }
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  const auto& name = architectures[0].get_ref<const std::string&>();
  return std::equal(name.begin(), name.end(), family.architecture.begin(),
                    family.architecture.end(),
                    [&](char a, char b) { return lower(a) == lower(b); });
}

// By model_type, or by `architectures` where it is absent and they are clear.
Result<const Family*> FindFamily(const JsonField& fields) {
  ASSIGN_OR_RETURN(const std::string type, fields["model_type"].Text("", kNameBytes));
  const json& architectures = fields["architectures"].value();
  const bool listed =
      !architectures.is_null() && !(architectures.is_array() && architectures.empty());
  if (type.empty() && !listed) {
    return fields.Bad("neither architectures nor model_type is there");
  }
  const Family* found = nullptr;
  std::vector<std::string_view> types, names;
  for (const Family& family : Families()) {
    types.push_back(family.model_type);
    if (names.empty() || names.back() != family.architecture) names.push_back(family.architecture);
    if (type.empty() ? Is(architectures, family) : type == family.model_type) {
      if (found) return fields.Bad("model_type is missing");
      found = &family;
    }
  }
  if (!found && !type.empty()) {
    return fields.Unsupported(
        fmt::format("model_type is {}; kvcake runs {}", type, fmt::join(types, ", ")));
  }
  // Falcon goes by two names.
  bool known = !listed;
  for (const Family& family : Families()) {
    known = known || (found && family.read == found->read && Is(architectures, family));
  }
  if (known) return found;
  return fields.Unsupported(fmt::format("architectures is {}; kvcake runs {}",
                                        JsonText(architectures), fmt::join(names, ", ")));
}

// Weights of another kind than the shape lets expect.
Status CheckNotQuantized(const JsonField& fields) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    const JsonField object = fields[name];
    if (object.null()) continue;
    std::string method = JsonText(object.value());
    if (object.value().is_object()) {
      ASSIGN_OR_RETURN(const std::string named, object["quant_method"].Text("", kNameBytes));
      if (!named.empty()) method = named;
    }
    return fields.Unsupported(
        fmt::format("{} says that the weights are quantised ({}); kvcake runs bf16, f16 and f32 "
                    "weights only: use the model's original, unquantised files",
                    name, method));
  }
  return {};
}

// A model that was made to embed texts may see what follows a token, too.
Status CheckCausal(const JsonField& fields) {
  ASSIGN_OR_RETURN(const bool causal, fields["is_causal"].Flag(true));
  if (causal) return {};
  return fields.Unsupported("is_causal is false; kvcake computes causal attention only");
}

Result<std::vector<int32_t>> ReadEos(const JsonField& fields, int vocab_size) {
  std::vector<int32_t> tokens;
  const JsonField field = fields["eos_token_id"];
  if (field.null()) return tokens;
  const bool list = field.value().is_array();
  for (size_t i = 0; i < (list ? field.value().size() : 1); ++i) {
    // Some published configurations say -1 or an id beyond the vocabulary for "none".
    ASSIGN_OR_RETURN(const int id,
                     (list ? field[i] : field).Int(-1, std::numeric_limits<int>::max()));
    if (id >= 0 && id < vocab_size) tokens.push_back(id);
  }
  return tokens;
}

Status ReadTokens(const JsonField& fields, const FamilyDefaults& defaults, ModelConfig* config) {
  // Absent, they are what Hugging Face has by default; null, there are none.
  const int bos = IsNull(fields["bos_token_id"]) ? -1 : defaults.bos_token;
  ASSIGN_OR_RETURN(config->bos_token,
                   fields["bos_token_id"].Int(-1, std::numeric_limits<int>::max(), bos));
  if (config->bos_token >= config->vocab_size) config->bos_token = -1;
  ASSIGN_OR_RETURN(config->eos_tokens, ReadEos(fields, config->vocab_size));
  if (fields["eos_token_id"].absent() && defaults.eos_token >= 0 &&
      defaults.eos_token < config->vocab_size) {
    config->eos_tokens = {defaults.eos_token};
  }
  return {};
}

Result<ModelConfig> ReadModelConfig(const json& object, const std::string& path) {
  const JsonField fields(object, path);
  ASSIGN_OR_RETURN(const Family* family, FindFamily(fields));
  RETURN_IF_ERROR(CheckNotQuantized(fields));
  RETURN_IF_ERROR(CheckCausal(fields));
  ModelConfig config;
  config.family = family->model_type;
  RETURN_IF_ERROR(family->read(fields, family->defaults, &config));
  RETURN_IF_ERROR(ReadTokens(fields, family->defaults, &config));
  return config;
}

Result<json> ReadObject(const std::string& path) {
  ASSIGN_OR_RETURN(json object, ReadJsonFile(path));
  if (object.is_object()) return object;
  return Fail(ErrorCode::kInvalidArgument, "{}: not a JSON object", path);
}

constexpr char kOverrides[] = "--hf-overrides";

Result<json> ReadOverrides(const std::string& text) {
  if (text.empty()) return json::object();
  ASSIGN_OR_RETURN(json object, ParseJson(text, kOverrides));
  if (object.is_object()) return object;
  return Fail(ErrorCode::kInvalidArgument,
              "{}: not a JSON object, as {{\"max_position_embeddings\": 65536}}", kOverrides);
}

// A name that is misspelt would leave the model as it is, and nobody would know.
Status CheckOverridesAreOfUse(const json& object, const json& overrides, const ModelConfig& config,
                              const std::string& path) {
  for (const auto& [name, value] : overrides.items()) {
    if (object.contains(name) || value.is_null()) continue;
    json without = overrides;
    without.erase(name);
    json rest = object;
    rest.update(without);
    if (const auto same = ReadModelConfig(rest, path); same && *same == config) {
      return Fail(ErrorCode::kInvalidArgument,
                  "{}: {} is not in config.json, and changes nothing that kvcake reads: is it "
                  "spelt right?",
                  kOverrides, name);
    }
  }
  return {};
}

// kvcake computes full attention only, which is the same as far as the window reaches.
Status EndWithWindow(const std::string& path, bool within_window, ModelConfig* config) {
  if (config->sliding_window == 0) return {};
  if (!within_window) {
    return Fail(ErrorCode::kUnsupported,
                "{}: sliding_window is {}, smaller than the context of {}; kvcake computes full "
                "attention only: give --disable-sliding-window, or lower max_position_embeddings "
                "to {}, to run within the window",
                path, config->sliding_window, config->max_positions, config->sliding_window);
  }
  config->max_positions = std::exchange(config->sliding_window, 0);
  return {};
}

}  // namespace

int64_t ModelConfig::parameters() const {
  int64_t sum = 0;
  for (const TensorSpec& tensor : ListTensors(*this)) sum += tensor.elements();
  return sum;
}

int64_t ModelConfig::active_parameters() const {
  const int64_t matrices = mlp == MlpKind::kSwiGlu ? 3 : 2;
  return parameters() - matrices * hidden_size * intermediate_size * layers *
                            static_cast<int64_t>(experts.count - experts.per_token);
}

Status CheckRunnable(const ModelConfig& c, const std::string& source) {
  const auto require = [&](bool ok, const char* field, int value, std::string_view need) -> Status {
    if (ok) return {};
    return Fail(ErrorCode::kUnsupported, "{}: {} is {}, but kvcake's kernels need {}", source,
                field, value, need);
  };
  const auto sixteens = [](int size) { return size > 0 && size % 16 == 0; };
  RETURN_IF_ERROR(
      require(sixteens(c.hidden_size), "hidden_size", c.hidden_size, "a multiple of 16"));
  RETURN_IF_ERROR(require(sixteens(c.intermediate_size), "intermediate_size", c.intermediate_size,
                          "a multiple of 16"));
  RETURN_IF_ERROR(require(sixteens(c.head_dim) && c.head_dim <= kAttentionHeadDimMax, "head_dim",
                          c.head_dim,
                          fmt::format("a multiple of 16 up to {}", kAttentionHeadDimMax)));
  RETURN_IF_ERROR(require(
      c.kv_heads > 0 && c.heads > 0 && c.heads % c.kv_heads == 0 &&
          c.heads / c.kv_heads <= kAttentionGroupMax,
      "num_attention_heads", c.heads,
      fmt::format("1 to {} for each of the {} key-value heads", kAttentionGroupMax, c.kv_heads)));
  RETURN_IF_ERROR(require(c.layers > 0, "num_hidden_layers", c.layers, "a layer"));
  return require(c.vocab_size > 0, "vocab_size", c.vocab_size, "a token");
}

Result<ModelConfig> LoadModelConfig(const std::string& dir, const ConfigOptions& options) {
  RETURN_IF_ERROR(CheckModelDir(dir));
  std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(const json object, ReadObject(path));
  ASSIGN_OR_RETURN(const json overrides, ReadOverrides(options.overrides));
  if (!overrides.empty()) path += fmt::format(" with {}", kOverrides);
  json overridden = object;
  overridden.update(overrides);
  ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(overridden, path));
  RETURN_IF_ERROR(CheckOverridesAreOfUse(object, overrides, config, path));
  RETURN_IF_ERROR(EndWithWindow(path, options.within_window, &config));
  RETURN_IF_ERROR(CheckRunnable(config, path));

  const std::string generation_path = dir + "/generation_config.json";
  const Result<json> generation = ReadObject(generation_path);
  if (!generation) {
    if (generation.error().code == ErrorCode::kNotFound) return config;
    return tl::unexpected(generation.error());
  }
  const JsonField generation_fields(*generation, generation_path);
  if (!generation_fields["eos_token_id"].null() && !overrides.contains("eos_token_id")) {
    ASSIGN_OR_RETURN(config.eos_tokens, ReadEos(generation_fields, config.vocab_size));
  }
  return config;
}

Result<std::string> ModelConfigJson(const ModelConfig& config) {
  const auto family = std::find_if(Families().begin(), Families().end(), [&](const Family& row) {
    return row.model_type == config.family;
  });
  CHECK(family != Families().end());
  json object;
  family->write(config, &object);
  object["architectures"] = {family->architecture};
  object["model_type"] = family->model_type;
  object["torch_dtype"] = "bfloat16";
  object["bos_token_id"] = config.bos_token < 0 ? json() : json(config.bos_token);
  object["eos_token_id"] = config.eos_tokens;
  ASSIGN_OR_RETURN(const ModelConfig read, ReadModelConfig(object, "config.json"));
  if (read != config) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "no config.json of the family {} says this shape: it sets the head size, the number of "
        "key-value heads, the biases or the context otherwise",
        config.family);
  }
  return object.dump(2);
}

}  // namespace kvcake
