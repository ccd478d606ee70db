#!/usr/bin/env python3
"""Makes tests/golden: what Hugging Face computes, for kvcake's tests to compare with.

    tools/make_goldens.py [models] [tokenizers]

models      tiny random Llama models, and transformers' per-token losses on them (float32, on the
            same weights rounded to bf16)
tokenizers  small tokenizers, and the ids that tokenizers makes of several hundred strings; also for
            models/demo, whose tokenizer is not copied

Needs torch, transformers, tokenizers, safetensors and numpy. To be run again whenever
models/demo/tokenizer.json changes; the results are committed.
"""
import argparse
import contextlib
import hashlib
import json
import random
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"

PROMPTS = (1, 127, 128, 129, 700)
DECODE = 16
F32_TOLERANCE = 0.01  # mean |difference| of a loss that golden_test.cc allows
BF16_TOLERANCE = 0.03

# name: what differs from the base, how weights are stored, how many files
BASE = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "mha_bf16": ({}, "bfloat16", 1),
    "gqa_linear_f16": (
        {
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "tie_word_embeddings": False,
        },
        "float16",
        1,
    ),
    "mqa_llama3_f32": ({"num_key_value_heads": 1, "rope_scaling": LLAMA3}, "float32", 1),
    "head_dim_bf16_sharded": (
        {
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        },
        "bfloat16",
        3,
    ),
    "odd_sizes_bf16": (
        {
            "vocab_size": 331,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "rope_scaling": LLAMA3,
        },
        "bfloat16",
        1,
    ),
}


def write_json(path, value, **kwargs):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, **kwargs)
    path.write_text(text + "\n", encoding="utf-8")


# ---- models ----


def random_weights(config, torch, generator):
    """By Hugging Face name, float32. Queries and keys are sharp enough that positions matter."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)

    def normal(rows, columns, deviation):
        return torch.randn(rows, columns, generator=generator) * deviation

    def norm():  # exact in every type that weights are stored in
        values = 1 + 0.25 * torch.randn(hidden, generator=generator)
        return values.clamp(0.25, 2).bfloat16().float()

    unit = hidden**-0.5
    sharp = (0.95 if config["tie_word_embeddings"] else 1.4) * unit
    weights = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, 1.0)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        weights[layer + "input_layernorm.weight"] = norm()
        weights[layer + "post_attention_layernorm.weight"] = norm()
        attention = layer + "self_attn."
        weights[attention + "q_proj.weight"] = normal(heads * head_dim, hidden, sharp)
        weights[attention + "k_proj.weight"] = normal(kv_heads * head_dim, hidden, sharp)
        weights[attention + "v_proj.weight"] = normal(kv_heads * head_dim, hidden, unit)
        out = (heads * head_dim) ** -0.5
        weights[attention + "o_proj.weight"] = normal(hidden, heads * head_dim, out)
        weights[layer + "mlp.gate_proj.weight"] = normal(inner, hidden, unit)
        weights[layer + "mlp.up_proj.weight"] = normal(inner, hidden, unit)
        weights[layer + "mlp.down_proj.weight"] = normal(hidden, inner, inner**-0.5)
    weights["model.norm.weight"] = norm()
    if config["tie_word_embeddings"]:
        weights["model.embed_tokens.weight"] *= 1.5 * unit
    else:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden, 1.5 * unit)
    return weights


def save_weights(directory, weights, dtype, files, torch):
    from safetensors.torch import save_file

    stored = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    if files == 1:
        save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(stored)
    weight_map = {}
    for i in range(files):
        shard = f"model-{i + 1:05}-of-{files:05}.safetensors"
        part = names[i::files]
        tensors = {name: stored[name] for name in part}
        save_file(tensors, directory / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, shard))
    index = {"metadata": {}, "weight_map": weight_map}
    write_json(directory / "model.safetensors.index.json", index, indent=1)


class Reference:
    """transformers' LlamaForCausalLM in float32 on weights rounded to bf16."""

    def __init__(self, directory, weights, torch, overrides=None):
        from transformers import AutoConfig, LlamaForCausalLM

        self.torch = torch
        config = AutoConfig.from_pretrained(directory, **(overrides or {}))
        config._attn_implementation = "eager"
        self.model = LlamaForCausalLM(config).float().eval()
        rounded = {name: tensor.bfloat16().float() for name, tensor in weights.items()}
        missing, unexpected = self.model.load_state_dict(rounded, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        self.model.tie_weights()

    def logits(self, ids):
        torch = self.torch
        with torch.no_grad():
            return self.model(torch.tensor([ids]), use_cache=False).logits[0].double()

    def losses(self, ids):
        """The loss of token i + 1 after tokens 0..i, at [i]."""
        logp = self.logits(ids).log_softmax(-1)
        return [-logp[i, token].item() for i, token in enumerate(ids[1:])]


@contextlib.contextmanager
def rounded_kv():
    """transformers' own attention, after rounding K and V to bf16 as a KV cache does."""
    from transformers.models.llama import modeling_llama

    exact = modeling_llama.eager_attention_forward

    def attention(module, query, key, value, *args, **kwargs):
        return exact(module, query, key.bfloat16().float(), value.bfloat16().float(), *args, **kwargs)

    modeling_llama.eager_attention_forward = attention
    try:
        yield
    finally:
        modeling_llama.eager_attention_forward = exact


def mean_difference(a, b):
    return sum(abs(x - y) for x, y in zip(a, b)) / len(a)


def check_sensitivity(name, directory, weights, ids, losses, torch):
    """Mistakes must show in the losses, and the rounding that kvcake does must not."""
    rounded = Reference(directory, weights, torch)
    with rounded_kv():
        kv = mean_difference(losses, rounded.losses(ids))
        for module in rounded.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))
        bf16 = mean_difference(losses, rounded.losses(ids))

    plain = {"rope_type": "default", "rope_theta": 10000.0}
    other = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.25}
    config = json.loads((directory / "config.json").read_text())
    is_plain = not config.get("rope_scaling") and config["rope_theta"] == 10000.0
    wrong = {"rope_scaling": None, "rope_parameters": other if is_plain else plain}
    rope = mean_difference(losses, Reference(directory, weights, torch, wrong).losses(ids))
    # Another first chunk, seen by the tokens after it only.
    prefix = ids[64:128] + ids[:64] + ids[128:]
    after = Reference(directory, weights, torch).losses(prefix)[256:]
    chunk = mean_difference(losses[256:], after)
    print(
        f"{name:24} mean loss {sum(losses) / len(losses):.2f}; differences: KV in bf16 {kv:.5f}, "
        f"all in bf16 {bf16:.4f}, wrong RoPE {rope:.3f}, wrong prefix {chunk:.3f}"
    )
    assert kv <= F32_TOLERANCE / 3, "attention is too sharp for the tolerance"
    assert bf16 <= BF16_TOLERANCE / 2, "attention is too sharp for the bf16 tolerance"
    assert rope >= 10 * BF16_TOLERANCE, "a wrong RoPE would hardly show"
    assert chunk >= 2 * BF16_TOLERANCE, "a wrong prefix would hardly show"


def make_model(name, changes, dtype, files, seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    directory = GOLDEN / "models" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": dtype,
        **BASE,
        **changes,
    }
    write_json(directory / "config.json", config, indent=1)
    weights = random_weights(config, torch, generator)
    save_weights(directory, weights, dtype, files, torch)
    # What is on the disk counts: f16 has rounded once already.
    weights = {k: v.to(getattr(torch, dtype)).float() for k, v in weights.items()}

    reference = Reference(directory, weights, torch)
    cases = []
    for prompt in PROMPTS:
        size = (prompt + DECODE,)
        ids = torch.randint(0, config["vocab_size"], size, generator=generator).tolist()
        top = reference.logits(ids)[prompt - 1 :].topk(2)
        clear = (top.values[:, 0] - top.values[:, 1]) > 0.5
        greedy = torch.where(clear, top.indices[:, 0], -1).tolist()
        losses = reference.losses(ids)
        cases.append(
            {
                "prompt": prompt,
                "ids": ids,
                "losses": [round(x, 5) for x in losses],
                # After the prompt and each decoded token; -1 where the choice is close.
                "greedy": greedy,
            }
        )
    check_sensitivity(name, directory, weights, ids, losses, torch)
    write_json(directory / "golden.json", {"cases": cases}, separators=(",", ":"))


# ---- tokenizers ----

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

SAMPLES = """The quick brown fox doesn't jump over the lazy dog's 1,234,567 fences; it's 3.14159 m high.
WE'LL SEE WHAT THEY'VE DONE, I'M SURE YOU'RE RIGHT: HE'D SAY IT'S FINE. i'll, you're, we've, don't
Fünf Straßen in Zürich: größer, schöner, Äpfel. Où est le garçon? L'été, naïve façade, œuvre.
El niño comió piñas en España. ¿Qué pasó? ¡Nada! Příliš žluťoučký kůň úpěl ďábelské ódy.
Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. עִבְרִית היא שפה שמית. اللغة العربية لغة سامية، نعم؟
हिन्दी भाषा में लिखा हुआ। বাংলা ভাষা। தமிழ் மொழி. ภาษาไทยไม่มีเว้นวรรค។ ភាសាខ្មែរ។
日本語の文章、カタカナとひらがな。中文句子，没有空格。한국어 문장은 띄어쓰기가 있다. １２３４
def f(x):\n    if x > 0:\n        return {"a": [1, 2, 3]}\n\n\n    # comment\n\treturn None
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }   // trailing   \r\n\r\n<html><b>&nbsp;</b></html>
👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 🏳️‍🌈 ❤️ ☃ ½ Ⅷ ² ③ €$£¥ ™©® ∑∫√ ≠ ≤ → ⇒ « » „ “ ” ‘ ’ … — –""".split("\n")


def training_text():
    yield from SAMPLES
    yield from (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()


def strings(special_tokens):
    """What a tokenizer may stumble over."""
    rng = random.Random(20)
    yield from ["", " ", "a", "\n", "\u0000", "\ufeff", "'", "''s", "'S", "x'LL y'Ve Z'rE 'ſ 'K"]
    yield from SAMPLES
    yield from (sample.upper() for sample in SAMPLES)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64, 333):
        for c in (" ", "\n", "\t", "\r\n", "a", "7", "é", "日", "👍", ".", "\u00a0", "\u3000", "x "):
            yield c * n
        yield "a" + " " * n + "b" + "\n" * (n % 4) + " " * n
        yield "".join(rng.choice("0123456789") for _ in range(n)) + " apples"
    spaces = [chr(c) for c in range(0x3001) if chr(c).isspace()] + ["\u180e", "\u200b", "\u2060"]
    for space in spaces:
        yield f"a{space}b{space}{space}c {space}\n{space}d{space}"
    for c in [*range(32), *range(0x7F, 0xA1), 0xAD, 0x200C, 0x200D, 0x200E, 0x202E, 0xFFFD, 0xFFFF]:
        yield f"x{chr(c)}y {chr(c)}{chr(c)} 1{chr(c)}2"
    # One string for each general category, of characters that Unicode 13 knows.
    import unicodedata

    categories = {}
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs") and unicodedata.name(chr(code), ""):
            categories.setdefault(category, []).append(chr(code))
    for category, characters in sorted(categories.items()):
        for _ in range(3):
            some = [c for c in rng.sample(characters, min(6, len(characters)))]
            yield category + " " + "".join(some) + " a" + some[0] + "1" + some[-1] + " " + some[0]
    # Combining marks in every order, decomposed and composed.
    for text in ("e\u0301a\u0323\u0302o\u0302\u0323", "\u212b\u2126\u0958", "\u1112\u1161\u11ab가각",
                 "q\u0307\u0323 \u0301x", "が\u3099か\u3099", "ﬁ ﬀ ß ẞ İ ı ŉ Ǆ"):
        yield text
        yield unicodedata.normalize("NFD", text)
        yield unicodedata.normalize("NFC", text)
    for token in special_tokens:
        yield token
        yield f"before{token}after"
        yield f"  {token}  {token}\n{token}{token}'s {token[:-1]} {token[1:]} {token.upper()}"
    for _ in range(60):  # anything next to anything
        pool = " \n\t'aAsSteéЖ日1٣½👍\u0301\u200d.,!-_<|>" + "".join(special_tokens)
        yield "".join(rng.choice(pool) for _ in range(rng.randint(2, 40)))


def make_tokenizers():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers, processors, trainers

    def trained(pre, normalizer=None, ignore_merges=False, size=640):
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"],
            show_progress=False,
        )
        tokenizer.train_from_iterator(training_text(), trainer)
        return tokenizer

    def split(pattern):
        parts = [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
        return pre_tokenizers.Sequence(parts)

    gpt2 = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)

    llama3 = trained(split(LLAMA3_PATTERN), ignore_merges=True)
    llama3.add_special_tokens(["<|begin|>", "<|eot_id|>", "<|eot|>"])
    llama3.add_tokens([AddedToken("[word]", normalized=False), AddedToken("héllo")])
    begin = ("<|begin|>", llama3.token_to_id("<|begin|>"))
    template = processors.TemplateProcessing("<|begin|> $A", "<|begin|> $A $B", [begin])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])

    qwen2 = trained(split(QWEN2_PATTERN), normalizers.NFC())
    qwen2.add_special_tokens(["<|im_start|>", AddedToken("<mask>", lstrip=True, rstrip=True)])
    qwen2.add_tokens([AddedToken("e\u0301\u0323t", normalized=True)])

    digits = trained(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("merged_with_previous"),
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Split("fox", "merged_with_next"),
                pre_tokenizers.Split(Regex(r"\p{Lu}+"), "contiguous"),
                pre_tokenizers.Split(Regex(r"\p{Han}|[^\s\p{P}]+"), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=True),
            ]
        ),
        size=400,
    )
    end = ("<|endoftext|>", digits.token_to_id("<|endoftext|>"))
    digits.post_processor = processors.TemplateProcessing("$A <|endoftext|>", None, [end])

    for name, tokenizer in [("gpt2", gpt2), ("llama3", llama3), ("qwen2", qwen2), ("mixed", digits)]:
        directory = GOLDEN / "tokenizers" / name
        directory.mkdir(parents=True, exist_ok=True)
        text = json.loads(tokenizer.to_str())
        if name == "gpt2":  # both spellings of merges are met in the wild
            text["model"]["merges"] = [" ".join(pair) for pair in text["model"]["merges"]]
        write_json(directory / "tokenizer.json", text, separators=(",", ":"))
        write_cases(directory / "tokenizer.json", directory / "cases.json")
    demo = ROOT / "models" / "demo" / "tokenizer.json"
    if demo.exists():
        write_cases(demo, GOLDEN / "tokenizers" / "demo_cases.json")


def write_cases(tokenizer_path, path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    cases = []
    for text in strings(added):
        ids = tokenizer.encode(text).ids
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        start = next(i for i in range(len(ids) + 1) if ids[i : i + len(plain)] == plain)
        cases.append(
            {
                "text": text,
                "ids": plain,
                "before": ids[:start],
                "after": ids[start + len(plain) :],
                "decoded": tokenizer.decode(plain, skip_special_tokens=False),
                "decoded_skipping": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    for case in cases:  # most say nothing new
        for key in ("before", "after"):
            if not case[key]:
                del case[key]
        if case["decoded_skipping"] == case["decoded"]:
            del case["decoded_skipping"]
        if case["decoded"] == case["text"]:
            del case["decoded"]
    digest = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    write_json(path, {"tokenizer_sha256": digest, "cases": cases}, separators=(",", ":"))
    print(f"{path.relative_to(ROOT)}: {len(cases)} strings, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["models", "tokenizers", []])
    what = parser.parse_args().what or ["models", "tokenizers"]
    if "models" in what:
        for seed, (name, arguments) in enumerate(MODELS.items()):
            make_model(name, *arguments, seed)
    if "tokenizers" in what:
        make_tokenizers()
    size = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    print(f"{GOLDEN.relative_to(ROOT)}: {size} bytes")
    if size > 4 << 20:
        sys.exit("that is more than the 4 MiB that may be committed")


if __name__ == "__main__":
    main()
