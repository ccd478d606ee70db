"""Text that any Debian machine carries, and the tokenizer made from it."""

import glob
import gzip
import hashlib
import os
import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_model.facts import ADJECTIVES, NOUNS

HERE = os.path.dirname(os.path.abspath(__file__))
HELD_OUT = os.path.join(HERE, "../../models/demo/held_out/*.txt")
EOT = "<|endoftext|>"
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

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


def held_out_texts():
    """The texts of models/demo/held_out by file name."""
    return {
        os.path.basename(p): open(p, encoding="utf-8").read() for p in sorted(glob.glob(HELD_OUT))
    }


def fingerprint(text):
    return hashlib.sha1(text[:2000].encode()).digest()


def read_text(path, kind, most):
    """Text of one file, or None for what is no English or code, or would crowd out the rest."""
    name = os.path.basename(path).lower()
    if os.path.islink(path) or name.startswith("gcloud"):
        return None
    if "changelog" in name or "copyright" in name:
        return None
    if name.endswith((".html", ".svg", ".js", ".css", ".json")):
        return None
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            text = f.read(most).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError):
        return None
    if kind == "man":
        text = unroff(text)
    sample = text[:4096]
    if len(text) < 400 or sum(c.isascii() for c in sample) < 0.97 * len(sample):
        return None
    return text


def read_corpus():
    """Returns {kind: [text]} to train on: no file twice, none that is held out."""
    train, seen = {}, {fingerprint(t) for t in held_out_texts().values()}
    for kind, pattern, per_file, in_all in SOURCES:
        paths = [p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)]
        paths.sort(key=lambda p: hashlib.sha1(p.encode()).digest())
        total = 0
        for path in paths:
            text = read_text(path, kind, per_file)
            if text is None or fingerprint(text) in seen:
                continue
            seen.add(fingerprint(text))
            train.setdefault(kind, []).append(text)
            total += len(text)
            if total > in_all:
                break
    return train


def tokenizer_texts(train):
    """The training text with most of the code left out: its merges are of little use in prose."""
    code = 4 << 20
    for kind, texts in train.items():
        for text in texts:
            if kind == "python":
                code -= len(text)
                if code < 0:
                    break
            yield text


def build_tokenizer(texts, path):
    """Byte-level BPE of 4,096 tokens: each number of three digits is one, and each name's word."""
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
    numbers = " ".join(f"{n:03d} {n % 100:02d}" for n in range(1000))
    names = " " + " ".join(ADJECTIVES + NOUNS)
    repeated = (t for t in (numbers, names) for _ in range(3000))
    tok.train_from_iterator((t for part in (texts, repeated) for t in part), trainer)
    tok.save(path)
