"""Tokens that tokenizer_config.json and older files name beside a tokenizer.json, and what
transformers makes of texts with them; and those that it has for a tokenizer's class."""
import inspect
import json
import tempfile
from pathlib import Path

from goldens.files import write_json

BASE = "llama2"  # a golden tokenizer: it lists <unk>, <s> and </s>
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TOKENS = ["<s>", "</s>", "<unk>", "<x>", "<y>", "[PAD]", "[word]"]
TEXTS = ["The quick brown fox", *(f"The{t}quick {t} fox{t}{t}" for t in TOKENS), "".join(TOKENS)]


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True, **flags}


def written(content, **flags):
    """As transformers once wrote it: in tokenizer_config.json, without `special`."""
    value = token(content, **flags)
    del value["special"]
    return {"__type": "AddedToken", **value}


# tokenizer_config.json, special_tokens_map.json, added_tokens.json, whether tokenizer.json lists
# its own, what its vocabulary has besides, and how it lists some of them.
CASES = {
    "listed": ({**NAMES, "pad_token": "</s>", "cls_token": None}, None, None, True, []),
    "not listed": (NAMES, None, None, False, []),
    "other end": ({**NAMES, "eos_token": "<x>"}, None, None, True, ["<x>"]),
    "unnamed": ({"bos_token": "", "mask_token": ""}, None, None, False, []),
    "pad in the vocabulary": ({**NAMES, "pad_token": "[PAD]"}, None, None, True, ["[PAD]"]),
    "pad without a place": ({**NAMES, "pad_token": "[PAD]"}, None, None, True, []),
    "objects": (
        {"bos_token": written("<s>", normalized=True), "eos_token": written("<x>", lstrip=True),
         "unk_token": written("<unk>")}, None, None, False, []),
    "list": (
        {**NAMES, "additional_special_tokens": ["<y>", "<s>", written("[word]", rstrip=True)]},
        None, None, True, ["[word]"]),
    "newer list": (
        {**NAMES, "extra_special_tokens": ["<y>"], "additional_special_tokens": ["<x>"]},
        None, None, True, []),
    "names of the model's own": (
        {**NAMES, "image_token": "<x>", "extra_special_tokens": {"video_token": "<y>"},
         "add_bos_token": True}, None, None, True, ["<x>"]),
    "by id": (
        {**NAMES, "pad_token": "<x>", "added_tokens_decoder": {
            "864": token("[word]", special=False, normalized=True, rstrip=True),
            "863": token("<x>", special=False, lstrip=True),
            "2": token("</s>", normalized=True)}},
        None, None, True, []),
    "by id and not listed": (
        {"eos_token": "</s>", "added_tokens_decoder": {
            "0": token("<unk>"), "1": token("<s>"), "2": token("</s>", rstrip=True)}},
        {"eos_token": "<x>", "pad_token": "<x>"}, {"<y>": 863}, False, []),
    "older files": (
        {"eos_token": "<s>", "additional_special_tokens": ["<y>"]},
        {"eos_token": token("</s>", lstrip=True), "pad_token": "[PAD]",
         "additional_special_tokens": ["<x>"]},
        {"[PAD]": 864, "[word]": 863}, False, []),
    "older files alone": (
        None, {"eos_token": "<x>", "additional_special_tokens": ["<y>"]}, {"<x>": 863}, True, []),
    "newer names and an older list": (
        {**NAMES, "additional_special_tokens": ["<x>"],
         "extra_special_tokens": {"image_token": "<y>"}}, None, None, True, ["<x>", "<y>"]),
    "listed otherwise by id": (
        {"added_tokens_decoder": {
            "0": token("<unk>", lstrip=True, rstrip=True), "1": token("<s>", special=False),
            "2": token("</s>", normalized=True)}},
        None, None, True, [],
        {"<unk>": {"special": False},
         "<s>": {"lstrip": True, "rstrip": True}, "</s>": {"special": False}}),
    "listed otherwise by role": (
        {**NAMES, "eos_token": written("</s>", lstrip=True), "extra_special_tokens": ["<unk>"]},
        {"bos_token": token("<s>", rstrip=True)}, None, True, [],
        {name: {"special": False} for name in NAMES.values()}),
}

# Whose vocabulary is made of other files: of these only the names count.
CLASSES = ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "Qwen2Tokenizer",
           "Qwen2TokenizerFast", "GPT2Tokenizer", "GemmaTokenizerFast", "GPTNeoXTokenizerFast",
           "PreTrainedTokenizerFast"]


def write_files(directory, case, base):
    config, token_map, added, listed, words, *flags = case
    tokenizer = json.loads(base)
    if not listed:
        tokenizer["added_tokens"] = []
    for entry in tokenizer["added_tokens"]:
        entry.update(flags[0].get(entry["content"], {}) if flags else {})
    for word in words:
        tokenizer["model"]["vocab"][word] = len(tokenizer["model"]["vocab"])
    write_json(directory / "tokenizer.json", tokenizer)
    files = {"tokenizer_config.json": config, "special_tokens_map.json": token_map,
             "added_tokens.json": added}
    files = {name: value for name, value in files.items() if value is not None}
    for name, value in files.items():
        write_json(directory / name, value)
    return files


def golden(case, base):
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as directory:
        files = write_files(Path(directory), case, base)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        texts.append({
            "text": text, "ids": ids, "decoded": tokenizer.decode(ids),
            "decoded_skipping": tokenizer.decode(ids, skip_special_tokens=True)})
    return {"files": files, "listed": case[3], "words": case[4],
            "flags": case[5] if len(case) > 5 else {}, "texts": texts,
            "eos": tokenizer.eos_token_id if tokenizer.eos_token else None,
            "names": {role: content for role, content in tokenizer.special_tokens_map.items()
                      if content}}


def class_names(name):
    import transformers

    tokenizer = getattr(transformers, name)
    given = inspect.signature(tokenizer.__init__).parameters
    return {role: str(given[role].default) for role in tokenizer.SPECIAL_TOKENS_ATTRIBUTES
            if role in given and given[role].default is not None}


def make(tokenizers):
    """TOKENIZERS/named_tokens.json and class_names.json; the tokenizer that the first is based on
    must be there."""
    base = (tokenizers / BASE / "tokenizer.json").read_text(encoding="utf-8")
    path = tokenizers / "named_tokens.json"
    write_json(path, {name: golden(case, base) for name, case in CASES.items()},
               separators=(",", ":"))
    print(f"{path}: {len(CASES)} cases, {path.stat().st_size} bytes")
    write_json(tokenizers / "class_names.json", {name: class_names(name) for name in CLASSES})
