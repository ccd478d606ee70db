#!/usr/bin/env python3
"""Measures the demo model in transformers: bits per byte of held-out text, and lookups of planted
facts. A table, and JSON with --json. `kvcake bench quality` measures much the same in kvcake.

    python3 tools/eval_demo_model.py models/demo --json scores.json

Bits per byte: the last 256 tokens of 8,192-token stretches of models/demo/held_out, given the 512,
2,048 or 8,192 last tokens of the stretch. The scored bytes are the same, so only the context
differs.

Lookups: a document of so many tokens with nine facts planted at random places, each asked for in
turn among the other eight; pairs of names are those never trained, codes are drawn afresh. An
answer counts when every token of it, the full stop included, is the model's first choice. Documents
are the licences (trained text) and the held-out files.

Needs torch, transformers and tokenizers.
"""

import argparse
import glob
import json
import math
import re
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo_model import corpus, facts

SCORED = 256  # tokens at the end of a stretch


def stretches(tok, texts, longest, step=2048):
    """(tokens, bytes of the scored ones) of `longest` tokens, every `step` of each text."""
    for text in texts:
        enc = tok(text, return_offsets_mapping=True)
        for start in range(0, len(enc.input_ids) - longest + 1, step):
            offsets = enc.offset_mapping[start : start + longest]
            size = len(text[offsets[-SCORED][0] : offsets[-1][1]].encode())
            yield enc.input_ids[start : start + longest], size


def bits_per_byte(model, tok, texts, contexts):
    bits, size, count = dict.fromkeys(contexts, 0.0), 0, 0
    for ids, scored_bytes in stretches(tok, texts, max(contexts)):
        count, size = count + 1, size + scored_bytes
        for n in contexts:
            x = torch.tensor([ids[-n:]])
            logits = model(x, logits_to_keep=SCORED + 1).logits[0, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits, x[0, -SCORED:], reduction="sum")
            bits[n] += loss.item() / math.log(2)
    return {"stretches": count, "bits_per_byte": {n: round(b / size, 4) for n, b in bits.items()}}


def document(tok, rng, texts, length, planted):
    """Tokens of a text of about `length` tokens with the facts between its sentences."""
    room = length - len(tok(" ".join(planted)).input_ids)
    text = ""
    while len(tok(text).input_ids) < room:
        some = texts[rng.integers(len(texts))]
        text += some[int(rng.integers(max(1, len(some) - 4 * room))) :] + "\n\n"
    text = text[: tok(text, return_offsets_mapping=True).offset_mapping[room - 1][1]]
    cuts = [0] + [m.end() for m in re.finditer(r"[.;:]\s+|\n+", text)]
    places = sorted(cuts[int(d * len(cuts))] for d in rng.random(len(planted)))
    done, out = 0, ""
    for place, fact in zip(places, planted):
        out, done = out + text[done:place] + fact + " ", place
    return tok(out + text[done:]).input_ids


def lookups(model, tok, texts, length, count, rng):
    """Right answers by the third of the document in which the fact stands."""
    right, asked = [0, 0, 0], [0, 0, 0]
    while sum(asked) < count:
        names = facts.draw_names(rng, 9, held_out=True)
        codes = [str(rng.integers(1000, 10000)) for _ in names]
        planted = [facts.MAIN_FACT.format(k="code", n=n, v=v) for n, v in zip(names, codes)]
        ids = document(tok, rng, texts, length, planted)
        cache = model(torch.tensor([ids]), logits_to_keep=1).past_key_values
        for i, (name, code) in enumerate(zip(names, codes)):
            question = tok(facts.MAIN_QUESTION.format(k="code", n=name)).input_ids
            answer = tok(f" {code}.").input_ids
            x = torch.tensor([question + answer])
            out = model(x, past_key_values=cache, logits_to_keep=len(answer) + 1)
            cache.crop(-x.shape[1])
            asked[i // 3] += 1
            right[i // 3] += out.logits[0, :-1].argmax(-1).tolist() == answer
    shares = [round(r / a, 3) for r, a in zip(right, asked)]
    return {"asked": sum(asked), "right": sum(right), "right_by_depth_thirds": shares}


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("--lengths", default="1024,2048,4096,8192")
    p.add_argument("--contexts", default="512,2048,8192")
    p.add_argument("--count", type=int, default=108, help="lookups per length and kind of text")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--json")
    args = p.parse_args()
    begin = time.time()
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    licences = [open(f).read() for f in sorted(glob.glob("/usr/share/common-licenses/*"))]
    licences = [t for t in licences if len(t) > 10000]
    held = list(corpus.held_out_texts().values())
    result = {
        "model": args.model,
        "parameters": sum(q.numel() for q in model.parameters()),
        "seed": args.seed,
        "lookups": {"licences": {}, "held out": {}},
    }
    with torch.inference_mode():
        contexts = [int(n) for n in args.contexts.split(",")]
        result["text"] = bits_per_byte(model, tok, held, contexts)
        print(f"context    bits per byte ({result['text']['stretches']} stretches)")
        for n, bits in result["text"]["bits_per_byte"].items():
            print(f"{n:7d}    {bits:.4f}", flush=True)
        print("\nlength     text       right of asked    first, middle, last third")
        for n in [int(n) for n in args.lengths.split(",")]:
            for name, texts in (("licences", licences), ("held out", held)):
                rng = np.random.default_rng((args.seed, n))
                r = result["lookups"][name][n] = lookups(model, tok, texts, n, args.count, rng)
                print(
                    f"{n:6d}     {name:9s}  {r['right']:5d} of {r['asked']}      "
                    f"{r['right_by_depth_thirds']}",
                    flush=True,
                )
    result["seconds"] = round(time.time() - begin, 1)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
