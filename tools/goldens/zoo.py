"""The tiny models: every family that kvcake runs, spelt as its configurations are in the wild."""
from dataclasses import dataclass

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MISTRAL = {
    **LLAMA,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
QWEN2 = {
    **LLAMA,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "max_window_layers": 1,
    "tie_word_embeddings": True,
}
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 2,
    "tie_word_embeddings": True,
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **MISTRAL,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 5,
    "rope_theta": 1000000.0,
    "sliding_window": None,
}
FALCON = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "bias": False,
    "bos_token_id": 11,
    "eos_token_id": 11,
    "hidden_dropout": 0.0,
    "hidden_size": 64,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "parallel_attn": True,
    "vocab_size": 128,
}


@dataclass
class TinyModel:
    family: str
    config: dict
    dtype: str = "bfloat16"
    files: int = 1
    sharp: float = 1.4  # scale of queries and keys: the larger, the more positions matter
    rewrite: bool = False  # let transformers write config.json, in its newest spelling
    extra: tuple = ()  # tensors in older checkpoints that nobody reads


MODELS = {
    # Llama 1: no grouped heads, no theta; its files carry RoPE's frequencies.
    "llama1_f16": TinyModel("Llama 1", LLAMA, "float16", extra=("inv_freq",)),
    "llama1_mqa_bf16": TinyModel(
        "Llama 1", {**LLAMA, "num_hidden_layers": 3, "num_key_value_heads": 1}
    ),
    # LongAlpaca.
    "llama2_linear_f16_sharded": TinyModel(
        "Llama 2",
        {
            **LLAMA,
            "num_key_value_heads": 4,
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "tie_word_embeddings": False,
        },
        "float16",
        files=3,
    ),
    "llama2_linear_new_f32": TinyModel(
        "Llama 2",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        },
        "float32",
    ),
    "llama31_f32_sharded": TinyModel(
        "Llama 3.1",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "rope_theta": 500000.0,
            "rope_scaling": {**LLAMA3_ROPE, "rope_type": "llama3"},
            "eos_token_id": [2, 3, 4],
            "tie_word_embeddings": False,
        },
        "float32",
        files=3,
    ),
    "llama32_tied_bf16_sharded": TinyModel(
        "Llama 3.2",
        {
            **LLAMA,
            "head_dim": 16,
            "num_key_value_heads": 1,
            "rope_theta": 500000.0,
            "rope_scaling": {**LLAMA3_ROPE, "rope_type": "llama3", "factor": 32.0},
            "tie_word_embeddings": True,
        },
        files=2,
        sharp=0.9,
        rewrite=True,
    ),
    "llama_odd_sizes_bf16": TinyModel(
        "Llama 3.2",
        {
            **LLAMA,
            "vocab_size": 139,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "rope_scaling": {**LLAMA3_ROPE, "type": "llama3"},
            "tie_word_embeddings": True,
        },
        sharp=0.95,
    ),
    "mistral_bf16": TinyModel(
        "Mistral", {**MISTRAL, "head_dim": 32, "sliding_window": None}),
    # A window no smaller than the context hides nothing.
    "mistral_window_f16_sharded": TinyModel(
        "Mistral", {**MISTRAL, "sliding_window": 4096}, "float16", files=2
    ),
    "qwen2_bf16": TinyModel("Qwen2", QWEN2, sharp=0.95),
    "qwen2_untied_f32_sharded": TinyModel(
        "Qwen2.5", {**QWEN2, "tie_word_embeddings": False}, "float32", files=2, rewrite=True
    ),
    "qwen3_bf16": TinyModel("Qwen3", QWEN3, sharp=0.95),
    "qwen3_untied_f16_sharded": TinyModel(
        "Qwen3",
        {**QWEN3, "tie_word_embeddings": False, "head_dim": 16},
        "float16",
        files=2,
        rewrite=True,
    ),
    # As Qwen's model cards say to reach beyond the original context.
    "qwen3_yarn_bf16": TinyModel(
        "Qwen3, YaRN",
        {
            **QWEN3,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 128,
            },
        },
        sharp=0.8,
    ),
    "llama_yarn_f16": TinyModel(
        "Llama, YaRN",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
                "attention_factor": 1.25,
            },
        },
        "float16",
        sharp=1.1,
        rewrite=True,
    ),
    "qwen3_moe_bf16": TinyModel("Qwen3 MoE", QWEN3_MOE, sharp=0.95),
    "qwen3_moe_plain_bf16_sharded": TinyModel(
        "Qwen3 MoE",
        {**QWEN3_MOE, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False},
        files=2,
        sharp=1.1,
        rewrite=True,
    ),
    "mixtral_bf16": TinyModel("Mixtral", MIXTRAL, sharp=1.15),
    # An odd number of heads, as in Falcon-7B; what is absent has Falcon's defaults.
    "falcon_7b_bf16": TinyModel(
        "Falcon 7B", {**FALCON, "hidden_size": 48, "num_attention_heads": 3}, extra=("lm_head",)
    ),
    # RefinedWeb-1B: ALiBi, here with heads that are no power of two.
    "falcon_rw_bf16": TinyModel(
        "RefinedWeb 1B",
        {
            **FALCON,
            "alibi": True,
            "bias": True,
            "hidden_size": 48,
            "multi_query": False,
            "num_attention_heads": 3,
            "parallel_attn": False,
        },
        sharp=1.3,
    ),
    "falcon_rw_f16_sharded": TinyModel(
        "RefinedWeb 1B",
        {
            **FALCON,
            "alibi": True,
            "bias": True,
            "ffn_hidden_size": 128,
            "multi_query": False,
            "parallel_attn": False,
        },
        "float16",
        files=2,
    ),
    "falcon_alibi_mqa_f32": TinyModel(
        "Falcon, ALiBi, parallel",
        {**FALCON, "alibi": True, "bias": True, "ffn_hidden_size": 128},
        "float32",
    ),
    "falcon_40b_bf16_sharded": TinyModel(
        "Falcon 40B",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "ffn_hidden_size": 128,
        },
        files=3,
    ),
    "falcon_11b_f16": TinyModel(
        "Falcon 11B",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "activation": "gelu",
            "ffn_hidden_size": 128,
            "max_position_embeddings": 1024,
            "rope_scaling": None,
            "rope_theta": 500042.0,
            "tie_word_embeddings": False,
        },
        "float16",
        rewrite=True,
    ),
}
