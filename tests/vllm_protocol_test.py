"""kvcake.vllm's two sides against a vLLM that is played: vllm_protocol_test.py PATH/libkvcake.so

The engine here schedules, allocates blocks, shares them by a prefix cache, preempts and aborts; its
forward pass writes into each block what a chunk's bytes have to be, and is wrong on top of what is
wrong. So a block that was served from elsewhere than its own tokens is seen.
"""
import array
import ctypes
import hashlib
import os
import pathlib
import random
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
import kvcake  # noqa: E402
from kvcake.vllm import config, identity  # noqa: E402
from kvcake.vllm.messages import WAIT, Alone, Progress, Report, Step  # noqa: E402
from kvcake.vllm.planner import PATIENCE_STEPS, Planner, RequestKey  # noqa: E402
from kvcake.vllm.worker import Worker  # noqa: E402

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

    def check_store(self, ranks=1, blocks_a_chunk=1):
        """A chunk of each request that is stored holds what its tokens want, on every rank."""

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


class PlannerTest(unittest.TestCase):
    def planner(self, **options):
        planner = Planner(chunk_tokens=4, block_tokens=4, **options)
        planner.add("r", list(range(42)), 42, RequestKey())
        return planner

    def step(self, planner, start, end):
        return planner.step({"r": (start, end)}, lambda name: list(range(50)), end - start)

    def hear(self, planner, front, until, chunks=10, ranks=1, epoch=1):
        planner.hear(Report({"r": Progress(epoch, front, until, chunks, ranks)}))

    def test_workers_forget_what_they_were_told_of_and_nothing_else(self):
        for told in (False, True):
            planner = self.planner()
            if told:
                self.step(planner, 0, 4)
                self.hear(planner, 0, 0, chunks=0)  # nothing is restored any more
                self.step(planner, 4, 8)
            planner.preempt("r")
            planner.finish("r")
            step = planner.step({}, lambda name: [], 0)
            self.assertEqual((step.begins, step.forgotten), ([], ["r"] if told else []))

    def test_admission_waits_for_the_first_word_but_not_for_ever(self):
        planner = self.planner()
        self.assertEqual([planner.matched("r", 0) for _ in range(PATIENCE_STEPS + 1)],
                         [None] * PATIENCE_STEPS + [0])
        self.hear(planner, 0, 3)
        self.assertEqual(planner.matched("r", 0), 0)
        self.assertEqual(planner.cap("r", 0, 42, running=False), 12)

    def test_admission_waits_where_the_planner_waits(self):
        planner = self.planner()
        self.hear(planner, 0, WAIT)
        self.assertIsNone(planner.matched("r", 0))
        self.hear(planner, 10, 10)
        self.assertEqual(planner.matched("r", 0), 40)
        self.assertEqual(planner.matched("r", 8), 32)
        self.assertEqual(planner.cap("r", 40, 2, running=False), 2)

    def test_the_worst_rank_decides_and_all_have_to_speak(self):
        planner = self.planner(ranks=2)
        self.hear(planner, 3, 5)
        self.assertIsNone(planner.matched("r", 0))
        reports = [Report({"r": Progress(1, 3, 5, 10)}), Report({"r": Progress(1, 1, WAIT, 9)})]
        planner.hear(reports[0].aggregate(reports[1]))
        self.assertIsNone(planner.matched("r", 0))
        reports[1].progress["r"].until = 6
        reports[0].progress["r"].ranks = 1
        planner.hear(reports[1].aggregate(reports[0]))
        self.assertEqual(planner.matched("r", 0), 4)

    def test_what_the_prefix_cache_has_lost_since_is_begun_again(self):
        planner = Planner(chunk_tokens=4, block_tokens=4)
        planner.add("r", list(range(42)), 42, RequestKey(), cached_tokens=16)
        self.step(planner, 0, 0)
        self.hear(planner, 10, 10)
        self.assertIsNone(planner.matched("r", 8))
        step = planner.step({}, lambda name: [], 0)
        self.assertEqual([(b.epoch, b.cached_chunks) for b in step.begins], [(2, 2)])
        self.assertEqual(step.ends, [("r", 1)])
        self.hear(planner, 10, 10, epoch=2)
        self.assertEqual(planner.matched("r", 8), 32)

    def test_what_is_said_of_an_earlier_epoch_is_dropped(self):
        planner = self.planner()
        self.hear(planner, 0, 2)
        self.step(planner, 0, 8)
        planner.preempt("r")
        self.hear(planner, 10, 10, epoch=1)
        self.assertIsNone(planner.matched("r", 0))
        step = planner.step({}, lambda name: [], 0)
        self.assertEqual([(end, [b.epoch for b in step.begins]) for end in step.ends],
                         [(("r", 1), [2])])

    def test_a_begin_and_an_end_of_one_step_cancel_out(self):
        planner = self.planner()
        planner.finish("r")
        self.assertFalse(planner.waits())

    def test_a_running_request_jumps_once_it_computes_and_waits_where_told(self):
        planner = self.planner()
        self.hear(planner, 0, 2)
        self.step(planner, 0, 8)
        self.hear(planner, 6, WAIT)
        self.assertIsNone(planner.jump("r", 8))
        self.assertEqual(planner.cap("r", 8, 34, running=True), 0)
        self.hear(planner, 6, 7)
        self.assertEqual(planner.jump("r", 8), 24)
        self.assertEqual(planner.unjump({}), [("r", 8)])
        self.assertEqual(planner.jump("r", 8), 24)
        self.assertEqual(planner.unjump({"r": 4}), [])
        step = self.step(planner, 24, 28)
        self.assertEqual([(j.first, j.blocks) for j in step.jumps], [(2, [2, 3, 4, 5])])
        self.assertEqual(planner.unjump({}), [])

    def test_blocks_that_others_may_have_are_not_written(self):
        planner = Planner(chunk_tokens=8, block_tokens=4)
        planner.add("r", list(range(42)), 42, RequestKey())
        planner.hear(Report({"r": Progress(1, 5, 5, 5)}))
        self.assertEqual(planner.matched("r", 12), 28)
        planner.admitted("r", 28)
        step = planner.step({"r": (40, 42)}, lambda name: list(range(11)), 2)
        self.assertEqual(step.jumps[0].first, 1)
        self.assertEqual(step.jumps[0].blocks, [-1, 3, 4, 5, 6, 7, 8, 9])

    def test_workers_hear_that_their_failures_are_known(self):
        planner = self.planner()
        planner.hear(Report({}, failures=1))
        self.assertEqual(planner.step({}, lambda name: [], 0).failures_seen, 1)

    def test_slices_end_where_chunks_do(self):
        planner = self.planner()
        self.hear(planner, 0, 5)
        self.assertEqual(planner.cap("r", 0, 10, running=True), 8)
        self.assertEqual(planner.cap("r", 0, 3, running=True), 3)
        self.assertEqual(planner.cap("r", 30, 12, running=True), 2, "advice that is old")
        self.hear(planner, 5, 10)
        self.assertEqual(planner.cap("r", 20, 22, running=True), 22, "with what follows it")


    def test_a_step_that_is_one_prompts_is_learned_from_and_no_other(self):
        planner = self.planner()
        planner.add("s", list(range(9)), 9, RequestKey())
        self.assertEqual(self.step(planner, 0, 24).alone, Alone("r", 0, 24))
        blocks = lambda name: list(range(50))  # noqa: E731
        self.assertEqual(planner.step({"r": (24, 42), "s": (8, 9)}, blocks, 19).alone,
                         Alone("r", 24, 42))
        self.assertIsNone(planner.step({"r": (24, 36), "s": (0, 8)}, blocks, 20).alone)
        self.assertIsNone(self.step(planner, 42, 43).alone, "decoding")


class LearnsTest(unittest.TestCase):
    """What a step took, by a clock that is set."""

    def setUp(self):
        self.now, self.learned = 0.0, []
        cache = unittest.mock.Mock(spec=kvcake.Cache)
        cache.learn.side_effect = lambda *what: self.learned.append(what)
        self.worker = Worker(cache, unittest.mock.Mock(), chunk_tokens=4, blocks_a_chunk=1,
                             slice_chunks_max=4, clock=lambda: self.now)

    def step(self, alone, seconds, copying=0.0):
        self.worker.bind(Step(alone=alone, tokens=alone.end - alone.start if alone else 0))
        self.worker._copying_s += copying
        self.now += seconds
        self.worker.computed()

    def test_scheduling_is_part_of_it_idle_time_and_copies_are_not(self):
        self.now = 10.0
        self.step(Alone("r", 0, 16), 0.5)
        self.now += 0.25  # vLLM schedules
        self.step(Alone("r", 16, 32), 0.5)
        self.now += 60.0  # nobody asks anything
        self.step(Alone("s", 0, 16), 0.5)
        self.step(Alone("s", 24, 32), 0.5, copying=0.25)
        self.step(None, 9.0)
        self.assertEqual(self.learned, [(0, 16, 0.5), (16, 16, 0.75), (0, 16, 0.5),
                                        (24, 8, 0.25)])


class IdentityTest(unittest.TestCase):
    def setUp(self):
        self._dir = tempfile.TemporaryDirectory()
        self.addCleanup(self._dir.cleanup)
        self.folder = pathlib.Path(self._dir.name)

    def write(self, name, tensors):
        header, data = {}, b""
        for tensor, value in tensors.items():
            header[tensor] = {"dtype": "U8", "shape": [len(value)],
                              "data_offsets": [len(data), len(data) + len(value)]}
            data += value
        text = __import__("json").dumps(header).encode()
        (self.folder / name).write_bytes(len(text).to_bytes(8, "little") + text + data)

    def test_weights_are_told_by_their_bytes_however_they_are_spread(self):
        self.write("a.safetensors", {"x": b"123", "y": b"45"})
        one = identity.folder_digest(self.folder)
        self.write("a.safetensors", {"y": b"45"})
        self.write("b.safetensors", {"x": b"123"})
        self.assertEqual(identity.folder_digest(self.folder), one)
        self.write("b.safetensors", {"x": b"124"})
        self.assertNotEqual(identity.folder_digest(self.folder), one)

    def test_a_digest_is_remembered_until_a_file_changes(self):
        remembered = self.folder / "known.json"
        self.write("a.safetensors", {"x": b"123"})
        one = identity.folder_digest(self.folder, remembered)
        known = remembered.read_text()
        self.assertEqual(identity.folder_digest(self.folder, remembered), one)
        self.assertEqual(remembered.read_text(), known)
        self.write("a.safetensors", {"x": b"321"})
        self.assertNotEqual(identity.folder_digest(self.folder, remembered), one)

    def test_no_weights_have_no_digest(self):
        with self.assertRaisesRegex(identity.Unkeyed, "no files"):
            identity.folder_digest(self.folder)

    def test_code_beside_the_weights_counts(self):
        self.write("a.safetensors", {"x": b"123"})
        one = identity.folder_digest(self.folder)
        (self.folder / "modeling.py").write_text("1")
        self.assertNotEqual(identity.folder_digest(self.folder), one)

    def test_an_adapter_is_its_bytes_not_its_name(self):
        adapters = [identity.Adapters() for _ in range(3)]
        with self.assertRaises(identity.Unkeyed):
            adapters[0].digest(1, str(self.folder))
        self.write("adapter_model.safetensors", {"x": b"1"})
        (self.folder / "adapter_config.json").write_text('{"r": 8}')
        one = adapters[0].digest(1, str(self.folder))
        self.assertEqual(adapters[0].digest(2, str(self.folder)), one)
        self.write("adapter_model.safetensors", {"x": b"22"})
        two = adapters[1].digest(1, str(self.folder))
        with self.assertRaisesRegex(identity.Unkeyed, "changed"):
            adapters[0].digest(1, str(self.folder))
        (self.folder / "adapter_config.json").write_text('{"r": 16}')
        self.assertEqual(len({one, two, adapters[2].digest(1, str(self.folder))}), 3)

    def test_some_ropes_depend_on_the_longest_prompt(self):
        for rope, depends in ((None, False), ({"rope_type": "llama3"}, False),
                              ({"type": "longrope"}, True), ({"rope_type": "dynamic"}, True)):
            self.assertEqual(identity.depends_on_length({"rope_scaling": rope}), depends)
        self.assertTrue(identity.depends_on_length(
            {"text_config": {"rope_parameters": {"rope_type": "longrope"}}}))

    def test_no_two_extras_are_encoded_the_same(self):
        values = [None, "", b"", 0, "0", [], [""], ["a", "b"], ["ab"], [["a"], "b"], ("a", 1),
                  ("a", "1"), b"a", "a", 11, [1, 1]]
        self.assertEqual(len({identity.encode(value) for value in values}), len(values))
        with self.assertRaises(identity.Unkeyed):
            identity.encode([1.5])

    def test_a_name_space_has_every_fact(self):
        facts = {"weights": "w", "dtype": "bf16", "rank": [0, 2], "layout": {"shape": [1]}}
        plain = identity.name_space(facts)
        for name in facts:
            self.assertNotEqual(identity.name_space({**facts, name: "other"}), plain)

    def test_a_config_is_not_its_name(self):
        one = identity.config_digest({"_name_or_path": "a", "rope_theta": 1})
        self.assertEqual(one, identity.config_digest({"_name_or_path": "b", "rope_theta": 1}))
        self.assertNotEqual(one, identity.config_digest({"_name_or_path": "a", "rope_theta": 2}))


class ConfigTest(unittest.TestCase):
    def test_reads_stores_and_options(self):
        read = config.read_config({"stores": ["/a", {"where": "/b", "load_latency_s": 0.1}],
                                   "policy": "load", "load_rate": 5, "memory_bytes": 1e9})
        self.assertEqual([s.where for s in read.listed()], ["/a", "/b"])
        self.assertEqual([s.load_rate_bytes_per_s for s in read.listed()], [5.0, 5.0])
        self.assertEqual(read.memory_bytes, 10**9)

    def test_what_it_does_not_know_is_named(self):
        for given, name in (({"stores": ["/a"], "polciy": "cake"}, "polciy"),
                            ({"stores": ["/a"], "policy": "fast"}, "policy"),
                            ({"stores": "/a"}, "stores"), ({}, "directory"),
                            ({"stores": [{"were": "/a"}]}, "were"),
                            ({"stores": ["/a"], "memory_bytes": "1G"}, "memory_bytes"),
                            ({"stores": ["/a"], "experimental_cuda": 1}, "experimental_cuda"),
                            ({"stores": ["/a"], "load_rate": -1}, "load_rate")):
            with self.assertRaisesRegex(ValueError, name):
                config.read_config(given)

    def test_an_unknown_vllm_is_refused_by_name(self):
        for version in ("0.32.0", "0.32.1+cpu"):
            config.check_version(version, {})
        for version in ("0.31.0", "0.33.0", "1.32.0"):
            with self.assertRaisesRegex(RuntimeError, version.replace(".", "\\.")):
                config.check_version(version, {})
            config.check_version(version, {"KVCAKE_VLLM_ANY": "1"})


if __name__ == "__main__":
    unittest.main()
