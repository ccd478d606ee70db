"""What kvcake.vllm's workers load, keep, count and learn from: vllm_worker_test.py
PATH/libkvcake.so"""
import os
import pathlib
import sys
import unittest
import unittest.mock
from unittest.mock import call

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
import kvcake  # noqa: E402
from kvcake.vllm.messages import (  # noqa: E402
    Alone, Begin, Front, Jump, Progress, Report, Save, Step)
from kvcake.vllm.stats import Counts  # noqa: E402
from kvcake.vllm.worker import Worker  # noqa: E402


def stats(**counts):
    """What a cache says; what is not named is 0."""
    return kvcake.Stats(**{**dict.fromkeys(kvcake.Stats._fields, 0), **counts})


class SavesTest(unittest.TestCase):
    """What a step fills is copied after it, and before the next one begins."""

    def setUp(self):
        self.cache = unittest.mock.Mock(spec=kvcake.Cache)
        self.cache.put_wait.return_value = (3, 1)
        self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: bytes(len(keys))
        self.cache.root.return_value = "root"
        self.cache.keys.side_effect = lambda parent, tokens: [f"key {i}" for i in range(4)]
        self.cache.stats.return_value = stats()
        self.blocks = unittest.mock.Mock()
        self.blocks.addresses.side_effect = lambda blocks: [100 + block for block in blocks]
        self.read = []
        self.blocks.read.side_effect = self.reads
        self.worker = Worker(self.cache, self.blocks, chunk_tokens=4, blocks_a_chunk=2,
                             slice_chunks_max=4, look_s=0.0)

    def reads(self, chunks):
        for blocks in chunks:
            self.read.append(blocks)
            yield 0, 0

    def fill(self):
        self.worker.bind(Step(begins=[Begin("r", 1, b"", bytes(64))],
                              saves=[Save("r", 1, [7, 8, 9, 10])]))
        self.worker.counts.take()
        self.cache.reset_mock()
        self.worker.computed()

    def test_chunks_that_lie_in_memory_are_put_beside_the_scheduler(self):
        self.fill()
        self.cache.put_async.assert_called_once_with(["key 1", "key 2"], "key 0", 1,
                                                     [[107, 108], [109, 110]], 2)
        self.blocks.read.assert_not_called()
        self.cache.put_wait.assert_not_called()

    def test_the_next_step_begins_when_they_have_been_copied(self):
        self.fill()
        self.cache.reset_mock()
        self.worker.bind(Step(begins=[Begin("s", 1, b"", bytes(64))]))
        self.assertEqual(self.cache.method_calls[0], unittest.mock.call.put_wait())

    def test_others_are_copied_at_once(self):
        self.blocks.addresses.side_effect = lambda blocks: None
        self.fill()
        self.assertEqual(self.read, [[7, 8], [9, 10]])
        self.assertEqual([call.args[:3] for call in self.cache.put.call_args_list],
                         [("key 1", "key 0", 1), ("key 2", "key 1", 2)])

    def test_what_was_computed_on_blocks_that_failed_is_not_kept(self):
        self.worker._failures = 1  # of which the scheduler has not heard
        self.fill()
        self.cache.put_async.assert_not_called()
        self.cache.put.assert_not_called()
        self.assertEqual(self.worker.counts.take(), {"chunks_dropped": 2})

    def test_what_there_is_no_memory_for_is_not_copied(self):
        self.blocks.addresses.side_effect = lambda blocks: None
        self.cache.put.return_value = False  # which the library counts
        self.fill()
        self.assertEqual(self.read, [[7, 8]])
        self.assertEqual(self.worker.counts.take()["chunks_dropped"], 1)

    def test_what_is_in_memory_needs_no_more(self):
        self.blocks.addresses.side_effect = lambda blocks: None
        self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\0\1"[:len(keys)]
        self.cache.put.side_effect = lambda key, *_: key == "key 2"
        self.fill()
        self.assertEqual([call.args[0] for call in self.cache.put.call_args_list],
                         ["key 2", "key 1"])

    def test_what_no_store_holds_is_put_again(self):
        self.blocks.addresses.side_effect = lambda blocks: None
        for held, put in ((b"\1\2", ["key 1"]), (b"\2\3", []), (b"\3\0", ["key 2"])):
            self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: held[:len(keys)]
            self.fill()
            self.assertEqual([call.args[0] for call in self.cache.put.call_args_list], put)


class CountsTest(unittest.TestCase):
    """What becomes of reads and writes is asked for with each step."""

    def setUp(self):
        self.cache = unittest.mock.Mock(spec=kvcake.Cache)
        self.cache.put_wait.return_value = (0, 0)
        self.cache.keys.side_effect = lambda parent, tokens: [f"key {i}" for i in range(4)]
        self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\2" * len(keys)
        restoration = self.cache.begin.return_value
        restoration.progress.return_value = kvcake.Progress(4, 0, 4, 0, 0, 0, 0, 0, 0.0)
        restoration.claim_front.return_value = kvcake.Turn("wait", 0, 0, 1.0)
        self.worker = Worker(self.cache, unittest.mock.Mock(), chunk_tokens=4, blocks_a_chunk=1,
                             slice_chunks_max=4)

    def step(self, **told):
        """What a step counts after which the cache says so."""
        self.cache.stats.return_value = stats(**told)
        self.worker.bind(Step())
        self.worker.report()
        return self.worker.counts.take()

    def test_what_became_of_reads_and_writes_counts_once(self):
        self.assertEqual(self.step(), {})
        self.assertEqual(self.step(reads_failed=1, writes_queued=5, writes_written=3),
                         {"reads_failed": 1, "chunks_kept": 3})
        self.assertEqual(self.step(reads_failed=1, writes_written=3), {})
        self.assertEqual(self.step(reads_failed=3, writes_written=4, writes_dropped=2,
                                   writes_failed=5),
                         {"reads_failed": 2, "chunks_kept": 1, "chunks_dropped": 7})


    def test_the_first_of_ranks_that_load_the_same_tokens_counts_them(self):
        for is_first, counted in ((True, {"tokens_computed": 12, "restorations": 1,
                                          "seconds_saved": 0.5, "meeting_point": [0.25],
                                          "tokens_loaded": 8, "copy_seconds": 0.125}), (False, {})):
            counts = Counts(first_rank=is_first)
            counts.restored(8, 4, met=1, chunks=4, saved_s=0.5)
            counts.restored(0, 8, met=0, chunks=4, saved_s=9.0)  # what is loaded is restored
            counts.copied(8, 0.125)
            self.assertEqual(counts.take(), counted)
            self.assertEqual(counts.take(), {})


class JumpTest(unittest.TestCase):
    """What a worker does with a restoration, whose calls may fail for want of memory."""

    def setUp(self):
        self.cache = unittest.mock.Mock(spec=kvcake.Cache)
        self.cache.keys.side_effect = lambda parent, tokens: [f"key {i}" for i in range(4)]
        self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\2" * len(keys)
        self.cache.stats.return_value = stats()
        self.restoration = self.cache.begin.return_value
        self.restoration.progress.return_value = kvcake.Progress(4, 0, 0, 0, 0, 0, 4, 0, 0.0)
        self.restoration.claim_front.return_value = kvcake.Turn("done", 0, 0, 0.0)
        self.worker = Worker(self.cache, unittest.mock.Mock(), chunk_tokens=4, blocks_a_chunk=1,
                             slice_chunks_max=4)
        self.worker.bind(Step(begins=[Begin("r", 1, b"", bytes(64), {}, 4)]))
        self.worker.report()

    def test_the_lanes_have_met_where_the_last_jump_began(self):
        """The first may be over what was in memory."""
        for first in (0, 1, 2):
            self.worker.bind(Step(jumps=[Jump("r", 1, first, [1, 2])]))
            self.worker.load()
        self.worker.bind(Step(ends=[("r", 1)]))
        self.assertEqual(self.worker.counts.take()["meeting_point"], [2 / 4])

    def test_what_was_loaded_meanwhile_and_computed_all_the_same_is_counted_as_computed(self):
        self.restoration.progress.return_value = kvcake.Progress(4, 4, 4, 0, 0, 0, 4, 0, 0.0)
        for start, end in ((0, 6), (6, 12)):
            self.worker.bind(Step(fronts=[Front("r", 1, start, end)], tokens=end - start))
            self.worker.report()
        self.worker.bind(Step(ends=[("r", 1)]))
        self.assertEqual(self.worker.counts.take()["tokens_computed"], 12)

    def test_what_is_loaded_saves_what_its_tokens_take_to_compute(self):
        now = 0.0
        self.worker._clock = lambda: now
        self.worker.bind(Step(alone=Alone("other", 0, 16), tokens=16))
        now = 8.0
        self.worker.report()
        self.worker.bind(Step(jumps=[Jump("r", 1, 0, [1, 2])]))
        self.worker.load()
        self.worker.bind(Step(ends=[("r", 1)]))
        counts = self.worker.counts.take()
        self.assertEqual((counts["tokens_loaded"], counts["seconds_saved"]), (8, 4.0))

    def test_what_a_jump_takes_is_none_of_what_computing_takes(self):
        now = iter((10.0, 10.0, 13.0, 18.0, 18.0))  # the step, the jump in it, and their ends
        self.worker._clock = lambda: next(now)
        self.worker.bind(Step(jumps=[Jump("r", 1, 0, [1, 2])], alone=Alone("r", 8, 12)))
        self.worker.load()
        self.worker.computed()
        self.cache.learn.assert_called_once_with(8, 4, 5.0)
        self.assertEqual(self.worker.counts.take()["copy_seconds"], 3.0)

    def test_chunks_that_a_jump_holds_are_let_go(self):
        held = unittest.mock.Mock()
        self.restoration.acquire.side_effect = [held, kvcake.Error(6, "no memory")]
        self.worker.bind(Step(jumps=[Jump("r", 1, 0, [1, 2, 3, 4])]))
        with self.assertRaises(kvcake.Error):
            self.worker.load()
        held.release.assert_called_once_with()

    def test_a_jump_that_fails_is_told_of_and_its_blocks_are_named_once(self):
        self.restoration.acquire.return_value = None
        self.worker.bind(Step(jumps=[Jump("r", 1, 0, [-1, 3, 4, -1])]))
        self.worker.load()
        self.restoration.end.assert_called_once_with()
        self.assertEqual(self.worker.report(), Report({"r": Progress(1)}, failures=1))
        self.assertEqual(self.worker.take_failed_blocks(), {3, 4})
        self.assertEqual(self.worker.take_failed_blocks(), set())
        self.worker.bind(Step())
        self.assertEqual(self.worker.report(), Report({}, failures=1), "until it is heard")

    def test_a_restoration_ends_with_its_request_and_when_it_begins_anew(self):
        again = Begin("r", 2, b"", bytes(64), {}, 4)
        for step in (Step(begins=[again]), Step(forgotten=["r"])):
            self.restoration.end.reset_mock()
            self.worker.bind(step)
            self.restoration.end.assert_called_once_with()

    def test_an_end_of_another_epoch_ends_nothing(self):
        self.worker.bind(Step(ends=[("r", 2)]))
        self.restoration.end.assert_not_called()

    def test_what_is_said_of_another_epoch_is_left_alone(self):
        self.worker.bind(Step(fronts=[Front("r", 2, 0, 16)], jumps=[Jump("r", 2, 0, [1, 2])]))
        self.worker.load()
        self.worker.computed()
        self.restoration.claim.assert_not_called()
        self.restoration.acquire.assert_not_called()
        self.restoration.end.assert_not_called()
        self.assertEqual(self.worker.take_failed_blocks(), {1, 2})

    def test_what_is_done_is_here_to_its_end(self):
        """As of the advice, which is later than what progress says."""
        self.worker.bind(Step(advise=["r"]))
        self.assertEqual(self.worker.report().progress, {"r": Progress(1, 4, 4, 4)})

    def test_a_step_in_which_nobody_computes_waits_for_what_comes(self):
        begins = [Begin("s", 2, b"", bytes(64), {}, 4)]
        for step, waits in ((Step(), True), (Step(tokens=1), False), (Step(begins=begins), False),
                            (Step(), True), (Step(forgotten=["r", "s"]), False)):
            self.cache.wait.reset_mock()
            self.worker.bind(step)
            self.worker.report()
            self.assertEqual(self.cache.wait.called, waits)

    def test_one_that_has_retired_says_that_there_is_nothing_to_load(self):
        self.worker.retire()
        self.worker.bind(Step(begins=[Begin("s", 2, b"", bytes(64), {}, 4)]))
        self.assertEqual(self.worker.report().progress, {"r": Progress(1), "s": Progress(2)})
        self.cache.begin.assert_called_once()

    def test_what_the_prefix_cache_has_is_not_loaded(self):
        self.restoration.progress.side_effect = [
            kvcake.Progress(4, *of, 0, 0, 0, 0.0) for of in ((0, 4, 0, 0), (0, 4, 0, 2),
                                                             (2, 4, 0, 0), (2, 4, 0, 0))]
        self.worker.bind(Step(begins=[Begin("s", 2, b"", bytes(64), {}, 4, cached_chunks=2)]))
        self.restoration.claim.assert_called_once_with(2)
        self.restoration.computed.assert_called_once_with(2)

    def test_stores_are_not_waited_for_where_all_is_known(self):
        self.assertEqual(self.cache.lookup.call_count, 1)

    def test_what_cannot_be_restored_is_computed(self):
        self.cache.begin.side_effect = kvcake.Error(6, "no memory")
        with self.assertLogs("vllm.kvcake", "WARNING"):
            self.worker.bind(Step(begins=[Begin("s", 2, b"", bytes(64), {}, 4)]))
        self.assertEqual(self.worker.report().progress, {"s": Progress(2)})

    def test_nothing_is_restored_where_no_store_has_more_than_the_prefix_cache(self):
        self.cache.begin.side_effect = AssertionError("there is nothing to load")
        self.cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\2\2\0\0"[:len(keys)]
        self.worker.bind(Step(begins=[Begin("s", 2, b"", bytes(64), {}, 4, cached_chunks=2)]))
        self.assertEqual(self.worker.report().progress, {"s": Progress(2)})

    def test_a_chunk_that_a_step_computes_a_part_of_is_not_loaded(self):
        self.worker.bind(Step(fronts=[Front("r", 1, 0, 6)]))
        self.restoration.claim.assert_called_once_with(2)

    def test_a_claim_that_is_too_short_for_a_step_is_made_anew(self):
        for claimed, calls in ((1, [call.computed(0), call.claim(2)]), (2, []), (3, [])):
            self.restoration.reset_mock()
            free = kvcake.Progress(4, 0, 4, 0, 0, 0, 0, 0, 0.0)
            said = [free._replace(claimed_count=claimed)] + [free] * (claimed == 1)
            self.restoration.progress.side_effect = said
            self.worker.bind(Step(fronts=[Front("r", 1, 0, 6)]))
            self.assertEqual([one for one in self.restoration.method_calls
                              if one != call.progress()], calls)

    def test_advice_that_a_step_does_not_take_is_a_claim_no_more(self):
        """Or it would seem to be computed for as long as its request is not asked for."""
        free = kvcake.Progress(4, 0, 4, 0, 0, 0, 0, 0, 0.0)
        self.restoration.claim_front.return_value = kvcake.Turn("slice", 0, 2, 0.0)
        for fronts, given_back in (([], [call(0)]), ([Front("r", 1, 0, 8)], [])):
            self.restoration.progress.return_value = free
            self.worker.bind(Step(advise=["r"]))
            self.worker.report()
            self.restoration.progress.return_value = free._replace(claimed_count=2)
            self.restoration.computed.reset_mock()
            self.worker.bind(Step(fronts=fronts))
            self.assertEqual(self.restoration.computed.mock_calls, given_back)

    def test_the_cache_is_closed(self):
        self.restoration.end.side_effect = kvcake.Error(7, "lost")
        with self.assertRaises(kvcake.Error):
            self.worker.close()
        self.cache.close.assert_called_once_with()


class AdviceTest(unittest.TestCase):
    def test_it_is_made_of_what_begins_and_of_what_the_scheduler_asks_for(self):
        cache = unittest.mock.Mock(spec=kvcake.Cache)
        cache.put_wait.return_value = (0, 0)
        cache.keys.side_effect = lambda parent, tokens: [f"key {i}" for i in range(4)]
        cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\2" * len(keys)
        cache.stats.return_value = stats()
        restoration = cache.begin.return_value
        restoration.progress.return_value = kvcake.Progress(4, 0, 4, 0, 0, 0, 0, 0, 0.0)
        restoration.claim_front.return_value = kvcake.Turn("wait", 0, 0, 1.0)
        worker = Worker(cache, unittest.mock.Mock(), chunk_tokens=4, blocks_a_chunk=1,
                        slice_chunks_max=4)

        def advised(step):
            worker.bind(step)
            report = worker.report()
            return set(report.progress) if report else set()

        begins = [Begin(name, i + 1, b"", bytes(64), {}, 4) for i, name in enumerate("abc")]
        self.assertEqual(advised(Step(begins=begins)), {"a", "b", "c"})
        self.assertEqual(restoration.claim_front.mock_calls, 3 * [call(4, 1.0)])  # a whole step's
        self.assertEqual(advised(Step()), set())
        self.assertEqual(advised(Step(advise=["b", "unknown"])), {"b"})
        self.assertEqual(advised(Step(ends=[("b", 2)], advise=["b", "c"])), {"c"})

    def test_a_step_is_given_to_requests_in_turn_and_new_ones_come_last(self):
        cache = unittest.mock.Mock(spec=kvcake.Cache)
        cache.put_wait.return_value = (0, 0)
        cache.keys.side_effect = lambda parent, tokens: [f"key {i}" for i in range(8)]
        cache.lookup.side_effect = lambda keys, timeout_s=0.0: b"\2" * len(keys)
        cache.stats.return_value = stats()
        asked = []

        def restoration(name, *turns):
            mock = unittest.mock.Mock()
            mock.progress.return_value = kvcake.Progress(8, 0, 8, 0, 0, 0, 0, 0, 0.0)
            left = list(turns)

            def claim_front(chunks_max, share):
                asked.append((name, chunks_max, share))
                return left.pop(0)
            mock.claim_front.side_effect = claim_front
            return mock

        wait = kvcake.Turn("wait", 0, 0, 1.0)
        one, three = (kvcake.Turn("slice", 0, count, 0.0) for count in (1, 3))
        cache.begin.side_effect = [restoration("a", wait, three), restoration("b", wait, wait),
                                   restoration("c", wait, one), restoration("d", one)]
        worker = Worker(cache, unittest.mock.Mock(), chunk_tokens=4, blocks_a_chunk=1,
                        slice_chunks_max=4)
        begins = [Begin(name, i + 1, b"", bytes(128), {}, 8) for i, name in enumerate("abcd")]
        worker.bind(Step(begins=begins[:3]))
        worker.report()
        asked.clear()
        worker.bind(Step(begins=begins[3:], advise=["a", "b", "c"]))
        worker.report()
        self.assertEqual(asked, [("a", 4, 1.0), ("b", 1, 0.25), ("c", 1, 0.25), ("d", 1, 0.25)])


class LearnsTest(unittest.TestCase):
    """What a step took, by a clock that is set."""

    def setUp(self):
        self.now, self.learned = 0.0, []
        cache = unittest.mock.Mock(spec=kvcake.Cache)
        cache.put_wait.return_value = (0, 0)
        cache.keys.side_effect = lambda parent, tokens: ["key"]
        cache.lookup.side_effect = self.lookup
        cache.learn.side_effect = lambda *what: self.learned.append(what)
        self.blocks = unittest.mock.Mock()
        self.worker = Worker(cache, self.blocks, chunk_tokens=4, blocks_a_chunk=1,
                             slice_chunks_max=4, clock=lambda: self.now)

    def lookup(self, keys, timeout_s=0.0):
        self.now += timeout_s
        return bytes(len(keys))

    def step(self, alone, seconds, copying=0.0, begins=()):
        self.worker.bind(Step(alone=alone, begins=list(begins),
                              tokens=alone.end - alone.start if alone else 0))
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
        self.now += 0.25  # until it has jumped
        self.step(Alone("s", 24, 32), 0.5, copying=0.25)
        self.step(None, 9.0)
        self.assertEqual(self.learned, [(0, 16, 0.5), (16, 16, 0.75), (0, 16, 0.5),
                                        (24, 8, 0.25)])

    def test_the_clock_is_looked_at_when_all_is_computed(self):
        def settle():
            self.now += 2.0

        self.blocks.settle.side_effect = settle
        self.step(Alone("r", 0, 16), 0.5)
        self.assertEqual(self.learned, [(0, 16, 2.5)])

    def test_looking_into_slow_stores_is_none_of_it(self):
        self.worker._look_s = 2.0
        self.step(Alone("r", 0, 16), 0.5, begins=[Begin("r", 1, b"", bytes(64), {}, 1)])
        self.assertEqual((self.now, self.learned), (2.5, [(0, 16, 0.5)]))


if __name__ == "__main__":
    unittest.main()
