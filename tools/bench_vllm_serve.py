"""The parts of bench_vllm.py that ask servers: random prompts by `vllm bench serve`, and questions
about long documents over a link."""
from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator

import bench_vllm
import bench_vllm_lmcache
import vllm_fixture

PROMPTS = {"demo": 64, "smollm2-135m": 16}  # of a run, which takes seconds then
PROMPT_TOKENS, ANSWER_TOKENS = 1024, 32
QUESTION_TOKENS = 24


@contextlib.contextmanager
def serving(model: bench_vllm.Model, arm: str, **options) -> Iterator[int]:
    """The port of a server; of vLLM alone without options."""
    port = bench_vllm_lmcache.free_port()
    arguments = options.pop("arguments", [])
    store = model.store.with_name(f"store-{arm}") if options else None
    server = vllm_fixture.Server(model.store.parent, store, model=model.folder, port=port,
                                 arguments=arguments, **options)
    try:
        yield port
    finally:
        server.stop()


def bench_serve(model: bench_vllm.Model, port: int, prompts: int, seed: int) -> dict:
    """What `vllm bench serve` says, without the seconds that starting it takes. No run finds what
    another one left: its prompts count on from a random token, and of so few tokens as models/demo
    has many are the same."""
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with contextlib.redirect_stdout(io.StringIO()):
        return serve.main(parser.parse_args([
            "--base-url", f"http://127.0.0.1:{port}", "--model", str(model.folder),
            "--served-model-name", "model", "--dataset-name", "random", "--num-prompts",
            str(prompts), "--random-input-len", str(PROMPT_TOKENS), "--random-output-len",
            str(ANSWER_TOKENS), "--ignore-eos", "--disable-tqdm", "--seed", str(seed),
            "--extra-body", json.dumps({"cache_salt": f"run {seed}"})]))


def measure_random(model: bench_vllm.Model, args: argparse.Namespace, rows: list) -> None:
    clock, prompts = bench_vllm.Clock(args.minutes), args.prompts or PROMPTS[model.name]
    seconds: dict[str, list[float]] = {"alone": [], "cake": []}
    with serving(model, "alone") as alone, serving(model, "random", policy="cake") as cake:
        for pair in range(-1, args.pairs):
            if len(seconds["cake"]) > 1 and clock.over():
                break
            arms = [("alone", alone), ("cake", cake)]
            for arm, port in arms if pair % 2 else arms[::-1]:
                time.sleep(bench_vllm.SPIN_S)
                result = bench_serve(model, port, prompts, seed=pair + 1)
                assert result["completed"] == prompts, result["errors"]
                if pair >= 0:
                    seconds[arm].append(result["duration"])
    ratios = [mine / theirs for mine, theirs in zip(seconds["cake"], seconds["alone"])]
    rows.append({"test": "random prompts", "model": model.name, "prompts": prompts,
                 "tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "seconds": seconds,
                 **bench_vllm.interval(ratios)})
    low, high = rows[-1]["interval"]
    print(f"{model.name} vllm bench serve, random prompts of {PROMPT_TOKENS}: "
          f"{rows[-1]['over_alone']:.4f} of vLLM alone's time, {low:.4f} to {high:.4f}, "
          f"{len(ratios)} pairs", flush=True)


def ask(port: int, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were cached."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    time.sleep(bench_vllm.SPIN_S)
    with contextlib.closing(connection):
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": "model", "prompt": prompt, "max_tokens": 8, "temperature": 0,
             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}),
            {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        first, usage = 0.0, {}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            said = json.loads(line[6:])
            if said["choices"] and not first:
                first = time.perf_counter() - began
            usage = said.get("usage") or usage
    return first, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def measure_documents(model: bench_vllm.Model, args: argparse.Namespace, rows: list) -> None:
    words = vllm_fixture.words(QUESTION_TOKENS + 1, first=1)
    documents = [[i + 1, *model.documents[0][1:model.tokens - QUESTION_TOKENS]]
                 for i in range(args.documents)]
    # One document has room in vLLM's own cache, not two: all others have gone when one comes back.
    blocks = ["--num-gpu-blocks-override", str(max(model.chunks * 3 // 2, 64) + 4)]

    def question(document: int, number: int) -> list[int]:
        return [*documents[document], *words[:-1], 1 + number]

    arms: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    cached: dict[str, list[int]] = {}
    clock = bench_vllm.Clock(args.minutes)
    with contextlib.ExitStack() as stack:
        arms["compute"] = stack.enter_context(serving(model, "compute", arguments=blocks))
        ask(arms["compute"], question(0, 0))
        first = [ask(arms["compute"], question(i, 0))[0] for i in range(1, len(documents))]
        rate = model.chunks * model.chunk_bytes / statistics.median(first)
        for policy in ("load", "cake"):
            arms[policy] = stack.enter_context(serving(
                model, policy, policy=policy, load_rate=rate, arguments=blocks,
                memory_bytes=model.memory_bytes()))
            for i in range(len(documents)):  # the first round
                ask(arms[policy], question(i, 0))
        for number in range(1, 1 + args.repeats):
            if number > 1 and clock.over():
                break
            for i in range(len(documents)):
                turn = (number + i) % len(arms)
                for arm in [*arms, *arms][turn:turn + len(arms)]:
                    took, tokens = ask(arms[arm], question(i, number))
                    seconds.setdefault(arm, []).append(took)
                    cached.setdefault(arm, []).append(tokens)
    for arm, took in seconds.items():
        rows.append({"test": "documents", "model": model.name, "tokens": model.tokens, "ratio": 1,
                     "documents": len(documents), "policy": arm,
                     "ttft_mean_s": statistics.mean(took),
                     "ttft_p95_s": sorted(took)[-1 - len(took) // 20], "ttfts_s": took,
                     "cached_tokens": cached[arm]})
        print(f"{model.name} questions about documents of {model.tokens}, second round: {arm:8}"
              f"mean {1e3 * rows[-1]['ttft_mean_s']:.1f} ms, p95 "
              f"{1e3 * rows[-1]['ttft_p95_s']:.1f} ms, {statistics.median(cached[arm]):.0f} tokens "
              f"cached, {len(took)} questions", flush=True)


def measure(name: str, args: argparse.Namespace, rows: list, write: Callable[[], None]) -> None:
    folder = pathlib.Path(bench_vllm.ROOT) / "build" / "bench-vllm-serve"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = bench_vllm.Model(name, args.tokens or bench_vllm.MODELS[name], folder / "store")
    if "random" in args.parts:
        measure_random(model, args, rows)
        write()
    if "documents" in args.parts:
        measure_documents(model, args, rows)
        write()
    shutil.rmtree(folder, ignore_errors=True)
