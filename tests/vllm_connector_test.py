"""What kvcake.vllm's connector hands on: what users say to the library, what vLLM says to both
sides of the plugin. Runs in a virtual environment with vLLM and kvcake."""
import contextlib
import os
import types
import unittest
from unittest import mock

os.environ.setdefault("KVCAKE_VLLM_ANY", "1")

import torch  # noqa: E402

import kvcake  # noqa: E402
from kvcake.vllm import config, connector  # noqa: E402
from kvcake.vllm.connector import KvcakeConnector  # noqa: E402
from kvcake.vllm.messages import Progress, Report, Step  # noqa: E402
from kvcake.vllm.scheduler import KvcakeScheduler  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1, KVConnectorRole)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

space = types.SimpleNamespace
BLOCKS = 5


class StartTest(unittest.TestCase):
    """How it starts in either process, beside a vLLM and a library that are played."""

    def setUp(self):
        patches = contextlib.ExitStack()
        self.addCleanup(patches.close)
        for name in ("check_supported", "check_scheduler", "before_adapters", "before_reloads"):
            patches.enter_context(mock.patch.object(connector, name))
        self.played = {name: patches.enter_context(mock.patch.object(where, name))
                       for where, name in ((connector, "Planner"), (connector, "Worker"),
                                           (kvcake, "Cache"), (kvcake, "set_log"))}
        self.played["Cache"].return_value.stats.return_value = space(stored_chunks=0,
                                                                     memory_chunks=4)
        patches.enter_context(mock.patch.object(KVConnectorBase_V1, "__init__", self.base))
        patches.enter_context(mock.patch("vllm.distributed.get_tensor_model_parallel_rank",
                                         lambda: 1))

    @staticmethod
    def base(plugin, vllm_config, role, kv_cache_config):
        plugin._vllm_config, plugin._kv_cache_config = vllm_config, kv_cache_config

    def start(self, role, *, block=16, ranks=1, budget=8192, longest=64, **options):
        told = {"stores": ["/a"], "weights_id": "w", **options}
        model = space(hf_config=space(to_dict=dict), max_model_len=longest, dtype=torch.bfloat16,
                      quantization=None)
        return KvcakeConnector(
            space(kv_transfer_config=space(kv_connector_extra_config=told), model_config=model,
                  scheduler_config=space(max_num_batched_tokens=budget),
                  cache_config=space(cache_dtype="auto"),
                  parallel_config=space(tensor_parallel_size=ranks)),
            role, space(num_blocks=BLOCKS,
                        kv_cache_groups=[space(kv_cache_spec=space(block_size=block))]))

    def work(self, caches=None, **options):
        plugin = self.start(KVConnectorRole.WORKER, **options)
        plugin.register_kv_caches(caches or {"a": torch.zeros(BLOCKS, 2, 4)})
        return plugin

    def told(self, name):
        return self.played[name].call_args.kwargs

    def test_chunks_are_whole_blocks_of_as_many_tokens_as_they_shall_have(self):
        for block, chunk in ((16, 128), (48, 144), (128, 128), (256, 256)):
            self.start(KVConnectorRole.SCHEDULER, block=block)
            planned = self.told("Planner")
            self.assertEqual((planned["block_tokens"], planned["chunk_tokens"]), (block, chunk))

    def test_what_users_say_reaches_the_scheduler(self):
        self.start(KVConnectorRole.SCHEDULER, ranks=2, policy="load", keep="prompts")
        self.assertEqual(self.told("Planner"), {
            "chunk_tokens": 128, "block_tokens": 16, "ranks": 2, "policy": "load",
            "keep": "prompts"})

    def test_adapters_are_looked_at_before_they_are_loaded(self):
        plugin = self.start(KVConnectorRole.SCHEDULER)
        (tell,), _ = connector.before_adapters.call_args
        with mock.patch.object(plugin, "_adapters") as adapters:
            tell(space(lora_int_id=3, lora_path="/there"))
        adapters.loads.assert_called_once_with(3, "/there")

    def test_what_users_say_reaches_the_library(self):
        plugin = self.work(ranks=2, policy="load", store_capacity_bytes=7, load_rate=11,
                           memory_bytes=1 << 20, store_ttl_s=13, stall_timeout_s=17, look_s=0.5)
        told = self.told("Cache")
        self.assertEqual(told.pop("stores"), [kvcake.Store("/a", 7, 11.0)])
        self.assertEqual(told, {
            "layers": 1, "chunk_tokens": 128, "slab_bytes": 8 * 8 * 4, "memory_bytes": 1 << 20,
            "store_ttl_s": 13.0, "stall_timeout_s": 17.0, "device": plugin._device()})
        self.assertEqual(self.told("Worker"), {
            "chunk_tokens": 128, "blocks_a_chunk": 8, "slice_chunks_max": 64, "policy": "load",
            "rank": 1, "ranks": 2, "look_s": 0.5})
        connector.before_reloads.assert_called_once_with(plugin._retire_worker)

    def test_a_slice_is_a_chunk_at_least(self):
        self.work(budget=64)
        self.assertEqual(self.told("Worker")["slice_chunks_max"], 1)

    def test_layers_that_share_a_cache_are_kept_once(self):
        cache = torch.zeros(BLOCKS, 2, 4)
        self.work({"a": cache, "b": torch.zeros(BLOCKS, 2, 4), "shares": cache})
        self.assertEqual(self.told("Cache")["layers"], 2)

    def test_the_library_logs_as_vllm_does_until_it_ends(self):
        with self.assertLogs("vllm.kvcake") as logged:
            plugin = self.work(stores=["redis://u:secret@host"], longest=1 << 20)
        self.assertIn("redis://***@host", logged.output[0])
        self.assertIn("memory_bytes holds", logged.output[1])
        self.played["set_log"].assert_called_once_with(connector.logger)
        self.played["Worker"].return_value.close.side_effect = kvcake.Error(7, "lost")
        with self.assertRaises(kvcake.Error):
            plugin.shutdown()
        self.played["set_log"].assert_called_with(None)
        plugin.shutdown()  # a second time: nothing is left
        self.played["Worker"].return_value.close.assert_called_once_with()
        self.assertIsNone(plugin.get_kv_connector_stats())


class StepTest(unittest.TestCase):
    """What vLLM says with each step, and what it hears."""

    def setUp(self):
        self.plugin = object.__new__(KvcakeConnector)
        self.plugin.planner, self.plugin._worker = mock.Mock(), mock.Mock()

    def test_a_step_is_what_it_computes_of_each_request(self):
        step = self.plugin.planner.step
        step.return_value = Step(forgotten=["old"], tokens=9)
        self.plugin.blocks_of = mock.sentinel.blocks_of
        made = self.plugin.build_connector_meta(space(
            scheduled_new_reqs=[space(req_id="new", num_computed_tokens=16)],
            scheduled_cached_reqs=space(req_ids=["old", "decoding"], num_computed_tokens=[4, 30]),
            num_scheduled_tokens={"new": 8, "decoding": 1}, total_num_scheduled_tokens=9))
        step.assert_called_once_with({"new": (16, 24), "decoding": (30, 31)},
                                     mock.sentinel.blocks_of, 9)
        self.assertIsInstance(made, connector.StepMetadata)
        self.assertEqual(vars(made), vars(step.return_value))

    def test_reports_travel_as_vllms(self):
        report = self.plugin._worker.report
        for said in (Report({"r": Progress(1, 2, 3, 4)}, 1), Report({}, 1)):
            report.return_value = said
            made = self.plugin.build_connector_worker_meta()
            both = made.aggregate(made)
            for one in (made, both):
                self.assertIsInstance(one, connector.WorkerReport)
            self.assertEqual((made.progress, made.failures), (said.progress, 1))
            self.plugin.update_connector_output(space(kv_connector_worker_meta=both))
            self.plugin.planner.hear.assert_called_with(both)
        report.return_value = None
        self.assertIsNone(self.plugin.build_connector_worker_meta())
        self.plugin.update_connector_output(space(kv_connector_worker_meta=None))
        self.assertEqual(self.plugin.planner.hear.call_count, 2)

    def test_a_workers_step_is_told_of_when_vllm_says_so(self):
        plugin, worker, step = self.plugin, self.plugin._worker, connector.StepMetadata()
        for call, told in ((lambda: plugin.bind_connector_metadata(step), mock.call.bind(step)),
                           (lambda: plugin.start_load_kv(None), mock.call.load()),
                           (plugin.wait_for_save, mock.call.computed())):
            worker.reset_mock()
            call()
            self.assertEqual(worker.mock_calls, [told])

    def test_blocks_that_failed_are_told(self):
        self.plugin._worker.take_failed_blocks.return_value = {3}
        self.assertEqual(self.plugin.get_block_ids_with_load_errors(), {3})

    def test_who_is_over_is_forgotten(self):
        made = self.plugin.request_finished_all_groups(space(request_id="r"), ([1, 2],))
        self.assertEqual(made, (False, None))
        self.plugin.planner.finish.assert_called_once_with("r")
        self.assertIs(self.plugin.requires_kv_delivery, False)

    def test_what_is_counted_is_told_where_something_is(self):
        take = self.plugin._worker.counts.take
        take.return_value = {"tokens_loaded": 4}
        self.assertEqual(self.plugin.get_kv_connector_stats().data, {"tokens_loaded": 4})
        take.return_value = {}
        self.assertIsNone(self.plugin.get_kv_connector_stats())


class SchedulerTest(unittest.TestCase):
    """What it adds to vLLM's, which is played."""

    def setUp(self):
        self.scheduler = object.__new__(KvcakeScheduler)
        self.scheduler._planner, self.scheduler._jumping = mock.Mock(), {}

    def test_running_requests_jump_before_a_step_is_scheduled(self):
        requests = [space(request_id=name, num_computed_tokens=8) for name in "ab"]
        self.scheduler._jumping = {"a": 4}  # of the step before
        self.scheduler.running = requests
        self.scheduler._planner.jump.side_effect = [None, 24]
        with mock.patch.object(Scheduler, "schedule", autospec=True) as schedule:
            schedule.side_effect = lambda _: [one.num_computed_tokens for one in requests]
            self.assertEqual(self.scheduler.schedule(), [8, 24])
        self.assertEqual(self.scheduler._jumping, {"b": 16})

    def test_it_tells_the_connector_what_it_has(self):
        plugin, kept = object.__new__(KvcakeConnector), mock.Mock()
        plugin.planner = mock.sentinel.planner
        with mock.patch.object(Scheduler, "__init__", lambda made: made.__dict__.update(
                connector=plugin, kv_cache_manager=kept)):
            made = KvcakeScheduler()
        self.assertIs(made._planner, plugin.planner)
        kept.get_block_ids.side_effect = {"r": ([1, 2],)}.get
        self.assertEqual(plugin.blocks_of("r"), [1, 2])
        hit = kept.coordinator.find_longest_cache_hit
        hit.return_value = ([], 32)
        for caches, cached in ((True, 32), (False, 0)):
            kept.enable_caching = caches
            request = space(block_hashes=mock.sentinel.hashes, num_tokens=40)
            self.assertEqual(plugin.cached_tokens_of(request), cached)
        hit.assert_called_once_with(mock.sentinel.hashes, 39)  # the last token is computed

    def test_a_request_that_the_step_left_out_has_not_jumped(self):
        self.scheduler.requests = {"r": space(num_computed_tokens=24)}
        self.scheduler._planner.unjump.return_value = [("r", 8)]
        output, meta = space(num_scheduled_tokens={"s": 4}, has_sync_kv_loads=False), Step()
        with mock.patch.object(Scheduler, "_build_kv_connector_meta", lambda *_: meta):
            self.assertIs(self.scheduler._build_kv_connector_meta(None, output), meta)
        self.scheduler._planner.unjump.assert_called_once_with({"s": 4})
        self.assertEqual(self.scheduler.requests["r"].num_computed_tokens, 8)
        self.assertFalse(output.has_sync_kv_loads)

    def test_tokens_that_are_jumped_over_are_added_until_a_request_is_preempted(self):
        for preemptions, calls in ((0, [mock.call(num_prompt_tokens=40, num_local_cached_tokens=2,
                                                  num_external_cached_tokens=12)]), (1, [])):
            stats = mock.Mock(num_prompt_tokens=40, num_local_cached_tokens=2,
                              num_external_cached_tokens=4)
            self.scheduler._count(space(prefill_stats=stats, num_preemptions=preemptions), 8)
            self.assertEqual(stats.set.mock_calls, calls)

    def test_the_planner_hears_who_is_running(self):
        self.scheduler._planner.cap.return_value = 5
        with mock.patch.object(Scheduler, "_reserve_prefill_lookahead", lambda *_: 7):
            for status, running in ((RequestStatus.RUNNING, True), (RequestStatus.WAITING, False),
                                    (RequestStatus.PREEMPTED, False)):
                request = space(request_id="r", status=status)
                self.assertEqual(self.scheduler._reserve_prefill_lookahead(request, 8, 9), 5)
                self.scheduler._planner.cap.assert_called_with("r", 8, 7, running=running)


if __name__ == "__main__":
    unittest.main()
