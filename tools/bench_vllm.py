#!/usr/bin/env python3
"""Measures Cake in vLLM beside vLLM alone and beside waiting for the whole hit, in turns.

Run by `./dev vllm --bench --json F`. Parts, which --parts can name, and --minutes bounds:

ratios     Engines that live at once, each with one thread: vLLM alone, the plugin with "load", the
           plugin with "cake", and LMCache with --lmcache. Documents are stored first; the memory of
           the plugin holds little more than one, so that each is loaded anew. Threads are where
           the system has them, unless VLLM_CPU_OMP_THREADS_BIND says otherwise.
           Rows: {"model", "tokens", "ratio", "policy", "ttft_s", "ttfts_s", "bound_s",
           "loaded_tokens", "answers_equal", "tokens_equal", "logprob_difference_max",
           "control_difference_max"}, where ratio is the time to load over that to compute, 0 the
           disk as it is; answers are equal when the tokens are and log probabilities differ by
           0.005 at most. The bound is the best split of the measured compute curve, as long as
           computing all took in these turns, and the rate, plus what a prompt takes that vLLM's
           prefix cache has. The control is what vLLM alone differs from itself by, between a prompt
           that it computed and one that its prefix cache had.
control    {"test": "control"} rows: vLLM alone against itself, by its prefix cache and with other
           slices of its prefill.
nothing    {"test": "nothing stored"} rows: prompts that nobody has seen, the plugin over vLLM
           alone, each pair one after the other, with a 95% interval of the mean.
random     {"test": "random prompts"} rows: `vllm bench serve` asks both servers, in pairs likewise.
documents  {"test": "documents"} rows: questions about long documents to three servers in turns,
           over a link at ratio 1; the time to the first token of the second round.
"""
import argparse
import contextlib
import itertools
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
sys.path.insert(0, str(ROOT / "tools"))
import bench_vllm_lmcache  # noqa: E402
import vllm_fixture  # noqa: E402

# In turns: memory has lost the chunks of one when its turn comes again, also where most of it is
# computed.
DOCUMENTS = 12
MEASURED = 3  # of them, for the curve of computing
WARM = 3  # of them, for a policy at a rate: costs are learned then
PARTS = ("ratios", "control", "nothing", "random", "documents")
CHUNK = 128
SPIN_S = 1.1  # for a second, the worker of an engine that has answered looks for work incessantly
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
    time.sleep(SPIN_S)
    began = time.perf_counter()
    (answer,) = vllm_fixture.generate(llm, [document], max_tokens=1, salt=salt)
    return time.perf_counter() - began, answer


def fresh(llm, document, salt=None):
    llm.reset_prefix_cache()
    return timed(llm, document, salt)


class Clock:
    """Says when a part has had its time. What began is finished: a round of all arms."""

    def __init__(self, minutes):
        self._end = time.monotonic() + 60 * minutes if minutes else math.inf

    def over(self):
        return time.monotonic() > self._end


def interval(ratios):
    """The mean, and a 95% interval of it."""
    mean = statistics.mean(ratios)
    half = 2.0 * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return {"over_alone": mean, "interval": [mean - half, mean + half], "ratios": ratios}


def difference(pairs):
    """Whether all tokens of answers are equal, and how far log probabilities are apart."""
    return (all(a[0] == b[0] for a, b in pairs),
            max(abs(a[1][0] - b[1][0]) for a, b in pairs))


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

    def engine(self, sliced=0, **options):
        """The plugin's; without options vLLM alone, which computes so many tokens a step."""
        if options:
            options["memory_bytes"] = self.memory_bytes()
            options = {"store": self.store, **options}
        vllm = {**self.vllm, **({"max_num_batched_tokens": sliced} if sliced else {})}
        return vllm_fixture.engine(options.pop("store", None), vllm=vllm, **options)

    def memory_bytes(self):
        """The plugin's memory: little more than a document."""
        return int(1.3 * self.chunks * (self.chunk_bytes + 4096 * (self.layers + 1)))

    def measure_alone(self, llm):
        self.cached_s = []
        points, answers = [], []
        for document in self.documents[:MEASURED]:
            for eighths in (2, 4, 6, 8):
                count = self.tokens * eighths // 8
                seconds, answer = fresh(llm, document[:count])
                points.append((count, seconds))
            seconds, cached = timed(llm, document)
            self.cached_s.append(seconds)
            answers.append((answer, cached))
        self.control_difference = difference(answers)[1]
        self.cached_s = statistics.median(self.cached_s)
        self.compute_s = statistics.median(s for count, s in points if count == self.tokens)
        # Least squares of b x + a x^2 for what is above a cached prompt.
        s2 = sum(x * x for x, _ in points)
        s3, s4 = sum(x ** 3 for x, _ in points), sum(x ** 4 for x, _ in points)
        y1 = sum(x * (t - self.cached_s) for x, t in points)
        y2 = sum(x * x * (t - self.cached_s) for x, t in points)
        scale = s2 * s4 - s3 * s3
        self.curve = ((y1 * s4 - y2 * s3) / scale, (y2 * s2 - y1 * s3) / scale)

    def bound_s(self, rate, compute_s):
        b, a = self.curve
        scale = (compute_s - self.cached_s) / (b * self.tokens + a * self.tokens ** 2)
        splits = []
        for front in range(self.chunks + 1):
            x = front * CHUNK
            load = (self.chunks - front) * self.chunk_bytes / rate if rate else 0.0
            splits.append(max(scale * (b * x + a * x * x), load))
        return min(splits) + self.cached_s


@contextlib.contextmanager
def lmcache(model, rate):
    """LMCache's connector, with all documents kept by its server."""
    with bench_vllm_lmcache.server(model.store.parent, rate, CHUNK) as config, \
            vllm_fixture.engine(vllm={**model.vllm, "kv_transfer_config": config}) as llm:
        for document in model.documents:
            fresh(llm, document)
        # What is kept goes to the second level in the background, as slowly as it comes back.
        for document in model.documents:
            while fresh(llm, document)[1][2] < model.chunks * CHUNK:
                time.sleep(0.5)
        yield llm


def measure_ratio(model, alone, ratio, args, clock, rows):
    rate = model.chunks * model.chunk_bytes / (ratio * model.compute_s) if ratio else 0.0
    with contextlib.ExitStack() as stack:
        arms = {"compute": alone}
        for policy in ("load", "cake"):
            arms[policy] = stack.enter_context(
                model.engine(policy=policy, load_rate=rate, keep="none"))
            for document in model.documents[-WARM:]:
                fresh(arms[policy], document)
        if args.lmcache:
            arms["lmcache"] = stack.enter_context(lmcache(model, rate))
        times = {policy: [] for policy in arms}
        answers = {policy: [] for policy in arms}
        for repeat in range(args.repeats):
            if repeat > 0 and clock.over():
                break
            document = model.documents[repeat % DOCUMENTS]
            for policy, llm in arms.items():
                seconds, answer = fresh(llm, document)
                times[policy].append(seconds)
                answers[policy].append(answer)
    bound_s = model.bound_s(rate, statistics.median(times["compute"]))
    for policy, seconds in times.items():
        for took, answer in zip(seconds, answers[policy]):
            at_least_s = answer[2] // CHUNK * model.chunk_bytes / rate if rate else 0.0
            assert took > 0.9 * at_least_s, "chunks came from memory: more documents are wanted"
        tokens_equal, apart = difference(list(zip(answers[policy], answers["compute"])))
        rows.append({"model": model.name, "tokens": model.tokens, "ratio": ratio, "policy": policy,
                     "ttft_s": statistics.median(seconds), "ttfts_s": seconds,
                     "bound_s": bound_s, "cached_s": model.cached_s,
                     "loaded_tokens": [answer[2] for answer in answers[policy]],
                     "answers_equal": tokens_equal and apart <= 0.005,
                     "tokens_equal": tokens_equal, "logprob_difference_max": apart,
                     "control_difference_max": model.control_difference})
        print(f"{model.name} {model.tokens} ratio {ratio}: {policy:8}"
              f"{1e3 * rows[-1]['ttft_s']:9.1f} ms, bound {1e3 * rows[-1]['bound_s']:.1f}, "
              f"{statistics.median(rows[-1]['loaded_tokens']):.0f} tokens loaded, tokens equal: "
              f"{tokens_equal}, log probabilities within {apart:.4f}", flush=True)


def measure_control(model, alone, rows):
    """What vLLM alone differs from itself by."""
    answers = {"prefix cache": []}
    documents = model.documents[:2 * MEASURED]
    computed = []
    for document in documents:
        computed.append(fresh(alone, document)[1])
        answers["prefix cache"].append(timed(alone, document)[1])
    for tokens in (256, 128):
        with model.engine(sliced=tokens) as other:
            answers[f"slices of {tokens}"] = [fresh(other, document)[1] for document in documents]
    for compared, got in answers.items():
        tokens_equal, apart = difference(list(zip(got, computed)))
        rows.append({"test": "control", "model": model.name, "tokens": model.tokens,
                     "compared": compared, "tokens_equal": tokens_equal,
                     "logprob_difference_max": apart})
        print(f"{model.name} {model.tokens} vLLM alone, computed in slices of 512 and by "
              f"{compared}: tokens equal: {tokens_equal}, log probabilities within {apart:.4f}",
              flush=True)


def measure_nothing_stored(model, alone, args, clock, rows):
    """Prompts that nobody has seen, which the plugin stores meanwhile."""
    ratios = []
    with tempfile.TemporaryDirectory(dir=model.store.parent) as empty, \
            model.engine(store=empty, policy="cake") as llm:
        for pair in range(-2, args.pairs):
            if len(ratios) > 1 and clock.over():
                break
            document = [pair % 64 + 100, *model.documents[0][1:]]
            arms = [(alone, None), (llm, f"pair {pair}")]
            seconds = {salt: fresh(engine, document, salt)[0]
                       for engine, salt in (arms if pair % 2 else arms[::-1])}
            if pair >= 0:
                ratios.append(seconds[f"pair {pair}"] / seconds[None])
    rows.append({"model": model.name, "tokens": model.tokens, "test": "nothing stored",
                 **interval(ratios)})
    low, high = rows[-1]["interval"]
    print(f"{model.name} {model.tokens} nothing stored: {rows[-1]['over_alone']:.4f} of vLLM "
          f"alone, {low:.4f} to {high:.4f}, {len(ratios)} pairs", flush=True)


def measure_model(name, args, rows, write):
    """The parts that have engines in processes of their own, and no server."""
    folder = ROOT / "build" / "bench-vllm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = Model(name, args.tokens or MODELS[name], folder / "store")
    if "ratios" in args.parts:
        with model.engine(policy="compute", keep="all") as llm:
            for document in model.documents:
                timed(llm, document)
    with model.engine() as alone:
        for document in model.documents[:MEASURED]:
            fresh(alone, document)
        if "control" in args.parts:
            measure_control(model, alone, rows)
        if "ratios" in args.parts:
            model.measure_alone(alone)
            clock = Clock(args.minutes)
            for ratio in itertools.takewhile(lambda _: not clock.over(), args.ratios):
                measure_ratio(model, alone, ratio, args, clock, rows)
                write()
        if "nothing" in args.parts:
            measure_nothing_stored(model, alone, args, Clock(args.minutes), rows)
            write()
    shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tokens", type=int, default=0,
                        help="of a document; 0: 6,646 for demo, 8,000 for smollm2-135m")
    parser.add_argument("--ratios", nargs="+", type=float, default=[4, 2, 1, 0.5, 0.25, 0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--documents", type=int, default=8, help="of the part documents")
    parser.add_argument("--prompts", type=int, default=0,
                        help="of a run of the part random; 0: 64 for demo, 16 for smollm2-135m")
    parser.add_argument("--minutes", type=float, default=0,
                        help="of each part and model, when a round that began then has ended; "
                             "0: no bound")
    parser.add_argument("--lmcache", action="store_true", help="LMCache, too")
    parser.add_argument("--quick", action="store_true", help="one cell, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.models, args.ratios, args.repeats, args.pairs = ["demo"], [1], 3, 2
        args.documents, args.prompts = 3, 8
    if args.lmcache and not bench_vllm_lmcache.can_run():
        sys.exit("there is no LMCache here: tools/lmcache_venv installs it")
    rows, loads = [], [os.getloadavg()[0]]

    def write():
        loads.append(os.getloadavg()[0])
        if args.json:
            args.json.write_text(json.dumps(rows + [{"loads": loads}], indent=1) + "\n")

    for name in args.models:
        if {"ratios", "control", "nothing"} & set(args.parts):
            measure_model(name, args, rows, write)
        if {"random", "documents"} & set(args.parts):
            import bench_vllm_serve
            bench_vllm_serve.measure(name, args, rows, write)
        write()


if __name__ == "__main__":
    main()
