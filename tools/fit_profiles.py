#!/usr/bin/env python3
"""Fits bench/profiles/**.json, the machines that `kvcake run --emulate` waits like, to bench/papers.

    tools/fit_profiles.py           write them and print how well they fit
    tools/fit_profiles.py --check   compare with the committed ones

The papers' attention is dense: t = max(floor, c0 + b x + a x (L + x)) seconds for a slice of x tokens
after L. Cake prints ratios; the time of loading alone is known (tokens x bytes / bandwidth), so
the time of computing alone is too. Where a table has one length or one slice size only, the share
of attention follows from the model's arithmetic, or c0 is 0.

profiles/kvr has one rank of several as KV-Runahead ran them, fitted to the paper's tensor and
sequence parallel runs: n/p rows against n keys, plus the all-gather of K and V, a ring of p - 1
messages at every layer, each with a latency. They have a floor: a short part takes as long as a
shorter one. The chain's times (kvr_s) are not looked at; they are predicted from these profiles
(src/runahead/chain_profiles_test.cc). One-GPU seconds are printed for Llama 7B alone: they join its
fit without c0, which is what a rank of several has beyond one GPU.
"""

import argparse
import csv
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPERS = ROOT / "bench" / "papers"
PROFILES = ROOT / "bench" / "profiles"
SLICE = 512
CONTEXT = 16384
KVR_LINK = 300e9  # bytes/s of the paper's A100s

# layers, hidden, parameters: what the share of attention follows from.
SHAPES = {
    "LongAlpaca-7B": (32, 4096, 6.6e9),
    "LongAlpaca-13B": (40, 5120, 12.9e9),
    "LLaMA-3.1-8B": (32, 4096, 7.5e9),
    "LLaMA-3.1-70B": (80, 8192, 69.5e9),
}


# layers, KV bytes per token at FP16: layers x K and V x KV heads x head size x 2.
KVR_MODELS = {
    "Llama 7B": (32, 32 * 2 * 32 * 128 * 2),
    "Llama 7B MQA": (32, 32 * 2 * 1 * 128 * 2),
    "Llama 7B GQA8": (32, 32 * 2 * 8 * 128 * 2),
    "Llama 13B": (40, 40 * 2 * 40 * 128 * 2),
    "Llama 30B": (60, 60 * 2 * 52 * 128 * 2),
    "Falcon 1B": (24, 24 * 2 * 32 * 64 * 2),
    "Falcon 7B": (32, 32 * 2 * 1 * 64 * 2),
}


def table(name):
    with open(PAPERS / name, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def features(tokens, slice_tokens):
    """What c0, b and a are multiplied by when a prompt is computed slice by slice."""
    rows = [(start, min(slice_tokens, tokens - start)) for start in range(0, tokens, slice_tokens)]
    return [len(rows), tokens, sum(x * (start + x) for start, x in rows)]


def solve(matrix, vector):
    """The solution of a small linear system, or None."""
    n = len(vector)
    rows = [list(row) + [value] for row, value in zip(matrix, vector)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-30:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def fit(cells, columns):
    """Non-negative least squares of relative errors over [(features, seconds)]: every subset of the
    columns, of those without a negative coefficient the best."""
    scaled = [[f[c] / seconds for c in columns] for f, seconds in cells]
    best, best_error = None, float("inf")
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(range(len(columns)), size):
            normal = [[sum(r[i] * r[j] for r in scaled) for j in chosen] for i in chosen]
            answer = solve(normal, [sum(r[i] for r in scaled) for i in chosen])
            if answer is None or min(answer) < 0:
                continue
            rest = [sum(r[i] * x for i, x in zip(chosen, answer)) - 1 for r in scaled]
            error = sum(e * e for e in rest)
            if error < best_error - 1e-12:
                best, best_error = dict(zip((columns[i] for i in chosen), answer)), error
    return [best.get(i, 0.0) for i in range(len(cells[0][0]))]


def predict(features_of_cell, answer, floor):
    return max(floor, sum(x * y for x, y in zip(features_of_cell, answer)))


def fit_with_floor(cells):
    """The least squared error, and its floor, in whole milliseconds, and (c0, b, a). A cell at the
    floor says nothing of the others."""
    best = None
    for floor in (ms / 1000 for ms in range(int(min(s for _, s in cells) * 1500))):
        above, answer = None, None
        rest = cells
        for _ in range(10):
            if above == rest or not rest:
                break
            above, answer = rest, fit(rest, (0, 1, 2))
            rest = [c for c in cells if predict(c[0], answer, 0.0) >= floor]
        error = sum((predict(f, answer, floor) / s - 1) ** 2 for f, s in cells)
        if best is None or error < best[0] - 1e-12:
            best = (error, floor, answer)
    return best


def without_latency(cells, latency):
    return [(f, seconds - messages * latency) for f, seconds, messages in cells]


def fit_with_latency(cells):
    """The latency of a message, in steps of 10 us, and the floor and (c0, b, a) that go with it."""
    best = None
    for latency in (us / 1e6 for us in range(0, 160, 10)):
        error, floor, answer = fit_with_floor(without_latency(cells, latency))
        if best is None or error < best[0] - 1e-12:
            best = (error, latency, floor, answer)
    return best[1:]


def profile(name, source, layers, kv_bytes, cells, answer, max_positions=32768, floor=0.0):
    off = [abs(predict(f, answer, floor) / s - 1) for f, s in cells]
    c0, b, a = (float(f"{x:.6g}") for x in answer)
    return {
        "name": name,
        "source": source,
        "fit": {
            "cells": len(cells),
            "mean_error": round(sum(off) / len(off), 4),
            "worst_error": round(max(off), 4),
        },
        "layers": layers,
        "kv_bytes_per_token": kv_bytes,
        "max_positions": max_positions,
        "attention": "dense",
        "c0": c0,
        "b": b,
        "a": a,
        "floor": floor,
    }


def cake_cells(kv_bytes):
    """Seconds of computing alone, by (GPUs, model): every cell of tables 3 to 6. At a share u of the
    compute a prompt takes 1/u as long."""
    cells = defaultdict(list)

    def add(gpus, model, row, tokens, slice_tokens):
        load_s = tokens * kv_bytes[model] * 8 / (float(row["gbps"]) * 1e9)
        share = float(row.get("utilisation", 1))
        seconds = load_s * float(row["x_compute"]) / float(row["x_io"]) * share
        cells[gpus, model].append((features(tokens, slice_tokens), seconds))

    for row in table("cake_table3.csv"):
        add(row["hardware"], "LongAlpaca-13B", row, CONTEXT, SLICE)
    for row in table("cake_table4.csv"):
        add("A100", row["model"], row, CONTEXT, int(row["compute_chunk"]))
    for row in table("cake_table5.csv"):
        if int(row["tokens"]) != CONTEXT:  # table 3 has those
            add(
                row["hardware"].removeprefix("1x"), "LongAlpaca-13B", row, int(row["tokens"]), SLICE
            )
    for row in table("cake_table6.csv"):
        if row["model"] != "LongAlpaca-13B":
            add("2xA100", row["model"], row, CONTEXT, SLICE)
    return cells


def cake_profiles():
    models = {row["model"]: row for row in table("cake_models.csv")}
    kv_bytes = {name: int(row["kv_kib_per_token"]) * 1024 for name, row in models.items()}
    made = {}
    for (gpus, model), cells in sorted(cake_cells(kv_bytes).items()):
        layers, hidden, parameters = SHAPES[model]
        # With slices of one size, c0 and b cannot be told apart.
        columns = (0, 1) if len({f[0] / f[1] for f, _ in cells}) > 1 else (1,)
        if len({f[1] for f, _ in cells}) > 1:
            answer = fit(cells, (*columns, 2))
        else:  # the arithmetic of attention for a pair over that of the rest for a token
            ratio = 4 * layers * hidden / (2 * parameters)
            joined = [((f[0], f[1] + ratio * f[2]), s) for f, s in cells]
            c0, b = fit(joined, columns)
            answer = [c0, b, b * ratio]
        file = f"{gpus}-{model}".lower()
        source = "Cake, ICML 2025, tables 3 to 6"
        made[file] = profile(f"{model} on {gpus}", source, layers, kv_bytes[model], cells, answer)
    return made


def kvr_profile():
    rows = [row for row in table("kvr_bandwidth.csv") if row["gpus"] == "1"]
    cells = [(features(int(r["tokens"]), int(r["tokens"])), float(r["ttft_s"])) for r in rows]
    answer = fit(cells, (0, 1, 2))
    source = "KV-Runahead, ICML 2024, table 3, one GPU"
    return {"a100-llama-7b": profile("Llama 7B on A100", source, 32, 524288, cells, answer)}


def kvr_rank_profiles():
    cells = defaultdict(list)
    for row in table("kvr_bandwidth.csv"):
        if row["gpus"] == "1":
            tokens = int(row["tokens"])
            cells["Llama 7B"].append(([0, tokens, tokens * tokens], float(row["ttft_s"]), 0))
    for row in table("kvr_ttft.csv"):
        tokens, ranks = int(row["tokens"]), int(row["gpus"])
        rows = tokens / ranks
        layers, kv_bytes = KVR_MODELS[row["model"]]
        seconds = float(row["tsp_s"]) - (ranks - 1) * rows * kv_bytes / KVR_LINK
        messages = (ranks - 1) * layers
        cells[row["model"]].append(([1, rows, rows * tokens], seconds, messages))
    source = "KV-Runahead, ICML 2024, tables 1 and 2, tensor and sequence parallel"
    made = {}
    for model, (layers, kv_bytes) in KVR_MODELS.items():
        latency, floor, answer = fit_with_latency(cells[model])
        quiet = without_latency(cells[model], latency)
        file = f"kvr/a100-{model}".lower().replace(" ", "-")
        name = f"{model} on A100, a rank of several"
        own = source + (", and table 3, one GPU" if model == "Llama 7B" else "")
        made[file] = profile(name, own, layers, kv_bytes, quiet, answer, floor=floor)
        made[file]["link_latency_s"] = latency
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare")
    arguments = parser.parse_args()
    made = {**cake_profiles(), **kvr_profile(), **kvr_rank_profiles()}
    wrong = []
    (PROFILES / "kvr").mkdir(parents=True, exist_ok=True)
    for name, content in sorted(made.items()):
        path = PROFILES / f"{name}.json"
        text = json.dumps(content, indent=2) + "\n"
        f = content["fit"]
        print(
            f"{name:26} {f['cells']:3} cells, error mean {f['mean_error']:.1%}, "
            f"worst {f['worst_error']:.1%}: c0 {content['c0']:.3g} b {content['b']:.3g} "
            f"a {content['a']:.3g} floor {content['floor']:.3g}"
        )
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong.append(path)
    for path in wrong:
        print(f"wrong: {path.relative_to(ROOT)} differs", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
