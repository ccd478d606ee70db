#!/usr/bin/env python3
"""Measures Cake in vLLM beside vLLM alone and beside waiting for the whole hit, in turns.

Run by `./dev vllm --bench --json F`. Three engines live at once, each with one thread: vLLM alone,
the plugin with "load", the plugin with "cake". Documents are stored first; the memory of the plugin
holds little more than one, so that each is loaded anew. Rows: {"model", "tokens", "ratio", "policy",
"ttft_s", "ttfts_s", "bound_s", "loaded_tokens", "answers_equal", "tokens_equal",
"logprob_difference_max"}, where ratio is the time to load over that to compute, 0 the disk as it
is; answers are equal when the tokens are and log probabilities differ by 0.005 at most. The bound
is the best split of the measured compute curve and the rate, plus what a prompt takes that vLLM's
prefix cache has. With --pairs: {"test": "nothing stored"} rows, the plugin over vLLM alone, each
pair one after the other, with a 95% interval of the mean.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import vllm_fixture  # noqa: E402

# In turns: memory has lost the chunks of one when its turn comes again, also where most of it is
# computed.
DOCUMENTS = 12
MEASURED = 3  # of them, for the curve of computing
CHUNK = 128
MODELS = {"demo": 6646, "smollm2-135m": 8000}


def model_folder(name):
    if name == "demo":
        return vllm_fixture.MODEL
    folder = ROOT / "build" / "models" / name
    if not folder.exists():
        subprocess.run([ROOT / "build/release/kvcake", "model", "synth", "--arch", name, "--out",
                        folder], check=True)
    return folder


def timed(llm, document, salt=None):
    """Seconds to the first token, the token, and its log probability."""
    began = time.perf_counter()
    (answer,) = vllm_fixture.generate(llm, [document], max_tokens=1, salt=salt)
    return time.perf_counter() - began, answer


def fresh(llm, document, salt=None):
    llm.reset_prefix_cache()
    return timed(llm, document, salt)


class Model:
    """Documents that are stored, and how long computing their beginnings takes."""

    def __init__(self, name, tokens, store):
        self.name, self.tokens, self.folder = name, tokens, model_folder(name)
        config = json.loads((self.folder / "config.json").read_text())
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.chunk_bytes = (CHUNK * config["num_hidden_layers"] * config["num_key_value_heads"]
                            * head_dim * 2 * 2)
        self.layers, self.vocabulary = config["num_hidden_layers"], config["vocab_size"]
        self.chunks = (tokens - 1) // CHUNK
        words = vllm_fixture.words(tokens + DOCUMENTS)
        self.documents = [[i + 1] + words[i:i + tokens - 1] for i in range(DOCUMENTS)]
        self.store = store
        context = {"max_model_len": -(-(tokens + 64) // CHUNK) * CHUNK}
        self.vllm = {**context, "model": str(self.folder)}

    def engine(self, **options):
        if options:
            options["memory_bytes"] = int(1.3 * self.chunks * (self.chunk_bytes
                                                              + 4096 * (self.layers + 1)))
            options = {"store": self.store, **options}
        return vllm_fixture.engine(options.pop("store", None), vllm=self.vllm, **options)

    def measure_alone(self, llm):
        self.cached_s = []
        points = []
        for document in self.documents[:MEASURED]:
            for eighths in (2, 4, 6, 8):
                count = self.tokens * eighths // 8
                points.append((count, fresh(llm, document[:count])[0]))
            self.cached_s.append(timed(llm, document)[0])
        self.cached_s = statistics.median(self.cached_s)
        self.compute_s = statistics.median(s for count, s in points if count == self.tokens)
        # Least squares of b x + a x^2 for what is above a cached prompt.
        s2 = sum(x * x for x, _ in points)
        s3, s4 = sum(x ** 3 for x, _ in points), sum(x ** 4 for x, _ in points)
        y1 = sum(x * (t - self.cached_s) for x, t in points)
        y2 = sum(x * x * (t - self.cached_s) for x, t in points)
        scale = s2 * s4 - s3 * s3
        self.curve = ((y1 * s4 - y2 * s3) / scale, (y2 * s2 - y1 * s3) / scale)

    def bound_s(self, rate):
        b, a = self.curve
        splits = []
        for front in range(self.chunks + 1):
            x = front * CHUNK
            load = (self.chunks - front) * self.chunk_bytes / rate if rate else 0.0
            splits.append(max(b * x + a * x * x, load))
        return min(splits) + self.cached_s


def measure_ratio(model, alone, ratio, repeats, rows):
    rate = model.chunks * model.chunk_bytes / (ratio * model.compute_s) if ratio else 0.0
    with contextlib.ExitStack() as stack:
        arms = {"compute": alone}
        for policy in ("load", "cake"):
            arms[policy] = stack.enter_context(
                model.engine(policy=policy, load_rate=rate, keep="none"))
        for policy in ("load", "cake"):  # costs are learned, code is warm
            for document in model.documents:
                fresh(arms[policy], document)
        times = {policy: [] for policy in arms}
        answers = {policy: [] for policy in arms}
        for repeat in range(repeats):
            document = model.documents[repeat % DOCUMENTS]
            for policy, llm in arms.items():
                seconds, answer = fresh(llm, document)
                times[policy].append(seconds)
                answers[policy].append(answer)
    for policy, seconds in times.items():
        for took, answer in zip(seconds, answers[policy]):
            at_least_s = answer[2] // CHUNK * model.chunk_bytes / rate if rate else 0.0
            assert took > 0.9 * at_least_s, "chunks came from memory: more documents are wanted"
        pairs = list(zip(answers[policy], answers["compute"]))
        tokens_equal = all(a[0] == b[0] for a, b in pairs)
        difference = max(abs(a[1][0] - b[1][0]) for a, b in pairs)
        rows.append({"model": model.name, "tokens": model.tokens, "ratio": ratio, "policy": policy,
                     "ttft_s": statistics.median(seconds), "ttfts_s": seconds,
                     "bound_s": model.bound_s(rate), "cached_s": model.cached_s,
                     "loaded_tokens": [answer[2] for answer in answers[policy]],
                     "answers_equal": tokens_equal and difference <= 0.005,
                     "tokens_equal": tokens_equal, "logprob_difference_max": difference})
        print(f"{model.name} {model.tokens} ratio {ratio}: {policy:8}"
              f"{1e3 * rows[-1]['ttft_s']:9.1f} ms, bound {1e3 * rows[-1]['bound_s']:.1f}, "
              f"{statistics.median(rows[-1]['loaded_tokens']):.0f} tokens loaded, tokens equal: "
              f"{tokens_equal}, log probabilities within {difference:.4f}", flush=True)


def measure_nothing_stored(model, alone, pairs, rows):
    """Prompts that nobody has seen, which the plugin stores meanwhile."""
    ratios = []
    with tempfile.TemporaryDirectory(dir=model.store.parent) as empty, \
            model.engine(store=empty, policy="cake") as llm:
        for pair in range(-2, pairs):
            document = [pair % 64 + 100, *model.documents[0][1:]]
            arms = [(alone, None), (llm, f"pair {pair}")]
            seconds = {salt: fresh(engine, document, salt)[0]
                       for engine, salt in (arms if pair % 2 else arms[::-1])}
            if pair >= 0:
                ratios.append(seconds[f"pair {pair}"] / seconds[None])
    mean = statistics.mean(ratios)
    half = 2.0 * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    rows.append({"model": model.name, "tokens": model.tokens, "test": "nothing stored",
                 "over_alone": mean, "interval": [mean - half, mean + half], "ratios": ratios})
    print(f"{model.name} {model.tokens} nothing stored: {mean:.4f} of vLLM alone, "
          f"{mean - half:.4f} to {mean + half:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ratios", nargs="+", type=float, default=[4, 2, 1, 0.5, 0.25, 0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one cell, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.models, args.ratios, args.repeats, args.pairs = ["demo"], [1], 3, 2
    rows = []
    for name in args.models:
        folder = ROOT / "build" / "bench-vllm"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = Model(name, MODELS[name], folder / "store")
        with model.engine(policy="compute", keep="all") as llm:
            for document in model.documents:
                timed(llm, document)
        with model.engine() as alone:
            for document in model.documents[:MEASURED]:
                fresh(alone, document)
            model.measure_alone(alone)
            for ratio in args.ratios:
                measure_ratio(model, alone, ratio, args.repeats, rows)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1) + "\n")
            if args.pairs:
                measure_nothing_stored(model, alone, args.pairs, rows)
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(
            rows + [{"load": os.getloadavg()[0]}], indent=1) + "\n")


if __name__ == "__main__":
    main()
