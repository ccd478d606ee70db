"""Every part of vLLM that kvcake.vllm uses and that is no public interface, one test for each: in a
new release these say which one moved. Runs in a virtual environment with vLLM and kvcake."""
import dataclasses
import inspect
import os
import unittest

os.environ.setdefault("KVCAKE_VLLM_ANY", "1")  # it is what these tests are for

import vllm  # noqa: E402,F401
from vllm.config import SchedulerConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import base, metrics  # noqa: E402
from vllm.v1.core import kv_cache_coordinator, kv_cache_manager, kv_cache_utils  # noqa: E402
from vllm.v1.core.sched import output, scheduler  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.metrics.stats import PrefillStats  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.worker import kv_connector_model_runner_mixin as runner  # noqa: E402

import kvcake.vllm  # noqa: E402

Scheduler = scheduler.Scheduler


def arguments(call):
    return list(inspect.signature(call).parameters)


def source(thing):
    return inspect.getsource(thing)


class SchedulerHooksTest(unittest.TestCase):
    def test_a_slice_is_capped_for_running_and_waiting_requests(self):
        self.assertEqual(arguments(Scheduler._reserve_prefill_lookahead),
                         ["self", "request", "num_computed_tokens", "num_new_tokens"])
        self.assertEqual(source(Scheduler.schedule).count("self._reserve_prefill_lookahead("), 2)

    def test_metadata_is_built_from_what_was_scheduled(self):
        self.assertEqual(arguments(Scheduler._build_kv_connector_meta),
                         ["self", "connector", "scheduler_output"])
        body = source(Scheduler.schedule)
        self.assertLess(body.index("= SchedulerOutput("),
                        body.index("self._build_kv_connector_meta("))
        self.assertLess(body.index("self._build_kv_connector_meta("),
                        body.index("self._update_after_schedule("))

    def test_the_tokens_that_are_computed_are_read_again_in_each_step(self):
        self.assertIn("num_computed_tokens.append(req.num_computed_tokens)",
                      source(Scheduler._make_cached_request_data))

    def test_loads_may_come_before_the_step(self):
        self.assertIn("has_sync_kv_loads",
                      {field.name for field in dataclasses.fields(output.SchedulerOutput)})
        self.assertIn("has_sync_kv_loads", source(runner))

    def test_the_steps_contents(self):
        names = {field.name for field in dataclasses.fields(output.SchedulerOutput)}
        self.assertLessEqual({"scheduled_new_reqs", "scheduled_cached_reqs",
                              "num_scheduled_tokens", "total_num_scheduled_tokens"}, names)
        names = {field.name for field in dataclasses.fields(output.CachedRequestData)}
        self.assertLessEqual({"req_ids", "num_computed_tokens"}, names)
        names = {field.name for field in dataclasses.fields(output.NewRequestData)}
        self.assertLessEqual({"req_id", "num_computed_tokens"}, names)

    def test_preemption(self):
        self.assertEqual(arguments(Scheduler._preempt_request)[:2], ["self", "request"])

    def test_blocks_that_failed(self):
        self.assertEqual(arguments(Scheduler._handle_invalid_blocks)[:2],
                         ["self", "invalid_block_ids"])
        self.assertTrue(callable(kv_cache_manager.KVCacheManager.evict_blocks))

    def test_what_the_connector_says_of_an_admission(self):
        body = source(Scheduler.schedule)
        self.assertIn("if ext_tokens is None:", body)
        self.assertIn("self.connector.update_state_after_alloc(", body)
        self.assertIn("self.connector.on_new_request(request)", source(Scheduler.add_request))

    def test_a_requests_blocks_and_what_the_prefix_cache_has(self):
        self.assertEqual(arguments(kv_cache_manager.KVCacheManager.get_block_ids),
                         ["self", "request_id"])
        hit = kv_cache_coordinator.UnitaryKVCacheCoordinator.find_longest_cache_hit
        self.assertEqual(arguments(hit), ["self", "block_hashes", "max_cache_hit_length"])
        self.assertIn("enable_caching", source(kv_cache_manager.KVCacheManager.__init__))

    def test_tokens_that_are_jumped_over_are_counted(self):
        stats = PrefillStats()
        stats.set(num_prompt_tokens=10, num_local_cached_tokens=1, num_external_cached_tokens=2)
        self.assertEqual((stats.num_cached_tokens, stats.num_computed_tokens), (3, 7))
        self.assertIn("prefill_stats", source(Request.__init__))

    def test_both_schedulers_are_bases(self):
        self.assertTrue(issubclass(kvcake.vllm.KvcakeScheduler, Scheduler))
        self.assertTrue(issubclass(kvcake.vllm.KvcakeAsyncScheduler, AsyncScheduler))
        self.assertTrue(callable(SchedulerConfig.get_scheduler_cls))


class RequestTest(unittest.TestCase):
    def test_what_keys_are_made_of(self):
        body = source(Request.__init__)
        for name in ("prompt_token_ids", "_all_token_ids", "num_prompt_tokens", "lora_request",
                     "cache_salt", "mm_features", "prompt_embeds", "num_computed_tokens",
                     "num_preemptions", "resumable", "skip_reading_prefix_cache"):
            self.assertIn(f"self.{name}", body)
        self.assertIsNotNone(RequestStatus.RUNNING)
        self.assertEqual(arguments(kv_cache_utils.generate_block_hash_extra_keys),
                         ["request", "start_token_idx", "end_token_idx", "start_mm_idx"])


class ConnectorTest(unittest.TestCase):
    def test_it_implements_what_vllm_asks_for(self):
        self.assertFalse(kvcake.vllm.KvcakeConnector.__abstractmethods__)
        self.assertTrue(base.supports_hma(kvcake.vllm.KvcakeConnector))

    def test_calls_have_vllms_arguments(self):
        for name, call in vars(kvcake.vllm.KvcakeConnector).items():
            theirs = getattr(base.KVConnectorBase_V1, name, None) or \
                getattr(base.SupportsHMA, name, None)
            if name.startswith("_") or not callable(call) or theirs is None:
                continue
            self.assertEqual(arguments(call), arguments(theirs), name)

    def test_a_steps_order_in_the_worker(self):
        body = source(runner.KVConnectorModelRunnerMixin._get_kv_connector_output)
        calls = ["bind_connector_metadata(", "start_load_kv(", "yield", "wait_for_save()",
                 "get_block_ids_with_load_errors()", "build_connector_worker_meta()"]
        places = [body.index(call) for call in calls]
        self.assertEqual(places, sorted(places))

    def test_reports_come_back(self):
        names = {field.name for field in dataclasses.fields(KVConnectorOutput)}
        self.assertLessEqual({"kv_connector_worker_meta", "kv_connector_stats",
                              "invalid_block_ids"}, names)

    def test_metrics(self):
        self.assertEqual(arguments(metrics.KVConnectorPromMetrics.observe),
                         ["self", "transfer_stats_data", "engine_idx"])
        body = source(metrics.KVConnectorPromMetrics.__init__)
        for name in ("_counter_cls", "_histogram_cls", "per_engine_labelvalues"):
            self.assertIn(name, body)

    def test_options_that_are_refused_exist(self):
        from vllm.config import CacheConfig, KVTransferConfig, ParallelConfig
        self.assertIn("kv_load_failure_policy", {f.name for f in
                                                 dataclasses.fields(KVTransferConfig)})
        self.assertIn("pipeline_parallel_size", {f.name for f in
                                                 dataclasses.fields(ParallelConfig)})
        self.assertIn("cache_dtype", {f.name for f in dataclasses.fields(CacheConfig)})


if __name__ == "__main__":
    unittest.main()
