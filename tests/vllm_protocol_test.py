"""kvcake.vllm's two sides against a vLLM that is played: vllm_protocol_test.py PATH/libkvcake.so

The engine here schedules, allocates blocks, shares them by a prefix cache, preempts and aborts; its
forward pass writes into each block what a chunk's bytes have to be, and is wrong on top of what is
wrong. So a block that was served from elsewhere than its own tokens is seen.
"""
import ctypes
import hashlib
import os
import pathlib
import random
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
import kvcake  # noqa: E402
from kvcake.vllm import config  # noqa: E402
from kvcake.vllm.planner import Planner, RequestKey  # noqa: E402
from kvcake.vllm.worker import Worker  # noqa: E402
from relayed_store import CAN_FUSE, relayed  # noqa: E402

LAYERS, BLOCK_TOKENS, BLOCK_BYTES = 2, 4, 600


def truth(rank, tokens, salt, end):
    """What a block whose last token is the end-th has to hold."""
    seed = hashlib.sha256(repr((rank, list(tokens[:end]), salt)).encode()).digest()
    return (seed * (LAYERS * BLOCK_BYTES // 32 + 1))[:LAYERS * BLOCK_BYTES]


class FakeBlocks:
    """A rank's KV cache: bytes of a block are layer by layer."""

    def __init__(self, blocks_a_chunk):
        self.a_chunk, self.data = blocks_a_chunk, {}

    def write(self, chunks, blocks):
        for i, chunk in enumerate(chunks):
            for j, block in enumerate(blocks[i * self.a_chunk:(i + 1) * self.a_chunk]):
                if block >= 0:
                    self.data[block] = b"".join(
                        ctypes.string_at(chunk.address + layer * chunk.stride + j * BLOCK_BYTES,
                                         BLOCK_BYTES) for layer in range(LAYERS))

    def read(self, blocks):
        slabs = b"".join(self.data[block][layer * BLOCK_BYTES:(layer + 1) * BLOCK_BYTES]
                         for layer in range(LAYERS) for block in blocks)
        self._held = ctypes.create_string_buffer(slabs, len(slabs))
        return ctypes.addressof(self._held), len(blocks) * BLOCK_BYTES

    def settle(self):
        """What is called has computed when it returns."""


class FakeRequest:
    def __init__(self, name, tokens, salt):
        self.name, self.tokens, self.salt = name, tokens, salt
        self.prompt, self.answer = len(tokens), 3
        self.computed, self.blocks, self.running = 0, [], False


class FakeEngine:
    """vLLM's scheduler loop, its prefix cache and its workers."""

    BUDGET = 24

    def __init__(self, folder, *, ranks=1, stale=0, blocks_a_chunk=1, policy="cake", rate=0.0,
                 keep="all", memory_chunks=200):
        self.chunk, self.stale, self.late = BLOCK_TOKENS * blocks_a_chunk, stale, []
        self.planner = Planner(chunk_tokens=self.chunk, block_tokens=BLOCK_TOKENS, ranks=ranks,
                               policy=policy, keep=keep)
        self.ranks, self.caches, self.workers = [], [], []
        for rank in range(ranks):
            self.ranks.append(FakeBlocks(blocks_a_chunk))
            self.caches.append(kvcake.Cache(
                f"rank {rank}", layers=LAYERS, chunk_tokens=self.chunk,
                slab_bytes=BLOCK_BYTES * blocks_a_chunk,
                stores=[kvcake.Store(folder, load_rate_bytes_per_s=rate)],
                memory_bytes=memory_chunks * 4096 * (LAYERS + 1), write_queue_share=1.0))
            self.workers.append(Worker(
                self.caches[rank], self.ranks[rank], chunk_tokens=self.chunk,
                blocks_a_chunk=blocks_a_chunk, slice_chunks_max=self.BUDGET // self.chunk,
                policy=policy, rank=rank, ranks=ranks, look_s=1.0))
        self.waiting, self.running, self.finished = [], [], []
        self.prefix, self.free, self.poisoned = {}, list(range(4000)), set()
        self.jumps = self.computed_tokens = self.failed = 0

    def close(self):
        for worker in self.workers:
            worker.close()

    # ---- what users and the scheduler do

    def submit(self, request):
        cached = len(self.hit(request)) * BLOCK_TOKENS
        self.planner.add(request.name, request.tokens, request.prompt,
                         RequestKey(request.salt), cached_tokens=cached)
        self.waiting.append(request)

    def hit(self, request):
        """The blocks of the prefix cache; the last token is always computed."""
        blocks = []
        for end in range(BLOCK_TOKENS, len(request.tokens), BLOCK_TOKENS):
            block = self.prefix.get((tuple(request.tokens[:end]), request.salt))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def abort(self, request):
        self.planner.finish(request.name)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def preempt(self, request):
        self.running.remove(request)
        request.computed, request.blocks, request.running = 0, [], False
        self.planner.preempt(request.name)
        self.waiting.insert(0, request)

    def forget_prefixes(self):
        self.prefix.clear()

    def step(self):
        scheduled, budget = {}, self.BUDGET
        for request in self.running:
            after = self.planner.jump(request.name, request.computed)
            if after is not None:
                request.computed = after
        for request in list(self.running):
            new = min(len(request.tokens) - request.computed, budget)
            new = self.planner.cap(request.name, request.computed, new, running=True)
            if new > 0:
                scheduled[request] = new
                budget -= new
        for request in list(self.waiting):
            if budget == 0:
                break
            blocks = self.hit(request)
            local = len(blocks) * BLOCK_TOKENS
            external = self.planner.matched(request.name, local)
            if external is None:
                continue
            new = min(len(request.tokens) - local - external, budget)
            new = self.planner.cap(request.name, local + external, new, running=False)
            assert new > 0, "an admission gets a chunk at least"
            request.blocks, request.computed, request.running = blocks, local + external, True
            self.planner.admitted(request.name, external)
            self.waiting.remove(request)
            self.running.append(request)
            scheduled[request] = new
            budget -= new
        for name, before in self.planner.unjump({r.name: n for r, n in scheduled.items()}):
            next(r for r in self.running if r.name == name).computed = before
        for request, new in scheduled.items():
            while len(request.blocks) * BLOCK_TOKENS < request.computed + new:
                request.blocks.append(self.free.pop())
        return self._execute(scheduled)

    # ---- what the workers do

    def _execute(self, scheduled):
        by_name = {request.name: request for request in scheduled}
        step = self.planner.step(
            {r.name: (r.computed, r.computed + new) for r, new in scheduled.items()},
            lambda name: by_name[name].blocks, sum(scheduled.values()))
        self.jumps += len(step.jumps)
        reports, failed = [], set()
        for rank, worker in enumerate(self.workers):
            worker.bind(step)
            worker.load()
            for request, new in scheduled.items():
                self._forward(rank, request, request.computed + new)
            if scheduled:
                worker.computed()
            failed |= worker.take_failed_blocks()
            reports.append(worker.report())
        self._commit(scheduled, failed)
        reports = [report for report in reports if report is not None]
        self.late.append(reports)
        if len(self.late) > self.stale:
            heard = self.late.pop(0)
            while len(heard) > 1:
                heard[0] = heard[0].aggregate(heard.pop())
            if heard:
                self.planner.hear(heard[0])
        return bool(scheduled)

    # The new tokens' blocks. On top of wrong ones it is wrong, too.
    def _forward(self, rank, request, end):
        data = self.ranks[rank].data
        right = all(data.get(request.blocks[i]) == truth(rank, request.tokens, request.salt,
                                                         (i + 1) * BLOCK_TOKENS)
                    for i in range(request.computed // BLOCK_TOKENS))
        for i in range(request.computed // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)):
            whole = truth(rank, request.tokens, request.salt, (i + 1) * BLOCK_TOKENS)
            full = (i + 1) * BLOCK_TOKENS <= end
            data[request.blocks[i]] = whole if full and right else bytes(len(whole))

    def _commit(self, scheduled, failed):
        for request, new in scheduled.items():
            bad = next((i for i, block in enumerate(request.blocks) if block in failed), None)
            if bad is not None:  # as vLLM's recompute policy has it
                request.computed = bad * BLOCK_TOKENS
                del request.blocks[bad:]
                self.failed += 1
                continue
            request.computed += new
            self.computed_tokens += new
            for i in range(request.computed // BLOCK_TOKENS):
                self.prefix.setdefault(
                    (tuple(request.tokens[:(i + 1) * BLOCK_TOKENS]), request.salt),
                    request.blocks[i])
            if request.computed < len(request.tokens):
                continue
            if request.answer == 0:
                self.running.remove(request)
                self.planner.finish(request.name)
                self.finished.append(request)
            else:
                request.answer -= 1
                request.tokens.append(request.computed % 7)


class EngineTest(unittest.TestCase):
    def setUp(self):
        self._dir = tempfile.TemporaryDirectory()
        self.addCleanup(self._dir.cleanup)

    def engine(self, **options):
        engine = FakeEngine(self._dir.name, **options)
        return engine

    def run_all(self, engine, requests=()):
        for request in requests:
            engine.submit(request)
        steps = 0
        while engine.waiting or engine.running:
            engine.step()
            steps += 1
            self.assertLess(steps, 20000, "nothing goes on")
        engine.step()  # what ended is told
        return engine.finished

    def check(self, engine, request):
        for rank, blocks in enumerate(engine.ranks):
            for i in range(len(request.tokens) // BLOCK_TOKENS):
                if (i + 1) * BLOCK_TOKENS <= request.computed:
                    self.assertEqual(blocks.data[request.blocks[i]],
                                     truth(rank, request.tokens, request.salt,
                                           (i + 1) * BLOCK_TOKENS),
                                     f"{request.name}: block {i} of rank {rank}")

    def fill(self, requests, **options):
        engine = self.engine(**options)
        self.run_all(engine, requests)
        for cache in engine.caches:
            cache.flush()
        for request in requests:
            self.check(engine, request)
        engine.close()

    @staticmethod
    def prompt(document, tokens, name="r", salt=b""):
        return FakeRequest(name, [document + i % 5 for i in range(tokens)], salt)


class RestoreTest(EngineTest):
    def test_what_was_kept_is_loaded_and_not_computed(self):
        for policy in ("cake", "load"):
            with self.subTest(policy):
                self.fill([self.prompt(100, 82)])
                engine = self.engine(policy=policy)
                (request,) = self.run_all(engine, [self.prompt(100, 82)])
                self.check(engine, request)
                if policy == "load":  # with cake, it depends on who is faster
                    self.assertGreaterEqual(engine.jumps, 1)
                    self.assertEqual(engine.computed_tokens, 2 + 3)  # and the answer's
                engine.close()

    def test_compute_loads_nothing_and_keeps_what_it_computes(self):
        self.fill([self.prompt(100, 82)], policy="compute")
        engine = self.engine(policy="compute")
        (request,) = self.run_all(engine, [self.prompt(100, 82)])
        self.assertEqual((engine.jumps, engine.computed_tokens), (0, 82 + 3))
        engine.close()
        engine = self.engine(policy="load")
        self.run_all(engine, [self.prompt(100, 82)])
        self.assertEqual(engine.computed_tokens, 2 + 3)
        engine.close()

    def test_a_document_with_another_question_is_loaded_up_to_it(self):
        self.fill([self.prompt(100, 80)])
        engine = self.engine(policy="load")
        request = self.prompt(100, 80)
        request.tokens += [7, 8, 9] * 10
        request.prompt = len(request.tokens)
        self.run_all(engine, [request])
        self.check(engine, request)
        self.assertEqual(engine.computed_tokens, 30 + 3)
        engine.close()

    def test_the_prefix_cache_is_not_loaded_again(self):
        self.fill([self.prompt(100, 82)])
        engine = self.engine(policy="load")
        self.run_all(engine, [self.prompt(100, 82)])
        reads = engine.caches[0].stats().reads
        self.run_all(engine, [self.prompt(100, 82, name="again")])
        self.assertEqual(engine.caches[0].stats().reads, reads)
        engine.close()

    def test_nothing_stored_costs_one_step(self):
        engine = self.engine()
        engine.submit(self.prompt(100, 82))
        self.assertFalse(engine.step(), "the workers are asked")
        while engine.running or engine.waiting:
            self.assertTrue(engine.step(), "nobody waits for anything")
        engine.close()

    def test_a_damaged_chunk_is_computed(self):
        self.fill([self.prompt(100, 82)])
        for path in pathlib.Path(self._dir.name).rglob("*"):
            if len(path.name) == 64 and path.is_file() and path.name[0] < "6":
                data = bytearray(path.read_bytes())
                data[4096 + 11] ^= 4
                path.write_bytes(data)
        engine = self.engine(policy="load")
        (request,) = self.run_all(engine, [self.prompt(100, 82)])
        self.check(engine, request)
        self.assertGreater(engine.caches[0].stats().reads_failed, 0)
        engine.close()

    def test_salts_share_nothing(self):
        self.fill([self.prompt(100, 82, salt=b"one")])
        engine = self.engine()
        (request,) = self.run_all(engine, [self.prompt(100, 82, salt=b"two")])
        self.check(engine, request)
        self.assertEqual((engine.jumps, engine.computed_tokens), (0, 82 + 3))
        engine.close()

    def test_what_is_no_token_parts_keys_from_its_chunk_on(self):
        engine = self.engine()
        worker = engine.workers[0]
        keys = {}
        for name, extras in (("plain", {}), ("image", {2: b"x"}), ("other", {2: b"y"})):
            engine.planner.add(name, list(range(24)), 24, RequestKey(b"", extras))
            worker.bind(engine.planner.step({}, lambda name: [], 0))
            keys[name] = worker._requests[name].keys
            engine.planner.finish(name)
        for i in range(6):
            self.assertEqual(len({made[i] for made in keys.values()}), 1 if i < 2 else 3)
        engine.close()

    def test_an_answer_that_fills_a_chunk_is_kept(self):
        request = self.prompt(100, 78)
        self.fill([request])
        engine = self.engine(policy="load")
        longer = FakeRequest("longer", request.tokens + [1, 2, 3], b"")
        self.run_all(engine, [longer])
        self.check(engine, longer)
        self.assertEqual(engine.computed_tokens, len(longer.tokens) - 80)
        engine.close()
        self.assertIn("prompts", config.read_config({"stores": ["d"], "keep": "prompts"}).keep)

    def test_no_memory_is_no_failure(self):
        self.fill([self.prompt(100, 82)])
        engine = self.engine(memory_chunks=4)
        finished = self.run_all(engine, [self.prompt(100, 82),
                                         self.prompt(200, 82, name="other")])
        for request in finished:
            self.check(engine, request)
        engine.close()


class FailureTest(EngineTest):
    def fail_jumps(self, engine, count):
        """The next jumps find a chunk missing."""
        worker = engine.workers[0]
        jump = worker._jump

        def failing(message):
            opened = worker._open[message.request].restoration
            acquire = opened.acquire
            opened.acquire = lambda chunk: None if chunk == message.first + 1 else acquire(chunk)
            worker._jump = jump
            jump(message)
        worker._jump = failing

    def test_a_jump_that_fails_is_computed_and_nothing_wrong_is_kept(self):
        for stale in (0, 2):
            with self.subTest(stale=stale), tempfile.TemporaryDirectory() as name:
                self._dir.name = name
                self.fill([self.prompt(100, 82)])
                engine = self.engine(policy="load", stale=stale)
                self.fail_jumps(engine, 1)
                request = self.prompt(100, 82)
                request.tokens += [9] * 40
                request.prompt += 40
                self.run_all(engine, [request])
                self.assertEqual(engine.failed, 1)
                self.check(engine, request)
                for cache in engine.caches:
                    cache.flush()
                engine.close()
                engine = self.engine(policy="load")
                again = FakeRequest("again", request.tokens[:122], b"")
                self.run_all(engine, [again])
                self.check(engine, again)
                engine.close()

    def test_a_jump_writes_all_chunks_or_none(self):
        self.fill([self.prompt(100, 82)])
        engine = self.engine(policy="load")
        written = []
        engine.ranks[0].write = lambda chunks, blocks: written.append(len(chunks))
        self.fail_jumps(engine, 1)
        engine.submit(self.prompt(100, 82))
        while engine.failed == 0:
            engine.step()
        self.assertEqual(written, [])
        engine.close()

    @unittest.skipUnless(CAN_FUSE, "a store that is killed wants FUSE and fusermount3")
    def test_what_a_killed_store_did_not_give_is_computed(self):
        self.fill([self.prompt(100, 82)])
        (chunks,) = pathlib.Path(self._dir.name).glob("v1/" + "?" * 64)
        with relayed(chunks, opened=3) as relay:
            engine = self.engine(policy="load")
            held = []
            killer = threading.Thread(target=lambda: (held.append(relay.wait_held()),
                                                      relay.kill()))
            killer.start()
            self.run_all(engine, [self.prompt(100, 82), self.prompt(100, 82, name="s")])
            killer.join()
            self.assertEqual(held, [True], "it was not killed in mid-load")
            for request in engine.finished:
                self.check(engine, request)
            self.assertGreater(engine.caches[0].stats().reads_failed, 0)
            (request,) = self.run_all(engine, [self.prompt(200, 82, name="t")])[2:]
            self.check(engine, request)
            engine.close()

    def test_with_several_ranks_it_ends_the_engine(self):
        self.fill([self.prompt(100, 82)], ranks=2)
        engine = self.engine(policy="load", ranks=2)
        self.fail_jumps(engine, 1)
        with self.assertRaisesRegex(RuntimeError, "not in memory"):
            self.run_all(engine, [self.prompt(100, 82)])


class ChaosTest(EngineTest):
    def test_blocks_hold_what_they_should_whatever_happens(self):
        seen = {"jumps": 0, "preempted": 0, "aborted": 0, "computed": 0}
        for seed, (ranks, stale, a_chunk) in enumerate(
                [(1, 0, 1), (1, 1, 2), (2, 0, 1), (2, 2, 2), (1, 2, 1), (2, 1, 3)]):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as name:
                self._dir.name = name
                self.chaos(random.Random(seed), seen, ranks=ranks, stale=stale,
                           blocks_a_chunk=a_chunk)
        for what, count in seen.items():
            self.assertGreater(count, 0, what)

    def chaos(self, rng, seen, **options):
        self.fill([self.prompt(100 * d, 90, name=f"fill {d}") for d in range(3)], **options)
        for rate in (0.0, 400 * 4096.0):
            engine = self.engine(rate=rate, **options)
            sent = 0
            while sent < 14 or engine.waiting or engine.running:
                if sent < 14 and rng.random() < 0.4:
                    request = self.prompt(100 * rng.randrange(3), rng.randrange(20, 120),
                                          name=f"r{sent}", salt=rng.choice([b"", b"", b"other"]))
                    engine.submit(request)
                    sent += 1
                if engine.running and rng.random() < 0.08:
                    engine.preempt(rng.choice(engine.running))
                    seen["preempted"] += 1
                everyone = engine.running + engine.waiting
                if everyone and rng.random() < 0.04:
                    engine.abort(rng.choice(everyone))
                    seen["aborted"] += 1
                if rng.random() < 0.05:
                    engine.forget_prefixes()
                done = len(engine.finished)
                engine.step()
                for request in engine.finished[done:] + engine.running:
                    self.check(engine, request)
            engine.step()
            seen["jumps"] += engine.jumps
            seen["computed"] += engine.computed_tokens
            self.assertEqual(engine.failed, 0)
            for cache, worker in zip(engine.caches, engine.workers):
                stats = cache.stats()
                self.assertEqual((stats.restorations, stats.acquired), (0, 0))
                self.assertEqual(worker._requests, {})
            engine.close()


if __name__ == "__main__":
    unittest.main()
