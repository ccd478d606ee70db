"""Parts of kvcake.vllm that want vLLM's or torch's objects, but no engine. Runs in a virtual
environment with vLLM and kvcake."""
import contextlib
import ctypes
import os
import pathlib
import tempfile
import threading
import types
import unittest
import unittest.mock

os.environ.setdefault("KVCAKE_VLLM_ANY", "1")

import msgspec  # noqa: E402
import torch  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402

from kvcake.cache import Chunk  # noqa: E402
from kvcake.vllm import config, cpus, identity  # noqa: E402
from kvcake.vllm.blocks import TorchBlocks, block_view  # noqa: E402
from kvcake.vllm.connector import (  # noqa: E402
    KvcakeConnector, before_adapters, before_reloads, check_scheduler, check_supported, logger)
from kvcake.vllm.messages import Progress, Report  # noqa: E402
from kvcake.vllm.metrics import KvcakePromMetrics, KvcakeStats  # noqa: E402
from kvcake.vllm.planner import Planner  # noqa: E402

CHUNK = 4


def request(**fields):
    values = {"request_id": "r", "prompt_token_ids": list(range(14)), "num_prompt_tokens": 14,
              "_all_token_ids": list(range(14)), "lora_request": None, "cache_salt": None,
              "mm_features": [], "prompt_embeds": None, "resumable": False,
              "skip_reading_prefix_cache": False, **fields}
    return types.SimpleNamespace(**values)


def image(identifier, offset, length):
    position = types.SimpleNamespace(offset=offset, length=length)
    return types.SimpleNamespace(identifier=identifier, mm_position=position, modality="image")


class CpusTest(unittest.TestCase):
    def test_what_vllm_says_is_understood(self):
        for cpus_of, environment in (
                ({0, 1, 2}, {"OMP_PLACES": "{0,1,2}", "OMP_PROC_BIND": "true"}),
                ({5}, {"OMP_PLACES": "{5}", "OMP_PROC_BIND": "TRUE"}),
                ({0, 1, 2}, {"GOMP_CPU_AFFINITY": "0 1 2"}),
                ({4, 5, 7}, {"GOMP_CPU_AFFINITY": "4-5 7"}),
                ({3}, {"KMP_AFFINITY": "granularity=fine,explicit,proclist=[3]"}),
                (set(), {}),
                (set(), {"OMP_PLACES": "{0,1,2}"}),
                (set(), {"OMP_PLACES": "{0:4}", "OMP_PROC_BIND": "true"}),
                (set(), {"OMP_PLACES": "cores", "OMP_PROC_BIND": "true"}),
                (set(), {"KMP_AFFINITY": "granularity=fine,compact,1,0"})):
            self.assertEqual(cpus.computing(environment), cpus_of, environment)

    def test_threads_get_what_is_left(self):
        self.assertEqual(cpus.beside({0, 1}, {0}, {0, 1, 2, 3}), {2, 3})
        self.assertEqual(cpus.beside({0, 1}, {0}, {0, 1}), {0, 1}, "or share all")
        self.assertEqual(cpus.beside({0, 1}, {0, 2}, {0, 1}), {2}, "the parent has less")
        self.assertEqual(cpus.beside(set(), {0}, {0, 1}), {0}, "what others bound is left alone")

    def test_threads_start_there(self):
        mine = os.sched_getaffinity(0)
        if len(mine) < 2:
            self.skipTest("one CPU")
        bound = min(mine)
        with unittest.mock.patch.dict(os.environ, GOMP_CPU_AFFINITY=str(bound)):
            os.sched_setaffinity(0, {bound})
            self.addCleanup(os.sched_setaffinity, 0, mine)
            there = cpus.run_beside_computing(lambda: os.sched_getaffinity(0))
            self.assertEqual(os.sched_getaffinity(0), {bound}, "the caller stays")
        self.assertEqual(there, os.sched_getaffinity(os.getppid()) - {bound})
        with self.assertRaises(ZeroDivisionError):
            cpus.run_beside_computing(lambda: 1 // 0)

    def test_a_thread_is_started_where_it_has_other_cpus(self):
        asked, caller = [], threading.get_ident()

        def affinity(pid):
            if pid != 0 and parents is None:
                raise ProcessLookupError
            return {0} if pid == 0 else parents

        for bound, parents, told in (("", {0, 1}, None), ("0", {0, 1}, {1}), ("0", None, None)):
            with unittest.mock.patch.dict(os.environ, GOMP_CPU_AFFINITY=bound), \
                    unittest.mock.patch.multiple(
                        os, sched_getaffinity=affinity,
                        sched_setaffinity=lambda pid, cpus: asked.append(cpus)):
                there = cpus.run_beside_computing(threading.get_ident)
            self.assertEqual((there == caller, asked), (told is None, [told] if told else []))
            asked.clear()

    def test_cpus_that_are_there_no_more_keep_nothing_from_starting(self):
        refuse = unittest.mock.Mock(side_effect=OSError)
        with unittest.mock.patch.dict(os.environ, GOMP_CPU_AFFINITY="0"), \
                unittest.mock.patch.multiple(
                    os, sched_getaffinity=lambda pid: {0, 1} if pid else {0},
                    sched_setaffinity=refuse):
            self.assertEqual(cpus.run_beside_computing(lambda: 7), 7)
        refuse.assert_called_once_with(0, {1})


class KeyTest(unittest.TestCase):
    def setUp(self):
        self.connector = object.__new__(KvcakeConnector)
        self.connector._chunk = CHUNK
        self.connector._adapters, self.connector._adapter_options = identity.Adapters(), []
        self.connector._refused = set()
        self.connector.planner = Planner(chunk_tokens=CHUNK, block_tokens=CHUNK)
        self.connector.cached_tokens_of = lambda request: 0

    def key(self, **fields):
        key = self.connector._key(request(**fields))
        return key.salt, key.extras

    def test_a_plain_prompt_has_nothing_but_tokens(self):
        self.assertEqual(self.key(), (b"", {}))

    def test_salts(self):
        self.assertNotEqual(self.key(cache_salt="a"), self.key(cache_salt="b"))
        self.assertNotEqual(self.key(cache_salt="a"), self.key())
        # In the root, and, as vLLM has it, in the first chunk: one would do.
        for part in (0, 1):
            self.assertNotEqual(self.key(cache_salt="a")[part], self.key(cache_salt="b")[part])

    def test_images_are_in_the_chunks_that_they_are_in(self):
        one = self.key(mm_features=[image("x", 5, 4)])[1]
        self.assertEqual(set(one), {1, 2})
        self.assertNotEqual(one, self.key(mm_features=[image("y", 5, 4)])[1])
        self.assertNotEqual(one, self.key(mm_features=[image("x", 6, 4)])[1])
        # The last chunk of all is full when the answer has filled it.
        self.assertEqual(set(self.key(mm_features=[image("x", 11, 2)])[1]), {2, 3})

    def test_an_image_may_be_called_lora(self):
        self.assertEqual(set(self.key(mm_features=[image("lora", 5, 4)])[1]), {1, 2})
        with self.adapter() as (lora, _):
            self.assertEqual(set(self.key(lora_request=lora,
                                          mm_features=[image("lora", 5, 4)])[1]), {1, 2})

    def test_how_long_images_are_is_in_each_of_their_chunks(self):
        short, long = (self.key(mm_features=[image("x", 2, length)])[1] for length in (8, 9))
        self.assertEqual((set(short), set(long)), ({0, 1, 2}, {0, 1, 2}))
        for chunk in short:  # those that it fills have no other token
            self.assertNotEqual(short[chunk], long[chunk])

    def test_what_has_no_image_keeps_its_extras(self):
        salted = request(cache_salt="a")
        vllms, _ = kv_cache_utils.generate_block_hash_extra_keys(salted, 0, CHUNK, 0)
        of_salt = identity.encode(list(vllms))
        self.assertEqual(self.connector._key(salted).extras, {0: of_salt})
        elsewhere = self.key(cache_salt="a", mm_features=[image("x", 12, 2)])[1]
        self.assertEqual((set(elsewhere), elsewhere[0]), ({0, 3}, of_salt))

    @contextlib.contextmanager
    def adapter(self):
        """One in a folder of its own, and that."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "adapter_model.bin").write_bytes(b"1")
            (folder / "adapter_config.json").write_text("{}")
            yield types.SimpleNamespace(lora_int_id=1, lora_name="n", lora_path=name,
                                        tensorizer_config_dict=None), folder

    def test_adapters(self):
        with self.adapter() as (lora, folder):
            one = self.key(lora_request=lora)
            self.assertNotEqual(one, self.key())
            self.assertEqual(one[1], {}, "its name and path are no part of the key")
            (folder / "adapter_model.bin").write_bytes(b"22")
            with self.assertRaises(identity.Unkeyed):
                self.key(lora_request=lora)
            lora.lora_int_id = 2
            self.assertNotEqual(self.key(lora_request=lora), one)
            lora.load_inplace = True
            with self.assertRaisesRegex(identity.Unkeyed, "load_inplace"):
                self.key(lora_request=lora)

    def test_an_adapter_that_changes_before_it_is_loaded_has_no_key(self):
        with self.adapter() as (lora, folder):
            changes, other = request(lora_request=lora), request(request_id="other")

            def ask(one):
                return self.connector.get_num_new_matched_tokens(one, 0)

            for one in (changes, other):
                self.connector.on_new_request(one)
                self.assertEqual(ask(one), (None, False))
                self.connector.planner.hear(Report({one.request_id: Progress(
                    self.connector.planner._epochs, front=2, until=3, chunks=3)}))
                self.assertEqual(ask(one), (2 * CHUNK, False))
            (folder / "adapter_model.bin").write_bytes(b"22")
            for logs in (self.assertLogs, self.assertNoLogs):
                with logs("vllm.kvcake", "WARNING"):
                    self.assertEqual(ask(changes), (0, False))
            self.assertEqual(ask(other), (2 * CHUNK, False))
            begun = self.connector.planner.step({}, lambda name: [], 0).begins
            self.assertEqual([begin.request for begin in begun], ["other"])

    def test_an_adapter_is_known_before_vllm_loads_it(self):
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.core import EngineCore, EngineCoreProc
        calls, lora = unittest.mock.Mock(), LoRARequest("n", 1, "/nowhere")
        core = object.__new__(EngineCoreProc)
        core.model_executor = calls
        load = EngineCore.add_lora
        with unittest.mock.patch.object(EngineCore, "add_lora", load):
            before_adapters(calls.tell)
            sent = msgspec.to_builtins(lora)
            (received,) = core._convert_msgspec_args(core.add_lora, [sent])
            core.add_lora(received)
        self.assertIs(EngineCore.add_lora, load)
        self.assertEqual(calls.mock_calls, [unittest.mock.call.tell(lora),
                                            unittest.mock.call.add_lora(lora)])

    def test_what_vllm_makes_of_adapters_counts(self):
        lora = types.SimpleNamespace(lora_int_id=1, lora_name="n", lora_path="",
                                     tensorizer_config_dict=None)
        self.connector._adapters = unittest.mock.Mock(digest=lambda number, path: "0")
        plain, alone, made = self.key(lora_request=lora), self.key(), set()
        for options in ({"target_modules": []}, {"target_modules": ["o_proj"]},
                        {"target_modules": ["o_proj", "qkv_proj"]}, {"lora_dtype": torch.float16},
                        {"enable_moe_shared_loras": True}, {"enable_mixed_moe_lora_format": True}):
            self.connector._adapter_options = identity.adapter_options(
                types.SimpleNamespace(**options), torch.bfloat16)
            made.add(self.key(lora_request=lora)[0])
            self.assertEqual(self.key(), alone, "they say nothing of others")
        self.assertEqual(len(made - {plain[0], alone[0]}), 6)
        lora.is_3d_lora_weight = True  # as a request says of its experts' layout
        self.assertNotIn(self.key(lora_request=lora)[0], made)

    def test_adapters_keep_their_keys_where_vllm_is_told_nothing(self):
        from vllm.config.lora import LoRAConfig
        config = LoRAConfig()
        for lora_dtype in ("auto", torch.bfloat16):  # before and after vLLM has seen the model
            config.lora_dtype = lora_dtype
            self.assertEqual(identity.adapter_options(config, torch.bfloat16), [])
        self.assertEqual(identity.adapter_options(None, torch.bfloat16), [])
        config.target_modules = ["q", "o", "q"]
        self.assertEqual(identity.adapter_options(config, torch.bfloat16)[0], ["o", "q"])

    def test_what_has_no_key_is_neither_restored_nor_kept(self):
        nowhere = types.SimpleNamespace(lora_int_id=1, lora_name="n", lora_path="/nowhere",
                                        tensorizer_config_dict=None)
        with self.adapter() as (lora, _), self.assertLogs("vllm.kvcake", "WARNING") as logged:
            lora.tensorizer_config_dict = {"tensorizer_dir": "/elsewhere"}
            for i, fields in enumerate(2 * ({"prompt_embeds": torch.zeros(14, 2)},
                                            {"prompt_token_ids": None}, {"resumable": True},
                                            {"lora_request": nowhere}, {"lora_request": lora})):
                self.connector.on_new_request(request(request_id=f"r{i}", **fields))
        self.assertEqual(len(logged.output), 4, "each reason once")
        self.connector.on_new_request(request(request_id="this alone"))
        step = self.connector.planner.step({}, lambda name: [], 0)
        self.assertEqual([begin.request for begin in step.begins], ["this alone"])

    def test_prompt_log_probabilities_are_computed(self):
        self.connector.on_new_request(request(skip_reading_prefix_cache=True))
        step = self.connector.planner.step({}, lambda name: [], 0)
        self.assertEqual([begin.restore_chunks for begin in step.begins], [0])

    def test_what_the_prefix_cache_has_is_asked_for_what_may_read_it(self):
        self.connector.cached_tokens_of = lambda request: 2 * CHUNK
        for skips in (False, True):
            self.connector.on_new_request(request(request_id=f"{skips}",
                                                  skip_reading_prefix_cache=skips))
        step = self.connector.planner.step({}, lambda name: [], 0)
        self.assertEqual([(begin.restore_chunks, begin.cached_chunks) for begin in step.begins],
                         [(3, 2), (0, 0)])


class WeightsTest(unittest.TestCase):
    """What is stored is of the weights that vLLM started with."""

    def setUp(self):
        self.connector = object.__new__(KvcakeConnector)
        self.connector._retired = False

    def test_workers_retire_before_weights_are_loaded_anew(self):
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        calls = self.connector._worker = unittest.mock.Mock()
        runner = object.__new__(CPUModelRunner)
        with unittest.mock.patch.object(GPUModelRunner, "reload_weights", calls.reload):
            before_reloads(self.connector._retire_worker)
            with self.assertLogs("vllm.kvcake", "WARNING") as logged:
                for path in ("there", "elsewhere"):
                    runner.reload_weights(weights_path=path)
            self.connector._worker = None  # it has shut down
            runner.reload_weights()
        self.assertEqual(len(logged.output), 1)
        self.assertEqual(calls.mock_calls, [
            unittest.mock.call.retire(),
            unittest.mock.call.reload(runner, weights_path="there"),
            unittest.mock.call.reload(runner, weights_path="elsewhere"),
            unittest.mock.call.reload(runner)])

    def test_a_reset_retires_the_scheduler(self):
        self.connector.planner = unittest.mock.Mock()
        with self.assertLogs("vllm.kvcake", "WARNING") as logged:
            self.assertIs(self.connector.reset_cache(), True)
            self.assertIs(self.connector.reset_cache(), True)
        self.connector.planner.retire.assert_called_once_with()
        self.assertEqual(len(logged.output), 1)


class SupportTest(unittest.TestCase):
    def configs(self, **changes):
        spec = type("FullAttentionSpec", (), {"sliding_window": None,
                                              "attention_chunk_size": None})()
        space = types.SimpleNamespace
        vllm = space(
            parallel_config=space(pipeline_parallel_size=1, decode_context_parallel_size=1,
                                  prefill_context_parallel_size=1),
            cache_config=space(calculate_kv_scales=False), speculative_config=None,
            model_config=space(enable_sleep_mode=False), weight_transfer_config=None,
            kv_transfer_config=space(kv_load_failure_policy="recompute", kv_role="kv_both"))
        groups = [space(kv_cache_spec=spec)]
        for path, value in changes.items():
            if path == "groups":
                groups = value
                continue
            *parents, name = path.split("__")
            at = vllm
            for parent in parents:
                at = getattr(at, parent)
            setattr(at, name, value)
        return vllm, space(kv_cache_groups=groups)

    def test_what_cannot_be_is_named(self):
        check_supported(*self.configs())
        window = type("SlidingWindowSpec", (), {})()
        both_ways, windows, parts, plain = (
            types.SimpleNamespace(kv_cache_spec=type("FullAttentionSpec", (), what)())
            for what in ({"non_causal": True}, {"sliding_window": 4}, {"attention_chunk_size": 4},
                         {}))
        for change, named in (
                ({"parallel_config__pipeline_parallel_size": 2}, "pipeline"),
                ({"parallel_config__decode_context_parallel_size": 2}, "context"),
                ({"parallel_config__prefill_context_parallel_size": 2}, "context"),
                ({"speculative_config": object()}, "speculative"),
                ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
                ({"model_config__enable_sleep_mode": True}, "weights"),
                ({"weight_transfer_config": object()}, "weights"),
                ({"model_config__is_mm_prefix_lm": True}, "images"),
                ({"model_config__is_chunked_prefill_supported": False}, "pooling"),
                ({"model_config__is_prefix_caching_supported": False}, "pooling"),
                ({"cache_config__calculate_kv_scales": True}, "scales"),
                ({"kv_transfer_config__kv_load_failure_policy": "fail"}, "recompute"),
                ({"kv_transfer_config__kv_role": "kv_consumer"}, "kv_both"),
                ({"groups": [types.SimpleNamespace(kv_cache_spec=window)]}, "full attention"),
                ({"groups": [both_ways]}, "causal"), ({"groups": [windows]}, "full attention"),
                ({"groups": [parts]}, "full attention"),
                ({"groups": [plain, plain]}, "full attention"),
                ({"groups": []}, "full attention")):
            with self.assertRaisesRegex(ValueError, named):
                check_supported(*self.configs(**change))


class SchedulerTest(unittest.TestCase):
    def check(self, scheduler, asynchronous):
        check_scheduler(types.SimpleNamespace(get_scheduler_cls=lambda: scheduler,
                                              async_scheduling=asynchronous))

    def test_it_is_the_plugins_and_of_the_kind_that_vllm_wants(self):
        from kvcake.vllm.scheduler import KvcakeAsyncScheduler, KvcakeScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        self.check(KvcakeScheduler, False)
        self.check(KvcakeAsyncScheduler, True)
        with self.assertRaisesRegex(ValueError, "--scheduler-cls kvcake.vllm.KvcakeScheduler"):
            self.check(Scheduler, False)
        with self.assertRaisesRegex(ValueError, "KvcakeAsyncScheduler, or with --no-async"):
            self.check(KvcakeScheduler, True)


class MemoryTest(unittest.TestCase):
    def test_memory_that_holds_no_prompt_is_told_of(self):
        connector = object.__new__(KvcakeConnector)
        connector._chunk, connector.config = 128, config.Config(memory_bytes=1 << 30)
        connector._vllm_config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=16384))
        with self.assertNoLogs(logger):
            connector._warn_of_little_memory(128)
        with self.assertLogs(logger, "WARNING") as logged:
            connector._warn_of_little_memory(64)
        self.assertIn("memory_bytes holds 8192 tokens, and a prompt may have 16384",
                      logged.output[0])
        self.assertIn(f"{2 << 30} bytes would hold one", logged.output[0])


class BlocksTest(unittest.TestCase):
    BLOCKS = 11

    def round_trip(self, shape, a_chunk):
        """Chunks of one cache are the same in another one's blocks, and nothing else is written."""
        caches = [{f"layer {i}": torch.randn(shape).bfloat16() for i in range(3)}
                  for _ in range(2)]
        here, there = (TorchBlocks(c, self.BLOCKS, a_chunk) for c in caches)
        before = [view.clone() for view in there.views]
        source, target = list(range(1, 1 + 2 * a_chunk)), list(range(10, 10 - 2 * a_chunk, -1))
        target[1] = -1
        chunks, kept = [], []
        of_chunk = [source[i * a_chunk:(i + 1) * a_chunk] for i in range(2)]
        for address, stride in here.read(of_chunk):
            padded = stride + 128  # as pages of kvcake have slabs
            memory = ctypes.create_string_buffer(here.layers * padded)
            for layer in range(here.layers):
                ctypes.memmove(ctypes.addressof(memory) + layer * padded,
                               address + layer * stride, stride)
            kept.append(memory)
            chunks.append(Chunk(0, ctypes.addressof(memory), padded))
        there.write(chunks, target)
        for layer, view in enumerate(there.views):
            for block in range(self.BLOCKS):
                wanted = (here.views[layer][source[target.index(block)]] if block in target
                          else before[layer][block])
                self.assertTrue(torch.equal(view[block], wanted))
        return here

    def test_blocks_travel_whole(self):
        cpu = self.round_trip((self.BLOCKS, 2, 4, 6), 1)
        split = self.round_trip((2, self.BLOCKS, 4, 2, 3), 2)
        self.assertEqual(cpu.slab_bytes, 2 * 4 * 6 * 2)
        self.assertEqual(split.slab_bytes, 2 * 2 * 4 * 2 * 3 * 2)
        self.assertNotEqual(cpu.layout(), split.layout())

    def test_a_layout_says_what_bytes_mean(self):
        plain = torch.zeros(self.BLOCKS, 2, 4, 6)
        turned = torch.zeros(self.BLOCKS, 4, 2, 6).bfloat16().transpose(1, 2)
        self.assertEqual(TorchBlocks({"a": plain}, self.BLOCKS, 1).layout(), {
            "shape": [2, 4, 6], "dtype": "torch.float32", "layers": 1, "order": [0, 1, 2],
            "blocks_a_chunk": 1})
        self.assertEqual(TorchBlocks({"a": turned, "b": turned}, self.BLOCKS, 3).layout(), {
            "shape": [2, 4, 6], "dtype": "torch.bfloat16", "layers": 2, "order": [1, 0, 2],
            "blocks_a_chunk": 3})

    def test_blocks_in_one_piece_are_read_where_they_lie(self):
        whole, apart = torch.randn(self.BLOCKS, 2, 4), torch.randn(self.BLOCKS, 3, 4)[:, :2]
        for caches in ((whole, whole + 1), (apart, apart + 1), (whole, apart)):
            blocks = TorchBlocks(dict(enumerate(caches)), self.BLOCKS, 3)
            (address, stride), = blocks.read([[5, 0, 7]])
            lie = [ctypes.string_at(part, stride // 3) for part in blocks.addresses([5, 0, 7])]
            self.assertEqual(b"".join(lie), ctypes.string_at(address, 2 * stride))
        split = torch.randn(2, self.BLOCKS, 4)
        self.assertIsNone(TorchBlocks({"a": split}, self.BLOCKS, 1).addresses([1]))

    def test_blocks_that_a_kernel_has_in_parts_are_whole(self):
        self.round_trip((3 * self.BLOCKS, 2, 4, 6), 2)
        parts = torch.arange(2 * self.BLOCKS * self.BLOCKS).view(2 * self.BLOCKS, self.BLOCKS)
        view = block_view(parts, self.BLOCKS)  # where another dimension is as long
        self.assertEqual(view.shape, (self.BLOCKS, 2, self.BLOCKS))
        self.assertTrue(torch.equal(view[3], parts[6:8]))

    def test_what_is_not_clear_is_refused(self):
        with self.assertRaisesRegex(ValueError, "not clear"):
            block_view(torch.zeros(2, self.BLOCKS, self.BLOCKS), self.BLOCKS)
        with self.assertRaisesRegex(ValueError, "differ"):
            TorchBlocks({"a": torch.zeros(self.BLOCKS, 2), "b": torch.zeros(self.BLOCKS, 3)},
                        self.BLOCKS, 1)
        with self.assertRaisesRegex(ValueError, "differ"):
            TorchBlocks({"a": torch.zeros(self.BLOCKS, 2),
                         "b": torch.zeros(self.BLOCKS, 2).bfloat16()}, self.BLOCKS, 1)


class MetricsTest(unittest.TestCase):
    def test_counts_add_up_and_are_observed(self):
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
        registry = CollectorRegistry()
        kinds = {kind: (lambda kind: lambda **fields: kind(registry=registry, **fields))(kind)
                 for kind in (Counter, Gauge, Histogram)}
        vllm = types.SimpleNamespace(kv_transfer_config=None)
        metrics = KvcakePromMetrics(vllm, kinds, ["engine"], {0: ["0"], 1: ["1"]})
        stats = KvcakeStats(data={"tokens_loaded": 128, "meeting_point": [0.25]})
        stats = stats.aggregate(KvcakeStats(data={"tokens_loaded": 256, "chunks_kept": 1,
                                                  "meeting_point": [0.75]}))
        self.assertEqual(stats.reduce(), {"tokens_loaded": 384, "chunks_kept": 1,
                                          "meeting_point": 0.5})
        self.assertFalse(stats.is_empty())
        metrics.observe(stats.data, 0)
        text = generate_latest(registry).decode()
        self.assertIn('vllm:kvcake_tokens_loaded_total{engine="0"} 384.0', text)
        self.assertIn('vllm:kvcake_meeting_point_count{engine="0"} 2.0', text)
        self.assertIn('vllm:kvcake_meeting_point_bucket{engine="0",le="0.3"} 1.0', text)
        stats.reset()
        self.assertTrue(stats.is_empty())
        metrics.observe({"chunks_dropped": 5, "meeting_point": [0.5]}, 1)
        text = generate_latest(registry).decode()
        self.assertIn('vllm:kvcake_chunks_dropped_total{engine="1"} 5.0', text)
        self.assertIn('vllm:kvcake_chunks_dropped_total{engine="0"} 0.0', text)
        self.assertIn('vllm:kvcake_meeting_point_count{engine="0"} 2.0', text)
        self.assertIn('vllm:kvcake_meeting_point_count{engine="1"} 1.0', text)


if __name__ == "__main__":
    unittest.main()
