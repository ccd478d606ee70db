"""Tiny random models, and transformers' losses on them."""
import hashlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from goldens.files import write_json
from goldens.reference import Reference, mean_difference, replaced
from goldens.zoo import MODELS

PROMPTS = (1, 127, 128, 129, 700)
DECODE = 16
CLEAR = 0.5  # a greedy choice with a smaller lead may fall either way by rounding

# Mean |difference| of a loss that golden_test.cc allows.
F32_TOLERANCE = 0.01
BF16_TOLERANCE = 0.03
# What a mistake must change the losses that it touches by, in the mean.
PLAIN = 4 * BF16_TOLERANCE
SUBTLE = 3 * F32_TOLERANCE  # one token, or one position


# ---- weights ----


def random_tensor(rng, shape, deviation, center=0.0):
    """Uniform, from integers only: the same bits on every machine."""
    values = rng.integers(-(2**20), 2**20, size=shape) * (deviation * 3**0.5 / 2**20) + center
    return torch.from_numpy(values.astype(np.float32))


def random_weights(model, tiny, rng):
    """By Hugging Face name, float32. A tied head is absent."""
    tied = model.config.tie_word_embeddings
    weights = {}
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        unit = shape[-1] ** -0.5
        part = name.split(".")[-2]
        deviation, center = unit, 0.0
        if part in ("q_norm", "k_norm"):
            deviation, center = 0.25 * tiny.sharp, tiny.sharp
        elif "norm" in part or part.startswith("ln_"):
            deviation, center = 0.25, 1.0
            if name.endswith("bias"):
                center = 0.0
        elif name.endswith("bias"):
            deviation = 0.25
        elif part in ("embed_tokens", "word_embeddings"):
            deviation = 1.5 * unit if tied else 1.0
        elif part == "lm_head":
            deviation = 1.5 * unit
        elif part in ("q_proj", "k_proj", "query_key_value"):
            deviation = tiny.sharp * unit
        weights[name] = random_tensor(rng, shape, deviation, center)
    return weights


# Where checkpoints have experts, and what they call their gate, up and down projections.
EXPERTS = {
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
}


def published(weights, model_type):
    """The tensors as checkpoints have them: those of experts, which transformers joins, apart."""
    if model_type not in EXPERTS:
        return weights
    place, names = EXPERTS[model_type]
    apart = {}
    for name, tensor in weights.items():
        name = name.replace(".mlp.", f".{place}.")
        if name.endswith(".experts.gate_up_proj"):
            parts = zip(names[:2], tensor.chunk(2, dim=1), strict=True)
        elif name.endswith(".experts.down_proj"):
            parts = [(names[2], tensor)]
        else:
            apart[name] = tensor
            continue
        prefix = name.rsplit(".", 1)[0]
        for part, of_all in parts:
            for i, expert in enumerate(of_all):
                apart[f"{prefix}.{i}.{part}.weight"] = expert.contiguous()
    return apart


def save_weights(directory, weights, tiny):
    stored = {name: tensor.to(getattr(torch, tiny.dtype)) for name, tensor in weights.items()}
    if tiny.files == 1:
        save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(stored)
    weight_map = {}
    for i in range(tiny.files):
        shard = f"model-{i + 1:05}-of-{tiny.files:05}.safetensors"
        part = names[i :: tiny.files]
        save_file({n: stored[n] for n in part}, directory / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, shard))
    index = {"metadata": {}, "weight_map": weight_map}
    write_json(directory / "model.safetensors.index.json", index, indent=1)


def write_model(directory, tiny, rng):
    write_json(directory / "config.json", {**tiny.config, "torch_dtype": tiny.dtype}, indent=1)
    config = AutoConfig.from_pretrained(directory)
    if tiny.rewrite:
        config.save_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config)
    weights = random_weights(model, tiny, rng)
    if "inv_freq" in tiny.extra:
        for i in range(config.num_hidden_layers):
            name = f"model.layers.{i}.self_attn.rotary_emb.inv_freq"
            weights[name] = model.base_model.rotary_emb.inv_freq.clone()
    if "lm_head" in tiny.extra:
        weights["lm_head.weight"] = model.base_model.get_input_embeddings().weight * 0
        weights["lm_head.weight"] += weights["transformer.word_embeddings.weight"]
    save_weights(directory, published(weights, config.model_type), tiny)
    for path in directory.iterdir():
        path.chmod(0o644)


# ---- what a mistake does ----


def mistakes(reference):
    """(name, context in which it is made, first loss that it touches, how much it must show)."""

    def late(positions):
        return torch.where(positions >= 128, positions + 1, positions)

    if getattr(reference.model.config, "alibi", False):
        yield "no ALiBi", reference.alibi(lambda a: a * 0), 16, PLAIN
        yield "ALiBi of another head", reference.alibi(lambda a: a.roll(1, 0)), 16, PLAIN
        restart = reference.alibi(lambda a: a[:, :, torch.arange(a.shape[-1]) % 128])
        yield "positions restart", restart, 256, PLAIN
        return
    pairs = reference.rotary.inv_freq.shape[0]
    theta = 2.0 ** -(torch.arange(pairs) / pairs)
    yield "theta doubled", reference.frequencies(lambda f: f * theta), 16, PLAIN
    if reference.rotary.rope_type == "default":
        yield "RoPE scaled", reference.frequencies(lambda f: f / 1.25), 16, PLAIN
    else:
        default = reference.rotary.compute_default_rope_parameters(reference.model.config)[0]
        yield "RoPE not scaled", reference.frequencies(lambda _: default), 16, PLAIN
    if reference.rotary.attention_scaling != 1:
        yield "no attention factor", reference.not_scaled(), 16, SUBTLE
    for i, router in enumerate(reference.routers):
        yield f"an expert less at {i}", replaced(router, "top_k", router.top_k - 1), 16, SUBTLE
        others = router.weight.data.roll(1, 0)
        yield f"other experts at {i}", replaced(router.weight, "data", others), 16, PLAIN
    yield "positions restart", reference.positions(lambda p: p % 128), 256, PLAIN
    yield "one position late", reference.positions(late), 128, SUBTLE


def check_sensitivity(name, reference, ids, losses, vocab):
    """Mistakes must show in the losses, and the rounding that kvcake does must not."""
    shown = {}

    def measure(what, tokens, first, last):
        shown[what] = mean_difference(losses[first:last], reference.losses(tokens)[first:last])
        return shown[what]

    with reference.bf16_kv():
        kv = measure("KV in bf16", ids, 0, None)
        with reference.bf16_matrices():
            f32_path = measure("and matrices", ids, 0, None)
            with reference.bf16_activations():
                bf16_path = measure("and activations", ids, 0, None)
    hidden = []
    for mistake, context, first, least in mistakes(reference):
        with context:
            if measure(mistake, ids, first, None) < least:
                hidden.append(mistake)
    # The first chunk in another order, and one of its tokens replaced.
    swapped = ids[64:128] + ids[:64] + ids[128:]
    if measure("chunk wrong", swapped, 128, 256) < PLAIN:
        hidden.append("chunk wrong")
    other = ids[:100] + [(ids[100] + 7) % vocab] + ids[101:]
    if measure("token wrong", other, 101, 133) < SUBTLE:
        hidden.append("token wrong")

    numbers = ", ".join(f"{what} {value:.4f}" for what, value in shown.items())
    print(f"{name:27} mean loss {sum(losses) / len(losses):.2f}; {numbers}", flush=True)
    assert not hidden, f"{name}: mistakes that would hardly show: {hidden}"
    assert kv <= F32_TOLERANCE / 3, f"{name}: attention is too sharp for the tolerance"
    assert f32_path <= 0.8 * F32_TOLERANCE, f"{name}: weights too sensitive for the tolerance"
    assert bf16_path <= BF16_TOLERANCE / 2, f"{name}: too sharp for the tolerance of bf16 paths"


def make_model(directory, name, tiny):
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    rng = np.random.default_rng(seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_model(directory, tiny, rng)
    reference = Reference(directory)
    vocab = tiny.config["vocab_size"]
    cases = []
    for size in PROMPTS:
        prompt = rng.integers(0, vocab, size=size).tolist()
        ids, lead = reference.decode(prompt, DECODE)
        assert lead > 1e-4, f"{name}: a tie; choose another seed"
        logits = reference.logits(ids)
        top = logits[size - 1 :].topk(2)
        clear = (top.values[:, 0] - top.values[:, 1]) > CLEAR
        losses = reference.losses(ids)
        cases.append(
            {
                "prompt": size,
                "ids": ids,
                "losses": [round(loss, 5) for loss in losses],
                # After the prompt and each decoded token; -1 where the choice is close.
                "greedy": torch.where(clear, top.indices[:, 0], -1).tolist(),
            }
        )
    check_sensitivity(name, reference, ids, losses, vocab)
    golden = {"family": tiny.family, "dtype": tiny.dtype, "cases": cases}
    write_json(directory / "golden.json", golden, separators=(",", ":"))


def make(out_dir):
    """OUT/models/NAME: config.json, weights, and golden.json."""
    for name, tiny in MODELS.items():
        make_model(out_dir / "models" / name, name, tiny)
