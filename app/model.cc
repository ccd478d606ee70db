// kvcake model: make and describe model directories.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "model/synth.h"
#include "model/transformer.h"

namespace kvcake {
namespace {

struct ModelFlags {
  std::string dir, arch;
  ConfigOptions config;
  SynthShape shape;
  uint64_t seed = 1;
  int chunk_tokens = 128;
  bool json = false;
};

Status Synth(const ModelFlags& flags) {
  RETURN_IF_ERROR(
      WriteSynthModel(flags.arch, flags.dir, {.shape = flags.shape, .seed = flags.seed}));
  fmt::print("wrote random weights in the shape of {} to {}\n", flags.arch, flags.dir);
  return {};
}

// How attention knows positions, in words: people look here when a long prompt goes wrong.
std::string Positions(const ModelConfig& config) {
  if (config.position == PositionKind::kAlibi) return "alibi";
  const RopeConfig& rope = config.rope;
  std::string text = fmt::format("rope, theta {}", rope.theta);
  if (rope.kind == RopeConfig::Kind::kLinear)
    text += fmt::format(", linear factor {}", rope.factor);
  if (rope.kind == RopeConfig::Kind::kLlama3) {
    text += fmt::format(", llama3 factor {} ({} to {}, original context {})", rope.factor,
                        rope.low_freq_factor, rope.high_freq_factor, rope.original_max_positions);
  }
  if (rope.kind == RopeConfig::Kind::kYarn) {
    text += fmt::format(", yarn factor {} ({} to {}, original context {}, attention factor {:.4f})",
                        rope.factor, rope.beta_fast, rope.beta_slow, rope.original_max_positions,
                        rope.attention_factor);
  }
  return text;
}

Status Info(const ModelFlags& flags) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(flags.dir, flags.config));
  const KvLayout layout = TransformerModel::LayoutFor(config, flags.chunk_tokens);
  nlohmann::ordered_json json = {{"family", config.family},
                                 {"layers", config.layers},
                                 {"hidden_size", config.hidden_size},
                                 {"intermediate_size", config.intermediate_size},
                                 {"heads", config.heads},
                                 {"kv_heads", config.kv_heads},
                                 {"head_dim", config.head_dim},
                                 {"vocab_size", config.vocab_size},
                                 {"context", config.max_positions},
                                 {"parameters", config.parameters()},
                                 {"kv_bytes_per_token", layout.bytes_per_token()},
                                 {"chunk_bytes", layout.page_bytes()}};
  if (config.experts.count > 0) {
    json["experts"] = config.experts.count;
    json["experts_per_token"] = config.experts.per_token;
    json["active_parameters"] = config.active_parameters();
  }
  json["positions"] = Positions(config);
  json["tie_embeddings"] = config.tie_embeddings;
  json["bos_token"] =
      config.bos_token < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(config.bos_token);
  json["eos_tokens"] = config.eos_tokens;
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  for (const auto& [name, value] : json.items()) fmt::print("{:<20} {}\n", name, value.dump());
  return {};
}

}  // namespace

void AddModelCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ModelFlags>();
  CLI::App* model = app.add_subcommand("model", "make and describe model directories");
  model->require_subcommand(1);
  CLI::App* synth =
      model->add_subcommand("synth", "write random weights of a published shape, to measure with");
  synth->add_option("--arch", flags->arch, "the shape")
      ->required()
      ->check(CLI::IsMember(SynthArchNames()));
  synth->add_option("--out", flags->dir, "an empty or new directory")->required();
  const auto change = [&](const char* name, int* value, const char* what) {
    synth->add_option(name, *value, fmt::format("instead of the shape's own {}", what))
        ->check(CLI::Range(1, 1 << 30));
  };
  change("--layers", &flags->shape.layers, "layers");
  change("--hidden-size", &flags->shape.hidden_size, "hidden size");
  change("--intermediate-size", &flags->shape.intermediate_size, "size of the MLP");
  change("--heads", &flags->shape.heads, "attention heads");
  change("--kv-heads", &flags->shape.kv_heads, "key-value heads");
  change("--head-dim", &flags->shape.head_dim, "head size");
  change("--vocab-size", &flags->shape.vocab_size, "vocabulary");
  change("--context", &flags->shape.context, "context");
  synth->add_option("--seed", flags->seed, "the same seed gives the same bytes")
      ->check(Natural())
      ->capture_default_str();
  RunWhenChosen(synth, Synth, flags, exit_code);

  CLI::App* info = model->add_subcommand("info", "shape, parameters and KV bytes per token");
  info->add_option("dir", flags->dir, "model directory")->required();
  AddModelConfigFlags(*info, &flags->config);
  AddChunkTokensFlag(*info, &flags->chunk_tokens, "for the size of a chunk");
  info->add_flag("--json", flags->json, "print JSON");
  RunWhenChosen(info, Info, flags, exit_code);
}

}  // namespace kvcake
