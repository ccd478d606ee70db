"""What kvcake.vllm's scheduler plans: vllm_planner_test.py PATH/libkvcake.so"""
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ["KVCAKE_LIBRARY"] = sys.argv.pop(1)
sys.path.insert(0, str(ROOT / "python"))
from kvcake.vllm.messages import WAIT, Alone, Progress, Report, Step  # noqa: E402
from kvcake.vllm.planner import ADVISED, PATIENCE_STEPS, Planner, RequestKey  # noqa: E402


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

    def test_an_admission_after_a_preemption_waits_anew(self):
        planner = self.planner()
        for _ in range(PATIENCE_STEPS + 1):
            planner.matched("r", 0)
        planner.preempt("r")
        self.assertIsNone(planner.matched("r", 0))

    def test_admission_waits_where_the_planner_waits(self):
        planner = self.planner()
        self.hear(planner, 0, WAIT)
        self.assertIsNone(planner.matched("r", 0))
        self.assertEqual(planner.cap("r", 0, 42, running=False), 4)
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
        self.hear(planner, 0, 0, chunks=0)
        self.assertEqual(planner.matched("r", 0), 0, "one is enough that has nothing")

    def test_reports_of_ranks_become_the_worst_of_the_last_epoch(self):
        mine = Report({"both": Progress(1, 5, 7, 9), "mine": Progress(1),
                       "old": Progress(3, 1, 2, 3)}, failures=1)
        other = Report({"both": Progress(1, 6, 6, 8), "other": Progress(2),
                        "old": Progress(4, 5, 6, 7)}, failures=2)
        for one, two in ((mine, other), (other, mine)):
            both = one.aggregate(two)
            self.assertEqual(both.progress, {
                "both": Progress(1, 5, 6, 8, ranks=2), "mine": Progress(1), "other": Progress(2),
                "old": Progress(4, 5, 6, 7)})
            self.assertEqual(both.failures, 2)

    def test_nobody_waits_to_load_what_the_prefix_cache_has(self):
        planner = self.planner()
        self.hear(planner, 0, WAIT, chunks=5)
        self.assertIsNone(planner.matched("r", 16))
        self.assertEqual(planner.matched("r", 20), 0)

    def test_what_was_computed_on_a_failure_is_kept_when_it_is_computed_again(self):
        planner = self.planner()
        self.assertEqual(len(self.step(planner, 0, 12).saves[0].blocks), 3)
        planner.hear(Report(failures=1))
        (save,) = self.step(planner, 4, 12).saves
        self.assertEqual((save.first, save.blocks), (0, [0, 1, 2]))

    def test_what_is_kept_is_what_was_asked_for(self):
        for keep, chunks in (("all", 3), ("prompts", 2), ("none", 0)):
            planner = Planner(chunk_tokens=4, block_tokens=4, keep=keep)
            planner.add("r", list(range(14)), 10, RequestKey())
            saves = self.step(planner, 0, 14).saves
            self.assertEqual(sum(len(save.blocks) for save in saves), chunks, keep)

    def test_who_is_preempted_in_the_step_of_a_jump_does_not_jump(self):
        planner = self.planner()
        self.step(planner, 0, 8)
        self.hear(planner, 6, 7)
        self.assertEqual(planner.jump("r", 8), 24)
        planner.preempt("r")
        self.assertEqual(planner.unjump({}), [])
        self.assertEqual(self.step(planner, 0, 4).jumps, [])

    def test_what_was_kept_or_loaded_once_is_not_kept_again(self):
        planner = self.planner()
        self.step(planner, 0, 8)
        for start, saved in ((0, []), (16, [(4, [4])]), (0, [])):
            planner.preempt("r")
            saves = self.step(planner, start, max(8, start + 4)).saves
            self.assertEqual([(save.first, save.blocks) for save in saves], saved)
        self.hear(planner, 8, 9, epoch=4)
        self.assertEqual(planner.jump("r", 8), 32)
        self.assertEqual([save.first for save in self.step(planner, 32, 36).saves], [8])

    def test_a_request_of_the_same_name_is_another_one(self):
        planner = self.planner()
        self.step(planner, 0, 4)
        planner.add("r", list(range(42)), 42, RequestKey())
        step = planner.step({}, lambda name: [], 0)
        self.assertEqual((step.ends, step.forgotten, [b.epoch for b in step.begins]),
                         ([("r", 1)], ["r"], [2]))

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
        self.assertEqual(planner.step({}, lambda name: [], 0), Step())

    def test_what_ends_before_workers_hear_of_it_restores_nothing(self):
        planner = self.planner()
        planner.hear(Report(failures=1))  # of another request, while this one's begin is on its way
        step = self.step(planner, 0, 4)
        self.assertEqual([(b.epoch, b.restore_chunks) for b in step.begins], [(1, 0)])
        self.assertEqual(step.ends, [])

    def test_workers_are_asked_for_advice_that_the_next_step_may_want(self):
        planner = self.planner()
        queue = [f"queued {i}" for i in range(ADVISED + 9)]
        for name in queue:
            planner.add(name, list(range(42)), 42, RequestKey())
        planner.add("done", list(range(3)), 3, RequestKey())
        self.assertEqual(self.step(planner, 0, 4).advise, [], "of what begins they speak anyway")
        planner.jump("r", 4)
        for name in ("done", *reversed(queue)):  # as vLLM has put them in order
            planner.matched(name, 0)
        self.assertEqual(self.step(planner, 4, 8).advise, ["r", *queue[:9:-1]])
        self.assertEqual(self.step(planner, 8, 12).advise, [])

    def test_one_that_has_retired_restores_and_keeps_nothing(self):
        planner = self.planner()
        planner.add("s", list(range(42)), 42, RequestKey())
        self.step(planner, 0, 4)
        self.hear(planner, 6, 7)
        planner.retire()
        self.assertEqual(planner.matched("s", 0), 0)
        self.assertIsNone(planner.jump("r", 4))
        planner.add("t", list(range(42)), 42, RequestKey())
        step = self.step(planner, 4, 42)
        self.assertEqual((step.ends, step.begins, step.saves), ([("r", 1), ("s", 2)], [], []))

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
        self.assertEqual(self.step(planner, 8, 8).jumps, [])
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
        for _ in range(2):
            planner.hear(Report({}, failures=2))
            self.assertEqual(planner.step({}, lambda name: [], 0).failures_seen, 2)

    def test_nobody_waits_at_the_end_of_what_is_loaded(self):
        planner = self.planner()
        self.step(planner, 0, 24)
        self.hear(planner, 0, WAIT, chunks=5)  # before the workers knew of that step
        self.assertEqual(planner.cap("r", 24, 18, running=True), 18)
        for end, advised in ((16, ["r"]), (20, [])):
            planner = self.planner()
            self.hear(planner, 0, 5, chunks=5)
            self.step(planner, 0, end)
            planner.jump("r", end)
            self.assertEqual(planner.step({}, lambda name: [], 0).advise, advised)

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
        step = self.step(planner, 0, 24)
        self.assertEqual((step.alone, step.tokens), (Alone("r", 0, 24), 24))
        blocks = lambda name: list(range(50))  # noqa: E731
        self.assertEqual(planner.step({"r": (24, 42), "s": (8, 9)}, blocks, 19).alone,
                         Alone("r", 24, 42))
        self.assertIsNone(planner.step({"r": (24, 36), "s": (0, 8)}, blocks, 20).alone)
        self.assertIsNone(self.step(planner, 42, 43).alone, "decoding")


if __name__ == "__main__":
    unittest.main()
