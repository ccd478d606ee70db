"""kvcake.vllm's two sides against a vLLM that is played: vllm_protocol_test.py PATH/libkvcake.so"""
import contextlib
import os
import pathlib
import random
import sys
import tempfile
import threading
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
import kvcake  # noqa: E402
from damage import flip  # noqa: E402
from fake_vllm import BLOCK_TOKENS, FakeEngine, FakeRequest, truth  # noqa: E402
from kvcake.vllm import planner  # noqa: E402
from kvcake.vllm.messages import Begin, Step  # noqa: E402
from kvcake.vllm.planner import RequestKey  # noqa: E402
from relayed_store import CAN_FUSE, relayed  # noqa: E402


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
        for policy, in_pieces in (("cake", False), ("load", False), ("load", True)):
            with self.subTest(policy, in_pieces=in_pieces):
                self.fill([self.prompt(100, 82)], in_pieces=in_pieces)
                engine = self.engine(policy=policy)
                (request,) = self.run_all(engine, [self.prompt(100, 82)])
                self.check(engine, request)
                self.assertEqual(engine.workers[0].counts.take().get("tokens_loaded", 0),
                                 82 + 3 - engine.computed_tokens)
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

    def look(self, begins, answers, after_s=0.0, finds=b"\0"):
        """How long looks could wait that the worker of this test made in one step of so many
        prompts, each of which takes `answers` seconds, or all that it may, and finds that."""
        waited = []

        def lookup(keys, timeout_s=0.0):
            if timeout_s > 0:
                waited.append(timeout_s)
                self.now += min(timeout_s, answers)
                return finds * len(keys)
            return bytes(len(keys))

        self.now += after_s
        tokens = bytes(4 * BLOCK_TOKENS)
        with unittest.mock.patch.object(self.worker._cache, "lookup", lookup):
            self.worker.bind(Step(begins=[Begin(f"r{i}", 1, b"", tokens, restore_chunks=1)
                                          for i in range(begins)]))
        return waited

    def looker(self):
        engine, self.now = self.engine(), 128.0
        self.addCleanup(engine.close)
        (self.worker,) = engine.workers
        self.worker._clock, self.worker._look_s = lambda: self.now, 0.125

    def test_what_begins_in_a_step_shares_the_time_of_one_look(self):
        self.looker()
        for _ in range(2):
            self.assertEqual(self.look(4, answers=0.046875), [0.125, 0.078125, 0.03125])
        self.assertEqual(self.look(1, answers=9), [0.125], "what little was left says nothing")

    def test_looks_do_not_wait_for_stores_that_are_silent(self):
        self.looker()
        for quiet_s in (2.5, 5, 10, 20, 30, 30):
            self.assertEqual(self.look(3, answers=9), [0.125])
            self.assertEqual(self.look(3, answers=9), [])
            self.assertEqual(self.look(3, answers=9, after_s=quiet_s - 0.0625), [])
            self.now += 0.0625
        self.assertEqual(self.look(1, answers=0.0625), [0.125])
        self.assertEqual(self.look(1, answers=9), [0.125], "they are not silent any more")
        self.assertEqual(self.look(1, answers=9, after_s=2.5), [0.125])

    def test_a_store_that_has_answered_in_part_is_asked_again(self):
        self.looker()
        for _ in range(2):
            self.assertEqual(self.look(1, answers=9, finds=b"\2"), [0.125])

    def test_a_damaged_chunk_is_computed(self):
        self.fill([self.prompt(100, 82)])
        for path in pathlib.Path(self._dir.name).rglob("*"):
            if len(path.name) == 64 and path.is_file() and path.name[0] < "6":
                flip(path, 4096 + 11, bit=2)
        engine = self.engine(policy="load")
        (request,) = self.run_all(engine, [self.prompt(100, 82)])
        self.check(engine, request)
        self.assertGreater(engine.caches[0].stats().reads_failed, 0)
        counts = engine.workers[0].counts.take()
        self.assertEqual(counts["tokens_computed"], 80 - counts["tokens_loaded"])
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

    def test_what_is_no_token_counts_in_a_chunk_that_the_answer_fills(self):
        engine = self.engine()
        worker = engine.workers[0]
        blocks = [engine.free.pop() for _ in range(3)]
        keys = set()
        for name in ("image", "other"):
            tokens = list(range(10))
            engine.planner.add(name, tokens, 10, RequestKey(b"", {2: name.encode()}))
            for end in (10, 12):
                worker.bind(engine.planner.step({name: (0, end)}, lambda name: blocks, end))
                worker.report()
                tokens += [7, 8]
            keys.add(worker._requests[name].keys[2])
            engine.planner.preempt(name)  # with which it is looked for in stores
            worker.bind(engine.planner.step({}, lambda name: [], 0))
            keys.add(worker._requests[name].keys[2])
            engine.planner.finish(name)
        self.assertEqual(len(keys), 2)
        worker.bind(engine.planner.step({}, lambda name: [], 0))
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

    def test_workers_that_have_retired_load_and_keep_nothing(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as name:
                self._dir.name = name
                self.fill([self.prompt(100, 82)], ranks=ranks)
                engine = self.engine(policy="load", ranks=ranks, stale=1)
                other = self.prompt(200, 20, name="other")
                other.answer = 1000
                for request in (self.prompt(100, 82), other):
                    engine.submit(request)
                heard = engine.planner._requests["r"]
                while not (heard.progress and heard.progress.front == heard.progress.chunks):
                    engine.step()
                for cache in engine.caches:
                    cache.put_wait()
                    cache.flush()
                kept = [cache.stats().stored_chunks for cache in engine.caches]
                for worker in engine.workers:
                    worker.retire()  # while the scheduler believes that something is here
                other.answer = 100
                self.run_all(engine, [self.prompt(100, 82, name="later")])
                self.assertGreater(engine.failed, 0, "no jump was on its way")
                for request in engine.finished:
                    self.check(engine, request)
                for cache, worker in zip(engine.caches, engine.workers):
                    cache.flush()
                    self.assertNotIn("tokens_loaded", worker.counts.take())
                self.assertEqual(kept, [cache.stats().stored_chunks for cache in engine.caches])
                engine.close()

    def test_nobody_waits_for_workers_that_have_retired(self):
        self.fill([self.prompt(100, 82)])
        engine = self.engine(policy="load", rate=1.0)
        engine.submit(self.prompt(100, 82))
        while engine.planner._requests["r"].progress is None:
            engine.step()
        engine.workers[0].retire()
        (request,) = self.run_all(engine)
        self.check(engine, request)
        self.assertEqual(engine.computed_tokens, 82 + 3)
        engine.close()

    def test_what_was_written_is_counted_and_what_was_not(self):
        for store, options in ((self._dir.name, {"memory_chunks": 6}), ("redis://127.0.0.1:1", {})):
            engine = FakeEngine(store, **options)
            self.run_all(engine, [self.prompt(1000 * i, 82, name=f"r{i}") for i in range(6)])
            with contextlib.suppress(kvcake.Error):  # some could not be written
                engine.caches[0].flush()
            engine.step()
            told = engine.caches[0].stats()
            counts = engine.workers[0].counts.take()
            self.assertEqual(counts.get("chunks_kept", 0), told.writes_written)
            self.assertEqual(counts.get("chunks_dropped", 0),
                             told.writes_dropped + told.writes_failed)
            self.assertGreater(counts["chunks_dropped"], 0)
            self.assertEqual("chunks_kept" in counts, store == self._dir.name)
            engine.close()

    def test_no_memory_is_no_failure(self):
        self.fill([self.prompt(100, 82)])
        engine = self.engine(memory_chunks=4)
        finished = self.run_all(engine, [self.prompt(100, 82),
                                         self.prompt(200, 82, name="other")])
        for request in finished:
            self.check(engine, request)
        engine.close()


    def test_a_queue_that_is_longer_than_what_is_advised_goes_on(self):
        names = [f"r{i}" for i in range(12)]
        self.fill([self.prompt(100 * i, 82, name=name) for i, name in enumerate(names)])
        for policy in ("cake", "load"):
            with unittest.mock.patch.object(planner, "ADVISED", 2):
                engine = self.engine(policy=policy, rate=400 * 4096.0)
                finished = self.run_all(engine, [self.prompt(100 * i, 82, name=name)
                                                 for i, name in enumerate(names)])
                for request in finished:
                    self.check(engine, request)
                if policy == "load":
                    self.assertEqual(engine.computed_tokens, 12 * (2 + 3))
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
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as name, \
                    unittest.mock.patch.object(planner, "ADVISED", 1 + seed % 2):
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
