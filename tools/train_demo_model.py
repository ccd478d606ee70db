#!/usr/bin/env python3
"""Trains the small model in models/demo from nothing: a Llama that looks facts up in its context.

    python3 tools/train_demo_model.py --work /tmp/demo-model --out models/demo

Needs torch (2.9 or newer, for Muon), tokenizers and safetensors. Runs on CUDA or, with --bf16 where
the processor has AVX-512 BF16, on a CPU. Stopped at any time, the same command goes on from the
checkpoint in --work; every batch is drawn from (seed, step), so it is the same batch again. On a
CPU that others use too, set OMP_WAIT_POLICY=passive: threads that spin at a barrier while another
is not scheduled made training ten times slower.

Text. Whatever English and code a Debian machine carries: the licences in
/usr/share/common-licenses, manual pages, Python's standard library, and documentation under
/usr/share/doc. A plain system has enough of it; for more, install manpages manpages-dev man-db
bash gcc git perl-doc vim-runtime python3-doc libpython3-stdlib. One file in 20 (by the hash of its
path) is held out for tools/eval_demo_model.py; the licences never are: demos are built on them.

Tokenizer. Byte-level BPE with Llama 3's pre-tokenizer. It sees every number from 0 to 999 often
enough to give each its own token, so that a four-digit code is two tokens. It is made once and
kept in --work, or taken from --out: weights mean nothing without it.

Recipe. The order matters more than the amounts.
1. Copying comes first or not at all. The model sees nothing but random tokens that repeat, drawn
   from 64 ids and, as the loss falls, from ever more of the vocabulary. The period varies from
   sequence to sequence: with a fixed one the heads learn a distance, the loss falls within
   minutes, and nothing is left of it on text. To get the heads that find "what followed this
   before" sooner, the first layer starts out looking back by 1 to 4 tokens (Model.look_back).
2. Then copying gives way, slowly, to a mix of text, copies and lookups; a sudden change destroys
   what was learned. A lookup sequence is real (or random) text with facts planted between its
   sentences, and questions about them further on, each fact asked once. The answers' tokens weigh
   most. Names are an adjective and a noun; one pair in eight is held out, and all codes are drawn
   afresh. Some copies are of a few ids only: there the next token depends on several before it,
   as it does after a name of several tokens. Lower learning rates than while copying matter.
   However few its answers, they weigh as much as its text: long sequences with one to four facts
   (--few) would otherwise teach next to nothing about lookups.
3. RoPE does not carry over to distances that were never trained, and long sequences are dear. So
   once lookups work, positions jump (--spread-after): in 6 sequences of 10 they skip ahead at
   places in plain text, to as far as 8,448 in all, and distances of thousands are met in 1,024
   tokens. What is left to learn at full length is to stay sharp among thousands of keys: the last
   stages. A RoPE base of 500,000 leaves part of every head nearly independent of distance.
4. The jumps and the long stages want about a third of the rates that lookups are first learned
   with (--late-rate). At the full rates, restarted from a decayed state and with spans that grew
   three times as fast, the lookups were lost within minutes.

What was run. The defaults were never run from start to end: they are the amounts below, rounded up.
The model in models/demo was made on two cores: 1.4M tokens of copying, then 5M of the mix at 256,
512 and 1,024 tokens without jumps, in several runs of an earlier state of this script (no --few,
the answers' weight fixed at 8), the rates falling to nothing at the end; then, from that
checkpoint, with --bf16 and

    --stages 512:5.05e6,1024:1e6,2048:1.8e6,4096:2e6,8448:1.2e6 --spread-after 5e6 --spread-over 2e6
    --decay 0.4 --copies 0.1 --lr 5e-4 --muon-lr 8e-4 --late-rate 1

(the first stage stands for what the checkpoint had seen), stopped at 11.0M tokens: 0.4M short of
the end of the 4,096 stage. No sequence of 8,448 tokens was trained on.

Matrices are trained with Muon, the embedding and the norms with AdamW. What is exported is a
running average of the weights, which gives much of what a falling learning rate would.
"""

import argparse
import glob
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

EOT = "<|endoftext|>"
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MAX_POSITION = 8448  # a little beyond 8,192, so that an answer fits behind an 8K prompt

# ---------------------------------------------------------------- text

SOURCES = [  # (kind, pattern, most bytes of one file, most bytes in all)
    ("licence", "/usr/share/common-licenses/*", 1 << 20, 1 << 20),
    ("man", "/usr/share/man/man[1-8]/*", 1 << 18, 24 << 20),
    ("python", "/usr/lib/python3*/**/*.py", 1 << 18, 16 << 20),
    ("doc", "/usr/share/doc/**/*", 1 << 18, 24 << 20),
    ("doc", "/usr/share/vim/vim*/doc/*.txt", 1 << 18, 8 << 20),
    ("doc", "/usr/share/perl/**/*.pod", 1 << 18, 8 << 20),
]


def unroff(text):
    """Plain words from a manual page's source: enough for training text, no more."""
    lines = []
    for line in text.split("\n"):
        if line.startswith(
            ('.\\"', "'\\\"", ".TH", ".de", ".ie", ".el", ".if", ".nr", ".ds", ".so")
        ):
            continue
        if line.startswith((".SH", ".SS", ".Sh")):
            line = "\n" + line[3:].strip().strip('"')
        elif line.startswith((".PP", ".TP", ".P", ".IP", ".LP", ".sp", ".Pp", ".It")):
            line = "\n" + line[3:].strip()
        elif line.startswith((".", "'")):
            line = re.sub(r"^[.'] *\w+ *", "", line)
        lines.append(line)
    text = re.sub(r"\\f(\[\w*\]|\(..|.)|\\[&/,|^%]|\\[sm](\[\w*\]|[-+]?\d)", "", "\n".join(lines))
    text = (
        text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(co", "(c)").replace("\\e", "\\")
    )
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"\\\((..)|\\\[\w+\]", "", text)).strip() + "\n"


def read_corpus():
    """Returns {kind: [text]} to train on and {kind: [text]} held out."""
    train, held, seen = {}, {}, set()
    for kind, pattern, per_file, in_all in SOURCES:
        paths = [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]
        paths.sort(key=lambda p: hashlib.sha1(p.encode()).digest())
        total = 0
        for path in paths:
            name = os.path.basename(path).lower()
            # Near-copies of one another would crowd out the rest.
            if (
                os.path.islink(path)
                or "changelog" in name
                or "copyright" in name
                or name.startswith("gcloud")
            ):
                continue
            if name.endswith((".html", ".svg", ".js", ".css", ".json")):
                continue
            try:
                with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                    text = f.read(per_file).decode("utf-8")
            except (OSError, UnicodeDecodeError, EOFError):
                continue
            if kind == "man":
                text = unroff(text)
            ascii_share = sum(c.isascii() for c in text[:4096]) / max(1, len(text[:4096]))
            digest = hashlib.sha1(text[:2000].encode()).digest()
            if len(text) < 400 or ascii_share < 0.97 or digest in seen:
                continue
            seen.add(digest)
            held_out = kind != "licence" and hashlib.sha1(b"split" + path.encode()).digest()[0] < 13
            (held if held_out else train).setdefault(kind, []).append(text)
            total += len(text)
            if total > in_all:
                break
    return train, held


def build_tokenizer(texts, path):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=[EOT],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    numbers = (" ".join(f"{n:03d} {n % 100:02d}" for n in range(1000)) for _ in range(3000))
    names = (
        " ".join(f"the {a} {n}" for n in NOUNS[i % 4 :: 4]) for i, a in enumerate(ADJECTIVES * 2)
    )
    tok.train_from_iterator((t for part in (texts, numbers, names) for t in part), trainer)
    tok.save(path)


# ---------------------------------------------------------------- facts and questions

ADJECTIVES = """red blue green black white grey brown golden silver purple yellow orange pale
dark bright old new young ancient modern small large tiny huge tall short long wide narrow deep
shallow warm cold hot cool dry wet quiet loud silent noisy fast slow quick lazy busy empty full
heavy light soft hard rough smooth sharp round square flat curved northern southern eastern
western upper lower inner outer hidden lost broken frozen burning flying sleeping rising fallen
sunken distant lonely happy sad angry gentle proud brave clever simple strange secret famous
noble royal rusty dusty muddy sandy rocky grassy snowy rainy windy stormy misty sunny wooden
iron copper bronze glass stone paper velvet crystal marble amber scarlet crimson""".split()
NOUNS = """harbour river mountain valley forest island lake bridge tower castle garden village
market station library museum school temple palace cottage cabin lighthouse windmill factory
workshop bakery kitchen cellar attic balcony courtyard orchard meadow desert canyon glacier
volcano waterfall beach cliff cave tunnel road street railway airport ship boat canoe wagon
carriage bicycle engine rocket satellite telescope compass lantern candle mirror clock bell drum
piano violin trumpet guitar hammer anvil shovel ladder basket bottle barrel kettle teapot pillow
blanket carpet curtain window door gate fence wall roof chimney table chair cabinet drawer chest
locker vault parcel letter book map painting statue fountain horse falcon eagle raven swan heron
tiger lion wolf fox badger otter rabbit turtle dolphin whale salmon spider beetle butterfly oak
maple willow cedar""".split()
KINDS = ["code", "code", "code", "code", "number", "key", "price", "weight", "address", "channel"]
FACTS = ["The {k} of the {n} is {v}."] * 6 + [
    "Remember that the {k} of the {n} is {v}.",
    "Note: the {k} of the {n} is {v}.",
    "For the {n}, the {k} is {v}.",
    "The {n} has the {k} {v}.",
]
QUESTIONS = ["\nQuestion: what is the {k} of the {n}?\nAnswer: The {k} of the {n} is"] * 5 + [
    "\nQuestion: What is the {k} of the {n}?\nAnswer:",
    "\nThe {k} of the {n} is",
    " The {k} of the {n} is",
    "\nQ: the {k} of the {n}?\nA: The {k} of the {n} is",
]
MAIN_FACT, MAIN_QUESTION = FACTS[0], QUESTIONS[0]


def held_out_name(adjective, noun):
    return hashlib.sha1(f"{adjective} {noun}".encode()).digest()[0] < 32


def draw_names(rng, count, held_out):
    """Distinct "adjective noun" pairs; only held-out ones, or none of them."""
    names = {}
    while len(names) < count:
        a, n = ADJECTIVES[rng.integers(len(ADJECTIVES))], NOUNS[rng.integers(len(NOUNS))]
        if held_out_name(a, n) == held_out:
            names[f"{a} {n}"] = True
    return list(names)


def draw_code(rng):
    return str(rng.integers(1000, 10000)) if rng.random() < 0.7 else str(rng.integers(10, 100000))


# ---------------------------------------------------------------- batches

# Weights of the loss in lookups; plain text and copies weigh 1. However few the answers, together
# they weigh at least ANSWERS times as much as so many tokens of plain text as the sequence has.
TEXT, NOTHING, ANSWER, ANSWERS = 0.2, 0.0, 8.0, 0.75


class Batches:
    def __init__(self, tokenizer, train, seed, few=0.4):
        self.tok, self.seed, self.vocab = tokenizer, seed, tokenizer.get_vocab_size()
        self.few = few  # share of lookup sequences that have one to four facts
        self.texts = train
        self.weights = {
            k: w
            for k, w in {"licence": 0.3, "man": 0.25, "python": 0.2, "doc": 0.25}.items()
            if k in train
        }
        # Long files are drawn more often than short ones, and never one huge one all the time.
        self.by_size = {k: np.cumsum([min(len(t), 60000) for t in v]) for k, v in train.items()}
        words = " ".join(t[:3000] for v in train.values() for t in v[:400])
        self.words = sorted(set(re.findall(r"[A-Za-z]{2,10}", words)))

    def passage(self, rng, chars, licence=None):
        """Running text of at least `chars` characters, from a random place in a random file."""
        kinds = list(self.weights)
        p = np.array([self.weights[k] for k in kinds])
        if licence is not None:
            p[kinds.index("licence")] = licence
        out = ""
        while len(out) < chars:
            kind = kinds[rng.choice(len(kinds), p=p / p.sum())]
            sums = self.by_size[kind]
            text = self.texts[kind][np.searchsorted(sums, rng.integers(sums[-1]), side="right")]
            start = int(rng.integers(max(1, len(text) - chars // 2)))
            start = text.find("\n", start) + 1 if rng.random() < 0.7 else 0
            out += (EOT if out and rng.random() < 0.3 else "\n\n" if out else "") + text[
                start : start + chars - len(out)
            ]
        return out

    def noise(self, rng, chars):
        """Sentences of random words."""
        out = []
        while sum(map(len, out)) < chars:
            words = [self.words[i] for i in rng.integers(len(self.words), size=rng.integers(4, 16))]
            out.append(" ".join(words).capitalize() + ".")
        return " ".join(out)

    def encode(self, pieces, length):
        """Tokens and loss weights of [(text, weight)]: a token has its last character's weight."""
        enc = self.tok.encode("".join(t for t, _ in pieces))
        ids = np.array(enc.ids[:length])
        ends = np.array([e for _, e in enc.offsets[:length]])
        starts = np.cumsum([len(t) for t, _ in pieces])
        weights = np.array([w for _, w in pieces], np.float32)
        return ids, weights[np.minimum(np.searchsorted(starts, ends), len(weights) - 1)]

    def text_sequence(self, rng, length):
        ids, w = self.encode([(self.passage(rng, length * 5, licence=0.05), 1.0)], length)
        return (ids, w) if len(ids) == length else self.text_sequence(rng, length)

    def copy_sequence(self, rng, length, ids=None):
        """Random tokens over and over, the period drawn anew for every sequence."""
        period = int(math.exp(rng.uniform(math.log(8), math.log(length * 0.75))))
        few = int(math.exp(rng.uniform(math.log(6), math.log(200))))
        if (
            ids is None and rng.random() < 0.6
        ):  # of few ids: what followed depends on several tokens, as with names
            out = rng.integers(1, self.vocab, size=few)[rng.integers(few, size=period)]
        else:
            out = rng.integers(1, 1 + (ids or self.vocab - 1), size=period)
        out = np.resize(out, length)
        w = np.zeros(length, np.float32)
        w[period + 1 :] = 1.0
        return out, w

    def lookup_sequence(self, rng, length):
        most = min(48, max(3, length // 42))
        if rng.random() < self.few:
            count = int(rng.integers(1, 5))
        elif rng.random() < 0.4:
            count = most
        else:
            count = int(math.exp(rng.uniform(math.log(3), math.log(most + 1))))
        extra = int(rng.integers(0, 3))  # facts that nobody asks for
        names = draw_names(rng, count + extra, held_out=False)
        if rng.random() < 0.5:  # near misses: many names share a word
            few = [n.split() for n in names[: max(2, len(names) // 3)]]
            names = list(
                {
                    f"{few[rng.integers(len(few))][0]} {few[rng.integers(len(few))][1]}"
                    for _ in range(3 * len(names))
                }
            )[: len(names)]
            names = [n for n in names if not held_out_name(*n.split())]
        one_kind = KINDS[rng.integers(len(KINDS))] if rng.random() < 0.7 else None
        facts = [(one_kind or KINDS[rng.integers(len(KINDS))], n, draw_code(rng)) for n in names]
        chars = max(20, int(length * 3.1) - 125 * len(facts))
        text = (
            self.noise(rng, chars) if rng.random() < 0.2 else self.passage(rng, chars, licence=0.4)
        )
        text = text[:chars]
        # Where a sentence or a paragraph ends; and some line ends, for text that has no sentences.
        cuts = [m.end() for m in re.finditer(r"[.;:]\s+|\n\n+", text)]
        cuts += [m.end() for m in re.finditer(r"\n", text)][::5]
        cuts = np.array(sorted(set(cuts)) or [0])
        at_end = rng.random() < 0.4
        events = []  # (place, order, pieces)
        plain = rng.random() < 0.6
        for kind, name, value in facts:
            place = rng.random() * (1.0 if at_end else 0.95)
            asked = 1.0 if at_end else rng.uniform(place, 1.0)
            fact = MAIN_FACT if plain else FACTS[rng.integers(len(FACTS))]
            question = MAIN_QUESTION if plain else QUESTIONS[rng.integers(len(QUESTIONS))]
            gap = " \n"[int(rng.random() < 0.3)]
            before, after = fact.format(k=kind, n=name, v="\0").split("\0")
            events.append(
                (place, rng.random(), [(before, TEXT), (value, NOTHING), (after + gap, TEXT)])
            )
            if extra > 0:
                extra -= 1
                continue
            events.append(
                (
                    asked,
                    1 + rng.random(),
                    [
                        (question.format(k=kind, n=name), TEXT),
                        (f" {value}.", ANSWER),
                        ("\n" if rng.random() < 0.8 else " ", TEXT),
                    ],
                )
            )
        pieces, done = [], 0
        for place, _, more in sorted(events, key=lambda e: e[:2]):
            cut = (
                len(text) if place == 1.0 else int(cuts[min(len(cuts) - 1, int(place * len(cuts)))])
            )
            if cut > done:
                pieces.append((text[done:cut], TEXT))
                done = cut
            pieces += more
        pieces.append((text[done:] + EOT + self.passage(rng, length * 3), TEXT))
        ids, w = self.encode(pieces, length)
        if len(ids) < length:
            return self.lookup_sequence(rng, length)
        answers = w == ANSWER
        w[answers] = max(ANSWER, ANSWERS * length / max(1, answers.sum()))
        return ids, w

    def positions(self, rng, w, length, span):
        """Positions; in most sequences they jump at places of plain text, to `span` in all."""
        pos = np.arange(length)
        span = (
            int(math.exp(rng.uniform(math.log(length), math.log(span))))
            if rng.random() < 0.8
            else span
        )
        places = np.flatnonzero(w[1:] <= TEXT) + 1
        if span > length and len(places) and rng.random() < 0.6:
            jumps = int(rng.integers(1, 5))
            for share in rng.dirichlet(np.ones(jumps)):
                pos[places[rng.integers(len(places))] :] += int((span - length) * share)
        return pos

    def batch(self, step, count, length, span, copies, copy_ids=None):
        """Tokens, positions and weights [count, length]; `copies` is the share of copying."""
        rng = np.random.default_rng((self.seed, step))
        rows = []
        for _ in range(count):
            if rng.random() < copies:
                ids, w = self.copy_sequence(rng, length, copy_ids)
            elif rng.random() < 0.8:
                ids, w = self.lookup_sequence(rng, length)
            else:
                ids, w = self.text_sequence(rng, length)
            rows.append((ids, self.positions(rng, w, length, max(span, length)), w))
        ids, pos, w = (np.stack(x) for x in zip(*rows))
        return torch.from_numpy(ids).long(), torch.from_numpy(pos).long(), torch.from_numpy(w)


# ---------------------------------------------------------------- model


class Block(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.a = a
        self.norm1, self.norm2 = torch.nn.RMSNorm(a.width, eps=1e-5), torch.nn.RMSNorm(
            a.width, eps=1e-5
        )
        self.q = linear(a.width, a.heads * a.head_dim)
        self.k = linear(a.width, a.kv_heads * a.head_dim)
        self.v = linear(a.width, a.kv_heads * a.head_dim)
        self.o = linear(a.heads * a.head_dim, a.width)
        self.gate, self.up, self.down = (
            linear(a.width, a.ffn),
            linear(a.width, a.ffn),
            linear(a.ffn, a.width),
        )

    def forward(self, x, cos, sin):
        a, (b, n, _) = self.a, x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, a.heads, a.head_dim).transpose(1, 2)
        k = self.k(h).view(b, n, a.kv_heads, a.head_dim).transpose(1, 2)
        v = self.v(h).view(b, n, a.kv_heads, a.head_dim).transpose(1, 2)
        turn = lambda t: (
            t * cos + torch.cat((-t[..., a.head_dim // 2 :], t[..., : a.head_dim // 2]), -1) * sin
        ).to(v.dtype)
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(a.heads // a.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(torch.nn.Module):
    def __init__(self, a, vocab):
        super().__init__()
        self.a = a
        self.embed = torch.nn.Embedding(vocab, a.width)
        self.blocks = torch.nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = torch.nn.RMSNorm(a.width, eps=1e-5)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=a.init_std)
        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Head h of the first layer starts out attending to whatever is 1 + h % 4 tokens back.

        All embeddings share one vector (which the tied output's softmax does not see). Queries and
        keys read it into the pairs of dimensions that RoPE turns fastest, the query turned back by
        so many places.
        """
        a = self.a
        shared = torch.nn.functional.normalize(torch.randn(a.width), dim=0)
        self.embed.weight += shared * a.init_std * a.width**0.5
        pairs, half = 4, a.head_dim // 2
        freq = a.rope_theta ** (-torch.arange(0, pairs) / half)
        read = (15 * a.head_dim**0.5) ** 0.5 / (a.width / 2) ** 0.5 * shared
        for name, heads in (("q", a.heads), ("k", a.kv_heads)):
            w = getattr(self.blocks[0], name).weight.view(heads, a.head_dim, a.width)
            for h in range(heads):
                angle = -freq * (1 + h % 4) if name == "q" else torch.zeros(pairs)
                w[h, :pairs] += angle.cos()[:, None] * read
                w[h, half : half + pairs] += angle.sin()[:, None] * read

    def forward(self, ids, pos):
        a = self.a
        freq = a.rope_theta ** (
            -torch.arange(0, a.head_dim, 2, device=ids.device, dtype=torch.float32) / a.head_dim
        )
        angle = (pos.float()[..., None] * freq)[:, None]
        cos, sin = angle.cos().repeat(1, 1, 1, 2), angle.sin().repeat(1, 1, 1, 2)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)


def weighted_loss(model, ids, pos, w, autocast):
    with autocast:
        h = model(ids, pos)[:, :-1]
        w = w[:, 1:]
        mask = w > 0
        logits = F.linear(h[mask], model.embed.weight)
    losses = F.cross_entropy(logits.float(), ids[:, 1:][mask], reduction="none")
    w = w[mask]
    answers = losses.detach()[w >= ANSWER]
    return (
        (losses * w).sum() / w.sum(),
        losses.detach()[w < ANSWER].mean(),
        answers.mean() if len(answers) else None,
    )


def export(model, weights, args, tokenizer_path):
    """Writes the Hugging Face folder anew and renames it into place. README.md is kept."""
    from safetensors.torch import save_file

    a = args
    names = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    parts = {
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
    tensors = {}
    for name, t in weights.items():
        if name.startswith("blocks."):
            _, i, part, _ = name.split(".")
            name = f"model.layers.{i}.{parts[part]}.weight"
        else:
            name = names[name]
        tensors[name] = t.detach().to("cpu", torch.bfloat16).contiguous()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": weights["embed.weight"].shape[0],
        "hidden_size": a.width,
        "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": a.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": MAX_POSITION,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": a.init_std,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    tok = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOT,
        "eos_token": EOT,
        "add_bos_token": False,
        "model_max_length": MAX_POSITION,
        "clean_up_tokenization_spaces": False,
    }
    new = a.out.rstrip("/") + ".new"
    os.makedirs(new, exist_ok=True)
    save_file(tensors, f"{new}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{new}/model.safetensors", 0o644)
    generation = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": False}
    for file, data in (
        ("config", config),
        ("generation_config", generation),
        ("tokenizer_config", tok),
    ):
        with open(f"{new}/{file}.json", "w") as f:
            json.dump(data, f, indent=2)
            f.write("\n")
    with open(tokenizer_path) as f, open(f"{new}/tokenizer.json", "w") as g:
        g.write(f.read())
    readme = f"{a.out}/README.md"
    if os.path.exists(readme):
        with open(readme) as f, open(f"{new}/README.md", "w") as g:
            g.write(f.read())
    if os.path.isdir(a.out):
        os.rename(a.out, f"{new}.old")
    os.rename(new, a.out)
    if os.path.isdir(f"{new}.old"):
        for name in os.listdir(f"{new}.old"):
            os.remove(f"{new}.old/{name}")
        os.rmdir(f"{new}.old")


# ---------------------------------------------------------------- training


def parse_stages(text):
    """ "512:6e6,1024:4e6" -> [(512, 6000000), (1024, 4000000)]"""
    return [(int(s.split(":")[0]), int(float(s.split(":")[1]))) for s in text.split(",")]


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--work", required=True, help="folder of the tokenizer and the checkpoint")
    p.add_argument("--out", default="models/demo")
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=32)
    p.add_argument("--ffn", type=int, default=384)
    p.add_argument("--rope-theta", type=float, default=500000.0)
    p.add_argument("--init-std", type=float, default=0.05)
    p.add_argument("--lr", type=float, default=1.5e-3, help="AdamW's; twice that for copying")
    p.add_argument("--muon-lr", type=float, default=2.5e-3, help="likewise")
    p.add_argument(
        "--copied", type=float, default=1.0, help="loss on copies of all ids that ends the copying"
    )
    p.add_argument("--batch-tokens", type=int, default=4096, help="after the copying")
    p.add_argument("--copies", type=float, default=0.15, help="share of copying in the mix")
    p.add_argument(
        "--mix-over", type=float, default=1e6, help="tokens over which copying gives way to the mix"
    )
    p.add_argument(
        "--few", type=float, default=0.4, help="share of lookups that have one to four facts"
    )
    p.add_argument(
        "--spread-after", type=float, default=5e6, help="tokens of the mix before positions jump"
    )
    p.add_argument(
        "--spread-over",
        type=float,
        default=2e6,
        help="tokens over which the jumps grow to the full span",
    )
    p.add_argument(
        "--stages",
        default="256:1e6,512:4e6,1024:2e6,2048:2e6,4096:2.5e6,8448:2e6",
        help="length:tokens,...",
    )
    p.add_argument(
        "--decay",
        type=float,
        default=0.4,
        help="last share of the tokens, over which the rates fall",
    )
    p.add_argument(
        "--late-rate", type=float, default=0.33, help="share of the rates from --spread-after on"
    )
    p.add_argument("--average", type=float, default=0.99, help="of the exported weights")
    p.add_argument("--save-every", type=float, default=120, help="seconds")
    p.add_argument("--export-every", type=float, default=0, help="seconds; 0: only at the end")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--bf16", action="store_true", help="bf16 autocast on a CPU too")
    args = p.parse_args()

    if args.threads:
        torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    autocast = torch.autocast(device, torch.bfloat16, enabled=args.bf16 or device == "cuda")
    torch.manual_seed(args.seed)
    os.makedirs(args.work, exist_ok=True)
    train, held = read_corpus()
    print("text, MB:", {k: round(sum(map(len, v)) / 1e6, 1) for k, v in train.items()}, flush=True)
    tokenizer_path = f"{args.work}/tokenizer.json"
    if not os.path.exists(tokenizer_path) and os.path.exists(f"{args.out}/tokenizer.json"):
        shutil.copyfile(f"{args.out}/tokenizer.json", tokenizer_path)
    if not os.path.exists(tokenizer_path):
        build_tokenizer([t for v in train.values() for t in v], tokenizer_path)
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(tokenizer_path)
    data = Batches(tok, train, args.seed, args.few)

    model = Model(args, tok.get_vocab_size()).to(device)
    matrices = [q for n, q in model.named_parameters() if n.startswith("blocks") and q.dim() == 2]
    others = [
        q for n, q in model.named_parameters() if not (n.startswith("blocks") and q.dim() == 2)
    ]
    muon = torch.optim.Muon(
        matrices, lr=args.muon_lr, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0)
    average = {n: q.detach().clone() for n, q in model.named_parameters()}
    step, tokens, seconds = 0, 0, 0.0
    copying = {
        "ids": 64.0,
        "loss": 5.0,
        "tokens": None,
    }  # tokens: how many the copying took, once it is over
    checkpoint = f"{args.work}/checkpoint.pt"
    if os.path.exists(checkpoint):
        c = torch.load(checkpoint, map_location=device)
        model.load_state_dict(c["model"])
        muon.load_state_dict(c["muon"])
        adam.load_state_dict(c["adam"])
        average, step, tokens, seconds, copying = (
            c[k] for k in ("average", "step", "tokens", "seconds", "copying")
        )
    print(
        f"{sum(q.numel() for q in model.parameters()) / 1e6:.2f}M parameters on {device}, "
        f"from step {step}",
        flush=True,
    )

    stages = parse_stages(args.stages)
    total = sum(n for _, n in stages)
    begin = saved = exported = shown = time.time()
    shown_tokens, sums = tokens, []

    def save():
        torch.save(
            {
                "model": model.state_dict(),
                "muon": muon.state_dict(),
                "adam": adam.state_dict(),
                "average": average,
                "step": step,
                "tokens": tokens,
                "seconds": seconds + time.time() - begin,
                "copying": copying,
            },
            checkpoint + ".new",
        )
        os.rename(checkpoint + ".new", checkpoint)

    all_ids = tok.get_vocab_size() - 1
    while copying["tokens"] is None or tokens < copying["tokens"] + total:
        if copying["tokens"] is None:
            length, rate = 128, 2 * min(1.0, (step + 1) / 50)
            ids, pos, w = data.batch(step, 16, length, length, 1.0, int(copying["ids"]))
        else:
            left = tokens - copying["tokens"]
            length = next(
                n for i, (n, _) in enumerate(stages) if left < sum(s for _, s in stages[: i + 1])
            )
            rate = min(1.0, (1 - left / total) / args.decay + 0.02) if args.decay else 1.0
            rate *= args.late_rate if left >= args.spread_after else 1.0
            count = max(1, args.batch_tokens // length)
            spread = min(1.0, max(0.0, (left - args.spread_after) / args.spread_over))
            span = int(length * (MAX_POSITION / length) ** spread)
            ids, pos, w = data.batch(
                step, count, length, span, max(args.copies, 0.8 * (1 - left / args.mix_over))
            )
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = (args.muon_lr if group in muon.param_groups else args.lr) * rate
        loss, text, answer = weighted_loss(
            model, ids.to(device), pos.to(device), w.to(device), autocast
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        for n, q in model.named_parameters():
            average[n].lerp_(q.detach(), 1 - min(args.average, (1 + step) / (10 + step)))
        step, tokens = step + 1, tokens + ids.numel()
        if copying["tokens"] is None:
            copying["loss"] += 0.1 * (float(text) - copying["loss"])
            if copying["loss"] < 0.55 * math.log(copying["ids"]):
                copying["ids"] = min(all_ids, copying["ids"] * 1.03)
            if copying["ids"] == all_ids and copying["loss"] < args.copied:
                copying["tokens"] = tokens
                print(f"copying took {step} steps, {tokens / 1e6:.2f}M tokens", flush=True)
        sums.append((float(text), None if answer is None else float(answer)))
        now = time.time()
        if now - shown > 15:
            text, answers = np.mean([t for t, _ in sums]), [a for _, a in sums if a is not None]
            print(
                f"step {step} length {length} tokens {tokens / 1e6:.2f}M loss {text:.3f} "
                f"answers {np.mean(answers) if answers else float('nan'):.3f} "
                f"{(tokens - shown_tokens) / (now - shown):.0f} tok/s "
                f"{(seconds + now - begin) / 60:.1f} min",
                flush=True,
            )
            shown, shown_tokens, sums = now, tokens, []
        if now - saved > args.save_every:
            save()
            saved = now
        if args.export_every and now - exported > args.export_every:
            export(model, average, args, tokenizer_path)
            exported = now
    save()
    export(model, average, args, tokenizer_path)


if __name__ == "__main__":
    main()
