"""Small tokenizers of every style that kvcake runs, and what the tokenizers library makes of some
thousand strings with each of them.

strings.json holds the strings, the same for all tokenizers; a tokenizer's cases.json holds one
hash for each, and, to look at when they differ, some cases in full. Python 3.11 and the PCRE2 of
Debian bookworm both know Unicode 14, to which the strings keep.
"""
import collections
import hashlib
import json
import random
import sys
import unicodedata
from pathlib import Path

from goldens import named_tokens
from goldens.files import write_json
from goldens.tokenizer_cases import case, continuations, digest, hash_case

ROOT = Path(__file__).resolve().parent.parent.parent

RANDOM_STRINGS = 2000
RANDOM_IDS = 500  # sequences to decode
BLOCK = 128  # code points of one string of the sweep through Unicode

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

# In all strings, whichever tokenizer knows them.
SPECIAL = ["<|endoftext|>", "<|begin|>", "<|eot|>", "<|eot_id|>", "<|im_start|>", "<mask>", "[word]",
           "héllo", "e\u0301\u0323t", ">>TITLE<<", "<s>", "</s>", "<unk>", "[INST]", "[/INST]", "foo",
           "<sep>", "<0x41>", "<0xE2>"]

CONTINUED = ["The quick brown fox", " quick  brown", "  fox", "é日👍 fox"]


def training_text():
    yield from SAMPLES
    yield from (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()


# ---- strings ----


def assigned():
    """The code points of characters, but for surrogates and most of the private use areas."""
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs") and (category != "Co" or code % 0x1000 < 16):
            yield code


def ranges(codes):
    spans = []
    for code in codes:
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return spans


def fixed_strings(rng, codes):
    """What a tokenizer may stumble over."""
    yield from ["", " ", "a", "\n", "\u0000", "\ufeff", "'", "''s", "'S", "x'LL y'Ve Z'rE 'ſ 'K"]
    yield from SAMPLES
    yield from (sample.upper() for sample in SAMPLES)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64, 333):
        for c in (" ", "\n", "\t", "\r\n", "a", "7", "é", "日", "👍", ".", "\u00a0", "\u3000", "x ", "▁"):
            yield c * n
        yield "a" + " " * n + "b" + "\n" * (n % 4) + " " * n
        yield "".join(rng.choice("0123456789") for _ in range(n)) + " apples"
    spaces = [chr(c) for c in range(0x3001) if chr(c).isspace()] + ["\u180e", "\u200b", "\u2060"]
    for space in spaces:
        yield f"a{space}b{space}{space}c {space}\n{space}d{space}"
    for c in [*range(32), *range(0x7F, 0xA1), 0xAD, 0x200C, 0x200D, 0x200E, 0x202E, 0xFFFD, 0xFFFF]:
        yield f"x{chr(c)}y {chr(c)}{chr(c)} 1{chr(c)}2"
    categories = {}
    for code in codes:
        categories.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    for category, characters in sorted(categories.items()):
        for _ in range(3):
            some = rng.sample(characters, min(6, len(characters)))
            yield category + " " + "".join(some) + " a" + some[0] + "1" + some[-1] + " " + some[0]
    for text in ("e\u0301a\u0323\u0302o\u0302\u0323", "\u212b\u2126\u0958", "\u1112\u1161\u11ab가각",
                 "q\u0307\u0323 \u0301x", "が\u3099か\u3099", "ﬁ ﬀ ß ẞ İ ı ŉ Ǆ"):
        yield text
        yield unicodedata.normalize("NFD", text)
        yield unicodedata.normalize("NFC", text)


def with_tokens(rng, tokens, mixes):
    for token in tokens:
        yield token
        yield f"before{token}after"
        yield f"  {token}  {token}\n{token}{token}'s {token[:-1]} {token[1:]} {token.upper()}"
        yield f"é{token} ²{token}, {token}_ ({token}) \u0301{token}\u200d 1{token}"
    for _ in range(mixes):  # anything next to anything
        pool = [*" \n\t'aAsSteéЖ日1٣½👍\u0301\u200d.,!-_<|>▁", *tokens]
        yield "".join(rng.choice(pool) for _ in range(rng.randint(2, 40)))


def random_strings(rng, codes):
    words = " ".join(SAMPLES).split()
    marks = [chr(c) for c in codes if unicodedata.category(chr(c)).startswith("M")]
    spaces = [chr(c) for c in range(0x3001) if chr(c).isspace()]
    emoji = ["👍", "🏽", "\u200d", "👩", "🚀", "🇩", "🇪", "\ufe0f", "❤"]
    endings = ["'s", "'S", "'ll", "'LL", "'Re", "n't", "'VE", "'m", "'D", "’s"]
    pieces = [
        lambda: " " + rng.choice(words),
        lambda: rng.choice(words).upper() + rng.choice(endings),
        lambda: " " * rng.randint(1, 20),
        lambda: rng.choice(["\n", "\r\n", "\n\n", "\t", " \n", "\n "]),
        lambda: "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12))),
        lambda: "".join(rng.choice(emoji) for _ in range(rng.randint(1, 5))),
        lambda: rng.choice("aeinoqあд") + "".join(rng.choice(marks) for _ in range(rng.randint(1, 3))),
        lambda: rng.choice(spaces) * rng.randint(1, 3),
        lambda: chr(rng.randrange(32)),
        lambda: rng.choice(SPECIAL),
        lambda: "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randint(1, 6))),
        lambda: "".join(chr(rng.choice(codes)) for _ in range(rng.randint(1, 4))),
        lambda: chr(rng.choice(codes)),
    ]
    for _ in range(RANDOM_STRINGS):
        yield "".join(rng.choice(pieces)() for _ in range(rng.randint(1, 9)))


def make_strings(path):
    rng = random.Random(20)
    codes = list(assigned())
    value = {
        "fixed": [*fixed_strings(rng, codes), *with_tokens(rng, SPECIAL, 60)],
        "random": list(random_strings(rng, codes)),
        "block": BLOCK,
        "ranges": ranges(codes),
        "random_ids": RANDOM_IDS,
    }
    write_json(path, value, separators=(",", ":"))


def block_strings(strings):
    """Every character, among others: tokenizer_golden_test.cc makes the same strings."""
    codes = [c for first, last in strings["ranges"] for c in range(first, last + 1)]
    for start in range(0, len(codes), strings["block"]):
        block = codes[start : start + strings["block"]]
        yield "".join(chr(c) + "a 1é"[i % 4] for i, c in enumerate(block))


def random_ids(strings, vocab_size):
    """Sequences of ids from a congruential generator that the test has too."""
    state = 1

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n

    for _ in range(strings["random_ids"]):
        yield [draw(vocab_size) for _ in range(1 + draw(24))]


# ---- tokenizers ----


def byte_level(pre, normalizer=None, ignore_merges=False, size=640):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def split(pattern):
    from tokenizers import Regex, pre_tokenizers

    parts = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(parts)


def gpt2():
    from tokenizers import pre_tokenizers, processors

    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    text = json.loads(tokenizer.to_str())
    # Both spellings of merges are met in the wild.
    text["model"]["merges"] = [" ".join(pair) for pair in text["model"]["merges"]]
    return text


def llama3():
    from tokenizers import AddedToken, processors

    tokenizer = byte_level(split(LLAMA3_PATTERN), ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin|>", "<|eot_id|>", "<|eot|>"])
    tokenizer.add_tokens([AddedToken("[word]", normalized=False), AddedToken("héllo")])
    begin = ("<|begin|>", tokenizer.token_to_id("<|begin|>"))
    template = processors.TemplateProcessing("<|begin|> $A", "<|begin|> $A $B", [begin])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    return json.loads(tokenizer.to_str())


def qwen2():
    from tokenizers import AddedToken, normalizers

    tokenizer = byte_level(split(QWEN2_PATTERN), normalizers.NFC())
    tokenizer.add_special_tokens(["<|im_start|>", AddedToken("<mask>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("e\u0301\u0323t", normalized=True)])
    return json.loads(tokenizer.to_str())


def falcon():
    from tokenizers import Regex, pre_tokenizers, processors

    tokenizer = byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("contiguous"),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
        )
    )
    tokenizer.add_special_tokens([">>TITLE<<"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tokenizer.to_str())


def mixed():
    """Every kind of split, and added tokens that only match as words of their own."""
    from tokenizers import AddedToken, Regex, pre_tokenizers, processors

    tokenizer = byte_level(
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
    tokenizer.add_special_tokens([AddedToken("<sep>", single_word=True, rstrip=True)])
    tokenizer.add_tokens(
        [
            AddedToken("foo", single_word=True, normalized=False),
            AddedToken("[word]", single_word=True, lstrip=True),
            AddedToken(" q", lstrip=True, normalized=False),
        ]
    )
    sep = ("<sep>", tokenizer.token_to_id("<sep>"))
    end = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    both = processors.TemplateProcessing("<sep> $A <|endoftext|>", None, [sep, end])
    tokenizer.post_processor = processors.Sequence([both, processors.ByteLevel()])
    return json.loads(tokenizer.to_str())


def sentence_piece(added, byte_fallback=True, alphabet=120):
    """The model of a SentencePiece-style tokenizer.json, and `added` as its first tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = [token["content"] for token in added]
    # Which of equally frequent characters the trainer would keep changes from run to run.
    counts = collections.Counter("".join(training_text()).replace(" ", "▁"))
    kept = sorted(counts, key=lambda c: (-counts[c], c))[:alphabet]
    trainer = trainers.BpeTrainer(
        vocab_size=len(names) + len(fallback) + 600,
        initial_alphabet=kept,
        limit_alphabet=len(kept),
        special_tokens=names + fallback,
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [{"id": i, **token} for i, token in enumerate(added)]
    model = text["model"]
    model["byte_fallback"] = byte_fallback
    for n in (1, 2, 4, 8):  # as SentencePiece does, runs of spaces
        model["merges"].append(["▁" * n, "▁" * n])
        model["vocab"]["▁" * 2 * n] = len(model["vocab"])
    return text


def added(content, **flags):
    token = {"content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": False, "special": True, **flags}


def template(before, *after):
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in before]
    pieces.append({"Sequence": {"id": "A", "type_id": 0}})
    pieces += [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in after]
    tokens = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in [*before, *after]}
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": tokens}


REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def decoders(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


def llama2():
    # "</s>" as in the first files of Llama: found only after a space, since it is normalised.
    text = sentence_piece([added("<unk>"), added("<s>"), added("</s>", normalized=True)])
    text["model"]["fuse_unk"] = True
    text["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES],
    }
    text["pre_tokenizer"] = None
    text["post_processor"] = template([("<s>", 1)])
    text["decoder"] = decoders(REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP)
    return text


def mistral():
    names = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    text = sentence_piece([added(name) for name in names])
    text["model"]["fuse_unk"] = True
    text["normalizer"] = None
    text["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False,
    }
    text["post_processor"] = template([("<s>", 1)])
    text["decoder"] = decoders(REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP)
    return text


def gemma():
    """Neither a prefix nor a strip; what has no byte token becomes unknown."""
    tokens = [added("<unk>"), added("<s>"), added("[word]", special=False, normalized=True, rstrip=True)]
    text = sentence_piece(tokens)
    text["model"]["fuse_unk"] = True
    for byte in range(0xE3, 0xF0):  # these characters' other bytes have tokens
        del text["model"]["vocab"][f"<0x{byte:02X}>"]
    text["normalizer"] = SPACES
    text["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }
    text["post_processor"] = template([("<s>", 1)])
    text["decoder"] = decoders(REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"})
    return text


def metaspace():
    """Words instead of lines, and unknown tokens instead of bytes."""
    tokens = [added("<unk>", special=False), added("</s>"), added("<mask>", lstrip=True)]
    text = sentence_piece(tokens, byte_fallback=False)
    text["normalizer"] = {"type": "NFC"}
    text["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "Digits", "individual_digits": True},
        ],
    }
    text["post_processor"] = template([], ("</s>", 1))
    text["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return text


TOKENIZERS = (gpt2, llama3, qwen2, falcon, mixed, llama2, mistral, gemma, metaspace)


# ---- goldens ----


def write_golden(tokenizer_path, strings, path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    own = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values())
    own = own[:: max(1, len(own) // 8)]  # of some hundred reserved tokens, a few
    rng = random.Random(21)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    decoded = []
    for ids in random_ids(strings, vocab_size):
        decoded.append(digest(*(tokenizer.decode(ids, skip_special_tokens=s) for s in (False, True))))
    golden = {
        "tokenizer_sha256": hashlib.sha256(tokenizer_path.read_bytes()).hexdigest(),
        "vocab_size": vocab_size,
        "cases": [case(tokenizer, text) for text in [*SAMPLES, *with_tokens(rng, own, 20)]],
        "continuations": list(continuations(tokenizer, CONTINUED)),
        "fixed": "".join(hash_case(tokenizer, text) for text in strings["fixed"]),
        "random": "".join(hash_case(tokenizer, text) for text in strings["random"]),
        "blocks": "".join(hash_case(tokenizer, text) for text in block_strings(strings)),
        "random_ids": "".join(decoded),
    }
    write_json(path, golden, separators=(",", ":"))
    compared = len(golden["cases"]) + sum(len(golden[k]) // 8 for k in ("fixed", "random", "blocks"))
    print(f"{path}: {compared} strings, {path.stat().st_size} bytes")


def make_demo(out_dir, tokenizer_path=ROOT / "models" / "demo" / "tokenizer.json"):
    """OUT/tokenizers/demo_cases.json; strings.json must be there."""
    out = Path(out_dir) / "tokenizers"
    strings = json.loads((out / "strings.json").read_text(encoding="utf-8"))
    write_golden(tokenizer_path, strings, out / "demo_cases.json")


def make(out_dir):
    """OUT/tokenizers: strings.json, NAME/tokenizer.json, NAME/cases.json, named_tokens.json,
    class_names.json and demo_cases.json."""
    out = Path(out_dir) / "tokenizers"
    make_strings(out / "strings.json")
    strings = json.loads((out / "strings.json").read_text(encoding="utf-8"))
    for build in TOKENIZERS:
        directory = out / build.__name__
        write_json(directory / "tokenizer.json", build(), separators=(",", ":"))
        write_golden(directory / "tokenizer.json", strings, directory / "cases.json")
    named_tokens.make(out)
    make_demo(out_dir)
