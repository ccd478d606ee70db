#!/usr/bin/env python3
"""Measures the demo model: bits per byte of held-out text and lookups of planted facts. A table,
and JSON with --json.

    python3 tools/eval_demo_model.py models/demo --json scores.json

Bits per byte: the last 256 tokens of 8,192-token stretches of files that tools/train_demo_model.py
holds out, given the 512, 2,048 or 8,192 last tokens of the stretch. The scored bytes are the same,
so only the context differs.

Lookups: a document of so many tokens (the licences, or held-out files) with nine facts planted at
random places, of which the question at the end asks for one; names and numbers are drawn from those
never trained. An answer counts when every token of it, the full stop included, is the model's first
choice. Short of --distractors 8, fewer facts are planted.

Demo: what a demo would show. Three facts stand at 15%, 50% and 85% of one licence's text (--demo
names it) cut to so many tokens, and each is asked for in turn, one per prompt.

Needs torch, transformers and tokenizers.
"""

import argparse
import json
import math
import os
import re
import sys
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_demo_model as recipe


def bits_per_byte(model, tok, texts, contexts, windows, rng):
    longest, scored = max(contexts), 256
    found = []
    for i in rng.permutation(len(texts)):
        enc = tok(texts[i], return_offsets_mapping=True)
        if len(enc.input_ids) >= longest:
            start = int(rng.integers(len(enc.input_ids) - longest + 1))
            offsets = enc.offset_mapping[start : start + longest]
            size = len(texts[i][offsets[-scored][0] : offsets[-1][1]].encode())
            found.append((enc.input_ids[start : start + longest], size))
        if len(found) == windows:
            break
    bits = {n: 0.0 for n in contexts}
    for ids, _ in found:
        for n in contexts:
            x = torch.tensor([ids[-n:]])
            logits = model(x, logits_to_keep=scored + 1).logits[0, :-1].float()
            bits[n] += torch.nn.functional.cross_entropy(
                logits, x[0, -scored:], reduction="sum"
            ).item() / math.log(2)
    size = sum(s for _, s in found)
    return {
        "windows": len(found),
        "bits_per_byte": {n: round(b / size, 4) for n, b in bits.items()},
    }


def lookup_prompt(tok, rng, texts, length, distractors=8, kind="code", depth=None, others=None):
    """A prompt of about `length` tokens, and its answer. depth: of the fact, 0 to 1, or any;
    others: the distractors' depths."""
    names = recipe.draw_names(rng, distractors + 1, held_out=True)
    facts = [recipe.MAIN_FACT.format(k=kind, n=n, v=rng.integers(1000, 10000)) for n in names]
    question = recipe.MAIN_QUESTION.format(k=kind, n=names[0])
    room = length - len(tok(" ".join(facts) + question).input_ids)
    text = ""
    while len(tok(text).input_ids) < room:
        text += texts[rng.integers(len(texts))] + "\n\n"
    text = text[: tok(text, return_offsets_mapping=True).offset_mapping[room - 1][1]]
    cuts = [0] + [m.end() for m in re.finditer(r"[.;:]\s+|\n\n+", text)]
    places = [int(d * len(cuts)) for d in rng.random(len(facts))]
    if depth is not None:
        places[0] = min(len(cuts) - 1, int(depth * len(cuts)))
    for i, d in enumerate(others or []):
        places[1 + i] = min(len(cuts) - 1, int(d * len(cuts)))
    done, out = 0, ""
    for place, fact in sorted(zip(places, facts)):
        out, done = out + text[done : cuts[place]] + fact + " ", cuts[place]
    return out + text[done:] + question, " " + facts[0].split()[-1]


def answered(model, tok, prompt, answer):
    ids = tok(prompt).input_ids
    target = tok(answer).input_ids
    assert tok(prompt + answer).input_ids == ids + target
    x = torch.tensor([ids + target])
    best = model(x, logits_to_keep=len(target) + 1).logits[0, :-1].argmax(-1)
    return best.tolist() == target


def demo(model, tok, text, length, count, rng):
    depths = [0.15, 0.5, 0.85]
    right = [0, 0, 0]
    for i in range(count):
        others = [d for d in depths if d != depths[i % 3]]
        prompt, answer = lookup_prompt(
            tok, rng, [text], length, distractors=2, depth=depths[i % 3], others=others
        )
        right[i % 3] += answered(model, tok, prompt, answer)
    return {"count": count, "right": sum(right), "right_by_depth": right}


def lookups(model, tok, texts, length, count, distractors, rng):
    right, depths = 0, []
    for i in range(count):
        depth = (i + 0.5) / count
        prompt, answer = lookup_prompt(tok, rng, texts, length, distractors, depth=depth)
        ok = answered(model, tok, prompt, answer)
        right += ok
        depths.append(ok)
    thirds = [round(float(np.mean(part)), 3) for part in np.array_split(np.array(depths, float), 3)]
    return {"count": count, "right": round(right / count, 4), "right_by_depth_thirds": thirds}


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("--lengths", default="1024,2048,4096,8192")
    p.add_argument("--contexts", default="512,2048,8192")
    p.add_argument("--count", type=int, default=60, help="lookups per length and kind of text")
    p.add_argument("--distractors", type=int, default=8)
    p.add_argument("--demo", default="/usr/share/common-licenses/GPL-3", help="a text, or nothing")
    p.add_argument("--demo-lengths", default="512,1024,2048,4096,7800")
    p.add_argument("--demo-count", type=int, default=60, help="questions per length")
    p.add_argument("--windows", type=int, default=40, help="stretches of text for bits per byte")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--json")
    args = p.parse_args()
    begin = time.time()
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    train, held = recipe.read_corpus()
    held = [t for v in held.values() for t in v]
    prose = [t for t in held if len(re.findall(r"[.;:]\s+|\n\n+", t)) > 20]
    contexts = [int(n) for n in args.contexts.split(",")]
    result = {
        "model": args.model,
        "parameters": sum(q.numel() for q in model.parameters()),
        "seed": args.seed,
    }
    with torch.inference_mode():
        if args.windows:
            result["text"] = bits_per_byte(
                model, tok, held, contexts, args.windows, np.random.default_rng(args.seed)
            )
            print("context    bits per byte")
            for n, bits in result["text"]["bits_per_byte"].items():
                print(f"{n:7d}    {bits:.4f}", flush=True)
        if args.count:
            result["lookups"] = {}
            print("\nlength     text        right    first, middle, last third")
        for n in [int(n) for n in args.lengths.split(",")] if args.count else []:
            for name, texts in (("licences", train["licence"]), ("held out", prose)):
                rng = np.random.default_rng((args.seed, n))
                r = lookups(model, tok, texts, n, args.count, args.distractors, rng)
                result["lookups"].setdefault(name, {})[n] = r
                print(
                    f"{n:6d}     {name:9s}  {100 * r['right']:5.1f}%    "
                    f"{r['right_by_depth_thirds']}",
                    flush=True,
                )
        if args.demo and args.demo_count:
            with open(args.demo) as f:
                text = f.read()
            result["demo"] = {"text": args.demo, "facts": 3}
            print("\nlength     demo: right    at 15%, 50%, 85%")
        for n in [int(n) for n in args.demo_lengths.split(",")] if "demo" in result else []:
            r = demo(model, tok, text, n, args.demo_count, np.random.default_rng((args.seed, n)))
            result["demo"][n] = r
            print(f"{n:6d}     {r['right']} of {r['count']}    {r['right_by_depth']}", flush=True)
    result["seconds"] = round(time.time() - begin, 1)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
