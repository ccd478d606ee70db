"""What kvcake.vllm does where copies are made late, as on a GPU, which it has never seen: against a
played device (fake_cuda.py), vLLM's own AsyncScheduler, and a model of which each block says whose
it is. Runs in a virtual environment with vLLM and kvcake.
"""
import collections
import pathlib
import random
import tempfile
import types
import unittest
import unittest.mock

import vllm_fixture
import torch
from cuda_fixture import LAYERS, SHAPE, CudaTest, truth
from kvcake.vllm import planner as planner_module
from kvcake.vllm.connector import KvcakeConnector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvcake.vllm.scheduler import KvcakeAsyncScheduler

BLOCK_TOKENS = 16


class Model:
    """vLLM's first model runner as far as blocks go: it knows requests by what the scheduler's
    outputs say of them, and computes late."""

    def __init__(self, card, memory):
        self.card, self.memory, self.wrong = card, memory, []
        self.tokens, self.blocks, self.prompt = {}, {}, {}
        self.computed = 0

    def run(self, output):
        for new in output.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.prompt[new.req_id] = len(new.prompt_token_ids)
            self.blocks[new.req_id] = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for i, name in enumerate(cached.req_ids):
            more = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.blocks[name] = list(more[0])
            elif more is not None:
                self.blocks[name] += more[0]
            starts[name] = cached.num_computed_tokens[i]
        sampled = {}
        for name, count in output.num_scheduled_tokens.items():
            start, end = starts[name], starts[name] + count
            assert end <= len(self.tokens[name]), "a token is computed that was never sampled"
            self.computed += count
            tokens, blocks = self.tokens[name][:end], list(self.blocks[name])
            self.card.current.queue.append(
                lambda n=name, t=tokens, b=blocks, s=start: self._compute(n, t, b, s))
            sampled[name] = []
            if end == len(self.tokens[name]):
                sampled[name] = [sum(self.tokens[name]) % 97]
                self.tokens[name] = self.tokens[name] + sampled[name]
        return sampled

    def _compute(self, name, tokens, blocks, start):
        layers = [cache.as_subclass(torch.Tensor) for cache in self.memory.values()]
        right = True  # on top of what is wrong all is
        for i in range(len(tokens) // BLOCK_TOKENS):
            end = (i + 1) * BLOCK_TOKENS
            for layer, cache in enumerate(layers):
                wanted = truth(tokens[:end], layer)
                if end <= start:
                    if not torch.equal(cache[blocks[i]], wanted):
                        self.wrong.append((name, i, layer))
                        right = False
                else:
                    cache[blocks[i]] = wanted if right else -1
        if len(tokens) % BLOCK_TOKENS:
            for cache in layers:
                cache[blocks[len(tokens) // BLOCK_TOKENS]] = 0


class Engine:
    """vLLM's engine core with steps that are scheduled while others compute."""

    def __init__(self, test, store, *, policy, blocks=200, ahead=2, seed=0, slice_max=0,
                 order="fcfs"):
        self.card, self.rng, self.ahead = test.card, random.Random(seed), ahead
        options = {**vllm_fixture.transfer_config(store, policy=policy, experimental_cuda=True,
                                                  look_s=5.0, memory_bytes=64 << 20)}
        config = EngineArgs(
            model=str(vllm_fixture.MODEL), dtype="bfloat16", max_model_len=2048, block_size=32,
            max_num_batched_tokens=512, enforce_eager=True, scheduling_policy=order,
            scheduler_cls="kvcake.vllm.KvcakeAsyncScheduler",
            kv_transfer_config=KVTransferConfig(**options)).create_engine_config()
        config.scheduler_config.async_scheduling = True  # which vLLM turns off on CPUs
        config.scheduler_config.long_prefill_token_threshold = slice_max
        config.cache_config.block_size = BLOCK_TOKENS
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=3,
                                 dtype=torch.bfloat16)
        kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[],
                           kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.scheduler = KvcakeAsyncScheduler(
            config, kv, StructuredOutputManager(config), BLOCK_TOKENS, log_stats=True)
        self.worker = KvcakeConnector(config, KVConnectorRole.WORKER, kv)
        memory = test.caches(blocks)
        self.worker.register_kv_caches(memory)
        self.model = Model(test.card, memory)
        self.outputs = collections.deque()
        self.loaded = self.jumps = self.finished = self.preempted = self.failed = 0

    def close(self):
        self.card.finish()
        self.worker.shutdown()
        self.scheduler.shutdown()

    def submit(self, name, tokens, answer=6, priority=0):
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        request = Request(name, list(tokens), params, None, block_hasher=self._hasher,
                          priority=priority)
        self.scheduler.add_request(request)
        return request

    def abort(self, name):
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def run_all(self):
        steps = 0
        while self.scheduler.has_unfinished_requests() or self.outputs:
            self.step()
            steps += 1
            assert steps < 5000, "nothing goes on"
        return self

    def step(self):
        if self.scheduler.has_unfinished_requests():
            output = self.scheduler.schedule()
            self.outputs.append((output, self._execute(output)))
            if output.total_num_scheduled_tokens > 0 and len(self.outputs) < self.ahead:
                return
        if self.outputs:
            self.step_back()

    def step_back(self):
        """The scheduler hears of the step that has waited longest."""
        output, made = self.outputs.popleft()
        self.preempted += len(output.preempted_req_ids or ())
        for answers in self.scheduler.update_from_output(output, made).values():
            self.finished += sum(one.finish_reason is not None for one in answers.outputs)

    def _execute(self, output: SchedulerOutput):
        meta = output.kv_connector_metadata
        self.jumps += len(meta.jumps)
        self.worker.bind_connector_metadata(meta)
        if output.has_sync_kv_loads:
            self.worker.start_load_kv(None)
        self.card.advance(self.rng, self.rng.randrange(20))
        sampled = self.model.run(output)
        self.card.advance(self.rng, self.rng.randrange(20))
        if not output.has_sync_kv_loads:
            self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        connector = KVConnectorOutput(
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta())
        self.failed += bool(connector.invalid_block_ids)
        stats = self.worker.get_kv_connector_stats()
        self.loaded += (stats.data if stats else {}).get("tokens_loaded", 0)
        self.worker.clear_connector_metadata()
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)},
                                 [sampled[name] for name in names],
                                 kv_connector_output=connector)


class AsyncTest(CudaTest):
    """Every block that a step computes on holds what it should when the device comes to it."""

    def setUp(self):
        super().setUp()
        self._dir = tempfile.TemporaryDirectory()
        self.addCleanup(self._dir.cleanup)
        self.store = pathlib.Path(self._dir.name)
        self.documents = [[d * 1000 + i % 89 for i in range(900)] for d in range(3)]

    def engine(self, **options):
        engine = Engine(self, self.store, **options)
        self.addCleanup(engine.close)
        return engine

    def check(self, engine, finished):
        self.card.finish()
        self.assertEqual(engine.model.wrong, [])
        self.assertEqual(engine.finished, finished)
        self.assertEqual(self.card.blocking_copies, 0)

    def fill(self, documents=None):
        engine = Engine(self, self.store, policy="compute")
        for i, document in enumerate(documents or self.documents):
            engine.submit(f"fill {i}", document)
        engine.run_all()
        self.check(engine, i + 1)
        engine.close()

    def test_what_was_kept_is_loaded_and_computed_on(self):
        self.fill()
        engine = self.engine(policy="load")
        engine.submit("r", self.documents[0])
        engine.run_all()
        self.check(engine, 1)
        self.assertEqual((engine.jumps, engine.loaded), (1, 896))
        self.assertEqual(engine.model.computed, 900 - 896 + 5)

    def test_a_running_request_jumps_and_counts_it_as_cached(self):
        document = [7 + i % 89 for i in range(1940)]
        self.fill([document])
        with unittest.mock.patch.object(planner_module, "PATIENCE_STEPS", -1):
            engine = self.engine(policy="load")
            request = engine.submit("r", document)
            stats = request.prefill_stats  # vLLM takes it away with the first token
            engine.run_all()
        self.check(engine, 1)
        self.assertEqual(engine.jumps, 1)
        self.assertGreater(engine.loaded, 0)
        self.assertLess(engine.loaded, 1920, "it was not running when it jumped")
        self.assertEqual(stats.num_external_cached_tokens, engine.loaded)
        self.assertEqual(engine.model.computed, 1940 - engine.loaded + 5)

    def test_blocks_of_a_jump_that_failed_are_handed_to_nobody(self):
        self.fill()
        # vLLM has all of the document but the last chunk. That is computed again in a step of its
        # own, while what was computed on top of it is wrong.
        engine = self.engine(policy="load", slice_max=128)
        engine.submit("before", self.documents[0][:800])
        engine.run_all()
        prompt = self.documents[0] + [7] * 300
        worker = engine.worker._worker
        jump = worker._jump

        def fail(message):
            opened = worker._open[message.request].restoration
            opened.acquire = lambda chunk: None
            worker._jump = jump
            jump(message)
        worker._jump = fail
        engine.submit("fails", prompt)
        while not engine.failed:
            engine.step()
        while engine.outputs:  # until the scheduler has heard of it
            engine.step_back()
        with unittest.mock.patch.object(planner_module, "PATIENCE_STEPS", -1):
            engine.submit("other", prompt)
            engine.run_all()
        self.card.finish()
        self.assertEqual(engine.finished, 3)
        # The first computes on what is missing until it is set back.
        self.assertEqual([wrong for wrong in engine.model.wrong if wrong[0] != "fails"], [])

    def test_a_jump_that_is_preempted_leaves_no_blocks_to_others(self):
        document = [7 + i % 89 for i in range(1034)]
        self.fill([document])
        # Blocks for the document and for 16 tokens, but not for the 17th.
        engine = self.engine(policy="load", blocks=67, order="priority")
        planner, urgent = engine.scheduler._planner, None
        jump, cap = planner.jump, planner.cap

        def is_due():  # the other needs one more block in this step
            return urgent is not None and urgent.num_computed_tokens >= 16

        def jump_when_due(name, computed):
            after = jump(name, computed)
            if is_due():
                return after
            planner._requests[name].jump = None
            return None

        def cap_until_due(name, computed, new, *, running):
            waits = name == "low" and running and not is_due()
            return 0 if waits else cap(name, computed, new, running=running)

        planner.jump, planner.cap = jump_when_due, cap_until_due
        with unittest.mock.patch.object(planner_module, "PATIENCE_STEPS", -1):
            engine.submit("low", document, priority=1)
            heard = planner._requests["low"]
            while not (heard.progress and heard.progress.front == heard.progress.chunks):
                engine.step()
            urgent = engine.submit("high", range(5000, 5016))
            engine.run_all()
            engine.submit("later", document)
            engine.run_all()
        self.check(engine, 3)
        self.assertEqual(engine.preempted, 1)

    def test_a_connector_that_is_reset_loads_and_keeps_nothing(self):
        self.fill()
        engine = self.engine(policy="load", slice_max=128)
        engine.submit("r", [5] * 900)
        engine.step()
        stored = engine.worker._cache.stats().stored_chunks
        reset = engine.scheduler.reset_prefix_cache(reset_running_requests=True,
                                                    reset_connector=True)
        self.assertTrue(reset)
        engine.submit("s", self.documents[0])
        engine.run_all()
        self.check(engine, 2)
        engine.worker._cache.flush()
        self.assertEqual((engine.loaded, engine.worker._cache.stats().stored_chunks), (0, stored))

    def test_requests_that_come_go_and_are_preempted(self):
        self.fill()
        totals = collections.Counter()
        for seed, policy in enumerate(["cake", "load", "cake", "load"]):
            rng = random.Random(seed)
            # Two documents have room, but not for what they are answered.
            engine = self.engine(policy=policy, blocks=120, seed=seed)
            aborted = 0
            for i in range(10):
                document = rng.choice(self.documents)[:rng.randrange(400, 900)]
                engine.submit(f"r{i}", document + [i] * rng.randrange(30), answer=70)
                for _ in range(rng.randrange(6)):
                    engine.step()
                unfinished = [name for name in engine.scheduler.requests]
                if unfinished and rng.random() < 0.3:
                    engine.abort(rng.choice(unfinished))
                    aborted += 1
                if rng.random() < 0.2:
                    engine.scheduler.reset_prefix_cache()
            engine.run_all()
            self.check(engine, 10 - aborted)
            totals.update(aborted=aborted, jumps=engine.jumps, preempted=engine.preempted)
        for what in ("aborted", "jumps", "preempted"):
            self.assertGreater(totals[what], 0, what)

    def test_it_starts_there_only_when_asked_to(self):
        with self.assertRaisesRegex(ValueError, "experimental_cuda"):
            KvcakeConnector.register_kv_caches(types.SimpleNamespace(
                _kv_cache_config=types.SimpleNamespace(num_blocks=10), _a_chunk=1,
                config=types.SimpleNamespace(experimental_cuda=False)), self.caches(10))


if __name__ == "__main__":
    unittest.main()
