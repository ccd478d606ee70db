"""Writes a trained network as a Hugging Face model directory."""

import json
import os

import torch
from safetensors.torch import save

from demo_model.corpus import EOT

MAX_POSITION = 8448  # a little beyond 8,192, so that an answer fits behind an 8K prompt


PARTS = {
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def llama_name(name):
    if name.startswith("blocks."):
        _, i, part, _ = name.split(".")
        return f"model.layers.{i}.{PARTS[part]}.weight"
    return {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}[name]


def llama_config(shape, vocab):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": MAX_POSITION,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": shape.init_std,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": EOT,
    "eos_token": EOT,
    "add_bos_token": False,
    "model_max_length": MAX_POSITION,
    "clean_up_tokenization_spaces": False,
}
GENERATION_CONFIG = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": False}


def export(weights, shape, tokenizer_path, folder):
    """Writes weights {name: tensor} in bf16, and the tokenizer; replaces each file as a whole."""
    os.makedirs(folder, exist_ok=True)

    def write(name, data):
        with open(f"{folder}/{name}.new", "wb") as f:
            f.write(data)
        os.replace(f"{folder}/{name}.new", f"{folder}/{name}")

    def write_json(name, value):
        write(name, (json.dumps(value, indent=2) + "\n").encode())

    tensors = {
        llama_name(n): t.detach().to("cpu", torch.bfloat16).contiguous() for n, t in weights.items()
    }
    write("model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_json("config.json", llama_config(shape, weights["embed.weight"].shape[0]))
    write_json("generation_config.json", GENERATION_CONFIG)
    write_json("tokenizer_config.json", TOKENIZER_CONFIG)
    with open(tokenizer_path, "rb") as f:
        write("tokenizer.json", f.read())
