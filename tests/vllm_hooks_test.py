"""Every part of vLLM that kvcake.vllm uses and that is no public interface, one test for each: in a
new release these say which one moved.

    vllm_hooks_test.py [--source DIR]

Sources are read and not imported, so that a release can be asked that cannot run here: DIR has its
package, unpacked (`./dev vllm --hooks VERSION`). Without it, it is the vLLM of this virtual
environment, and what only an import can tell is tried, too.
"""
import ast
import functools
import importlib.util
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent.parent / "python" / "kvcake" / "vllm"
INSTALLED = "--source" not in sys.argv
if INSTALLED:
    os.environ.setdefault("KVCAKE_VLLM_ANY", "1")  # it is what these tests are for
    ROOT = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
else:
    _at = sys.argv.index("--source")
    ROOT = pathlib.Path(sys.argv[_at + 1]) / "vllm"
    del sys.argv[_at:_at + 2]

SCHEDULER, REQUEST = "v1/core/sched/scheduler.py", "v1/request.py"
ASYNC_SCHEDULER, OUTPUT = "v1/core/sched/async_scheduler.py", "v1/core/sched/output.py"
BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
METRICS = "distributed/kv_transfer/kv_connector/v1/metrics.py"
RUNNER = "v1/worker/kv_connector_model_runner_mixin.py"
MANAGER, COORDINATOR = "v1/core/kv_cache_manager.py", "v1/core/kv_cache_coordinator.py"


@functools.cache
def _module(path):
    text = path.read_text()
    return text, ast.parse(text)


def find(file, name="", root=ROOT):
    """The class or function of that dotted name."""
    text, node = _module(root / file)
    for part in name.split(".") if name else ():
        found = [child for child in node.body
                 if getattr(child, "name", None) == part and not any(
                     "overload" in ast.unparse(d) for d in child.decorator_list)]
        assert found, f"{file} has no {name}"
        node = found[0]
    return text, node


def source(file, name=""):
    text, node = find(file, name)
    return ast.get_source_segment(text, node) if name else text


def arguments(file, name, root=ROOT):
    given = find(file, name, root)[1].args
    named = [one.arg for one in given.posonlyargs + given.args]
    named += [given.vararg.arg] if given.vararg else []
    named += [one.arg for one in given.kwonlyargs]
    return named + ([given.kwarg.arg] if given.kwarg else [])


def fields(file, name):
    return {child.target.id for child in find(file, name)[1].body
            if isinstance(child, ast.AnnAssign)}


def bases(file, name, root=ROOT):
    return {ast.unparse(base) for base in find(file, name, root)[1].bases}


def methods(file, name, root=ROOT):
    return {child.name: child for child in find(file, name, root)[1].body
            if isinstance(child, ast.FunctionDef)}


class SchedulerHooksTest(unittest.TestCase):
    def test_a_slice_is_capped_for_running_and_waiting_requests(self):
        self.assertEqual(arguments(SCHEDULER, "Scheduler._reserve_prefill_lookahead"),
                         ["self", "request", "num_computed_tokens", "num_new_tokens"])
        self.assertEqual(source(SCHEDULER, "Scheduler.schedule")
                         .count("self._reserve_prefill_lookahead("), 2)

    def test_metadata_is_built_from_what_was_scheduled(self):
        self.assertEqual(arguments(SCHEDULER, "Scheduler._build_kv_connector_meta"),
                         ["self", "connector", "scheduler_output"])
        body = source(SCHEDULER, "Scheduler.schedule")
        self.assertLess(body.index("= SchedulerOutput("),
                        body.index("self._build_kv_connector_meta("))
        self.assertLess(body.index("self._build_kv_connector_meta("),
                        body.index("self._update_after_schedule("))

    def test_the_tokens_that_are_computed_are_read_again_in_each_step(self):
        self.assertIn("num_computed_tokens.append(req.num_computed_tokens)",
                      source(SCHEDULER, "Scheduler._make_cached_request_data"))

    def test_loads_may_come_before_the_step(self):
        self.assertIn("has_sync_kv_loads", fields(OUTPUT, "SchedulerOutput"))
        self.assertIn("has_sync_kv_loads", source(RUNNER))

    def test_the_steps_contents(self):
        self.assertLessEqual({"scheduled_new_reqs", "scheduled_cached_reqs",
                              "num_scheduled_tokens", "total_num_scheduled_tokens"},
                             fields(OUTPUT, "SchedulerOutput"))
        self.assertLessEqual({"req_ids", "num_computed_tokens"},
                             fields(OUTPUT, "CachedRequestData"))
        self.assertLessEqual({"req_id", "num_computed_tokens"}, fields(OUTPUT, "NewRequestData"))

    def test_preemption(self):
        self.assertEqual(arguments(SCHEDULER, "Scheduler._preempt_request")[:2],
                         ["self", "request"])

    def test_blocks_that_failed(self):
        self.assertEqual(arguments(SCHEDULER, "Scheduler._handle_invalid_blocks")[:2],
                         ["self", "invalid_block_ids"])
        self.assertEqual(arguments(MANAGER, "KVCacheManager.evict_blocks"), ["self", "block_ids"])

    def test_what_the_connector_says_of_an_admission(self):
        body = source(SCHEDULER, "Scheduler.schedule")
        self.assertIn("if ext_tokens is None:", body)
        self.assertIn("self.connector.update_state_after_alloc(", body)
        self.assertIn("self.connector.on_new_request(request)",
                      source(SCHEDULER, "Scheduler.add_request"))

    def test_a_requests_blocks_and_what_the_prefix_cache_has(self):
        self.assertEqual(arguments(MANAGER, "KVCacheManager.get_block_ids"),
                         ["self", "request_id"])
        hit = "UnitaryKVCacheCoordinator.find_longest_cache_hit"
        self.assertEqual(arguments(COORDINATOR, hit),
                         ["self", "block_hashes", "max_cache_hit_length"])
        self.assertIn("enable_caching", source(MANAGER, "KVCacheManager.__init__"))

    def test_tokens_that_are_jumped_over_are_counted(self):
        self.assertEqual(arguments("v1/metrics/stats.py", "PrefillStats.set"),
                         ["self", "num_prompt_tokens", "num_local_cached_tokens",
                          "num_external_cached_tokens"])
        self.assertLessEqual({"num_prompt_tokens", "num_local_cached_tokens",
                              "num_external_cached_tokens"},
                             fields("v1/metrics/stats.py", "PrefillStats"))
        self.assertIn("prefill_stats", source(REQUEST, "Request.__init__"))

    def test_both_schedulers_are_bases(self):
        self.assertIn("Scheduler", bases(ASYNC_SCHEDULER, "AsyncScheduler"))
        self.assertIn("get_scheduler_cls", methods("config/scheduler.py", "SchedulerConfig"))

    def test_a_connector_is_reset(self):
        self.assertIn("self.connector.reset_cache()",
                      source(SCHEDULER, "Scheduler.reset_connector_cache"))
        self.assertIn("self.reset_connector_cache()",
                      source(SCHEDULER, "Scheduler.reset_prefix_cache"))

    def test_the_second_model_runner_is_known(self):
        self.assertIn("self.use_v2_model_runner =", source(SCHEDULER, "Scheduler.__init__"))


class RequestTest(unittest.TestCase):
    def test_what_keys_are_made_of(self):
        body = source(REQUEST, "Request.__init__")
        for name in ("prompt_token_ids", "_all_token_ids", "num_prompt_tokens", "lora_request",
                     "cache_salt", "mm_features", "prompt_embeds", "num_computed_tokens",
                     "num_preemptions", "resumable", "skip_reading_prefix_cache"):
            self.assertIn(f"self.{name}", body)
        self.assertIn("RUNNING", source(REQUEST, "RequestStatus"))
        self.assertEqual(arguments("v1/core/kv_cache_utils.py", "generate_block_hash_extra_keys"),
                         ["request", "start_token_idx", "end_token_idx", "start_mm_idx"])


class ConnectorTest(unittest.TestCase):
    def ours(self):
        return {name: arguments("connector.py", f"KvcakeConnector.{name}", HERE)
                for name in methods("connector.py", "KvcakeConnector", HERE)}

    def test_it_implements_what_vllm_asks_for(self):
        for name in ("KVConnectorBase_V1", "SupportsHMA"):
            for method, node in methods(BASE, name).items():
                if any("abstractmethod" in ast.unparse(d) for d in node.decorator_list):
                    self.assertIn(method, self.ours())

    def test_calls_have_vllms_arguments(self):
        known = 0
        for name, ours in self.ours().items():
            for theirs in ("KVConnectorBase_V1", "SupportsHMA"):
                if not name.startswith("_") and name in methods(BASE, theirs):
                    known += 1
                    self.assertEqual(ours, arguments(BASE, f"{theirs}.{name}"), name)
        self.assertGreater(known, 12)

    def test_a_steps_order_in_the_worker(self):
        body = source(RUNNER, "KVConnectorModelRunnerMixin._get_kv_connector_output")
        calls = ["bind_connector_metadata(", "start_load_kv(", "yield", "wait_for_save()",
                 "get_block_ids_with_load_errors()", "build_connector_worker_meta()"]
        places = [body.index(call) for call in calls]
        self.assertEqual(places, sorted(places))

    def test_reports_come_back(self):
        self.assertLessEqual({"kv_connector_worker_meta", "kv_connector_stats",
                              "invalid_block_ids"}, fields("v1/outputs.py", "KVConnectorOutput"))

    def test_metrics(self):
        self.assertEqual(arguments(METRICS, "KVConnectorPromMetrics.observe"),
                         ["self", "transfer_stats_data", "engine_idx"])
        body = source(METRICS, "KVConnectorPromMetrics.__init__")
        for name in ("_counter_cls", "_histogram_cls", "per_engine_labelvalues"):
            self.assertIn(name, body)

    def test_where_it_says_which_cpus_compute(self):
        body = source("utils/ompmultiprocessing.py", "OMPProcessManager.configure_omp_envs")
        for setting in ('"OMP_PLACES"] = f"{{{cpu_list_str}}}"', '"OMP_PROC_BIND"] = "true"',
                        '"GOMP_CPU_AFFINITY"] = cpu_list_str', "proclist=[{cpu_list_str}]"):
            self.assertIn(setting, body)

    def test_all_weights_that_are_loaded_anew_pass_there(self):
        self.assertIn("self.model_runner.reload_weights(",
                      source("v1/worker/gpu_worker.py", "Worker.reload_weights"))
        self.assertIn("reload_weights", methods("v1/worker/gpu_model_runner.py", "GPUModelRunner"))
        for file, name in (("cpu_model_runner.py", "CPUModelRunner"),
                           ("cpu_worker.py", "CPUWorker")):
            self.assertNotIn("reload_weights", methods(f"v1/worker/{file}", name))

    def test_adapters_that_are_loaded_ahead_pass_there(self):
        self.assertEqual(arguments("v1/engine/core.py", "EngineCore.add_lora"),
                         ["self", "lora_request"])
        self.assertNotIn("add_lora", methods("v1/engine/core.py", "EngineCoreProc"))
        self.assertLessEqual({"lora_int_id", "lora_path", "load_inplace", "is_3d_lora_weight"},
                             fields("lora/request.py", "LoRARequest"))

    def test_how_images_are_processed(self):
        self.assertIn("multimodal_config", fields("config/model.py", "ModelConfig"))
        self.assertLessEqual(
            {"mm_processor_kwargs", "media_io_kwargs", "video_pruning_rate", "video_pruning_method",
             "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path", "mm_device_do_normalize"},
            fields("config/multimodal.py", "MultiModalConfig"))
        self.assertIn("self._model_info.supports_mm_device_do_normalize",
                      source("config/model.py", "ModelConfig"))

    def test_how_weights_are_quantized(self):
        self.assertLessEqual({"quantization", "quantization_config"},
                             fields("config/model.py", "ModelConfig"))

    def test_what_is_made_of_adapters(self):
        self.assertLessEqual({"target_modules", "lora_dtype"},
                             fields("config/lora.py", "LoRAConfig"))
        self.assertIn("lora_config", fields("config/vllm.py", "VllmConfig"))

    def test_options_that_are_refused_exist(self):
        for file, owner, name in (
                ("config/kv_transfer.py", "KVTransferConfig", "kv_load_failure_policy"),
                ("config/parallel.py", "ParallelConfig", "pipeline_parallel_size"),
                ("config/cache.py", "CacheConfig", "cache_dtype"),
                ("v1/kv_cache_interface.py", "FullAttentionSpec", "non_causal")):
            self.assertIn(name, fields(file, owner))

    def test_models_that_are_refused_say_so(self):
        self.assertLessEqual({"is_mm_prefix_lm", "is_chunked_prefill_supported",
                              "is_prefix_caching_supported"},
                             set(methods("config/model.py", "ModelConfig")))


@unittest.skipUnless(INSTALLED, "what is only read is not imported")
class InstalledTest(unittest.TestCase):
    def test_tokens_that_are_jumped_over_are_counted(self):
        from vllm.v1.metrics.stats import PrefillStats
        stats = PrefillStats()
        stats.set(num_prompt_tokens=10, num_local_cached_tokens=1, num_external_cached_tokens=2)
        self.assertEqual((stats.num_cached_tokens, stats.num_computed_tokens), (3, 7))

    def test_the_plugin_is_a_subclass_of_what_vllm_has(self):
        import kvcake.vllm
        from vllm.distributed.kv_transfer.kv_connector.v1 import base
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        self.assertFalse(kvcake.vllm.KvcakeConnector.__abstractmethods__)
        self.assertTrue(base.supports_hma(kvcake.vllm.KvcakeConnector))
        self.assertTrue(issubclass(kvcake.vllm.KvcakeScheduler, Scheduler))
        self.assertTrue(issubclass(kvcake.vllm.KvcakeAsyncScheduler, AsyncScheduler))


if __name__ == "__main__":
    unittest.main()
