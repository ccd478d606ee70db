#!/usr/bin/env python3
"""Fits machines that `kvcake run --emulate` waits like to what `kvcake bench slices` measured.

    kvcake bench slices --backend cuda --arch llama-3.1-8b --json slices.json
    tools/fit_slices.py slices.json --out bench/profiles    # writes DEVICE-MODEL.json there

t = c0 + g L + b x + a (2 L x + x^2) seconds for a slice of x tokens after L: non-negative least
squares of relative errors, on the median of each slice's repeats. Prints how well it fits.
"""

import argparse
import json
import re
import statistics
from pathlib import Path

from fit_profiles import fit


def features(prefix, tokens):
    """What c0, g, b and a are multiplied by."""
    return [1, prefix, tokens, 2 * prefix * tokens + tokens * tokens]


def profile(model):
    cells = [
        (features(s["prefix"], s["tokens"]), statistics.median(s["seconds"]))
        for s in model["slices"]
    ]
    answer = fit(cells, (0, 1, 2, 3))
    off = [abs(sum(f * x for f, x in zip(cell, answer)) / s - 1) for cell, s in cells]
    c0, g, b, a = (float(f"{x:.6g}") for x in answer)
    name = Path(model["model"]).name
    return {
        "name": f"{name} on {model['device']}",
        "source": "kvcake bench slices",
        "fit": {
            "cells": len(cells),
            "mean_error": round(sum(off) / len(off), 4),
            "worst_error": round(max(off), 4),
        },
        "layers": model["layers"],
        "kv_bytes_per_token": model["kv_bytes_per_token"],
        "max_positions": model["max_positions"],
        "attention": "causal",
        "c0": c0,
        "g": g,
        "b": b,
        "a": a,
    }


def file_name(model):
    words = f"{model['device']}-{Path(model['model']).name}".lower()
    return re.sub(r"[^a-z0-9.]+", "-", words).strip("-") + ".json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("slices", type=Path, help="the JSON of kvcake bench slices")
    parser.add_argument("--out", type=Path, help="directory for the profiles (default: print only)")
    arguments = parser.parse_args()
    for model in json.loads(arguments.slices.read_text(encoding="utf-8")):
        made = profile(model)
        of = made["fit"]
        print(
            f"{made['name']}: {of['cells']} slices, error mean {of['mean_error']:.1%}, worst "
            f"{of['worst_error']:.1%}: c0 {made['c0']:.3g} g {made['g']:.3g} b {made['b']:.3g} "
            f"a {made['a']:.3g}"
        )
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            path = arguments.out / file_name(model)
            path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
            print(f"  {path}")


if __name__ == "__main__":
    main()
