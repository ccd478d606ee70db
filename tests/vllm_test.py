"""The plugin in vLLM, as its users start it. Runs in a virtual environment with vLLM and kvcake."""
import json
import os
import pathlib
import shutil
import tempfile
import threading
import unittest
import unittest.mock

import psutil

from damage import flip
from relayed_store import CAN_FUSE, relayed
from vllm_fixture import MODEL, engine, generate, score, words

LONG = 2100  # 16 chunks and some
# Log probabilities of vLLM alone differ by up to 0.07 between steps of 512, 256 and 128 tokens. The
# plugin computes in other slices, too; what it loads whole was computed in the same ones.
SAME, SLICED = 0.005, 0.1


class PluginTest(unittest.TestCase):
    """Answers of vLLM alone, and stores that have what it computed."""

    @classmethod
    def setUpClass(cls):
        cls.documents = [words(LONG, first) for first in range(6)]
        cls._dir = tempfile.TemporaryDirectory()
        cls.filled = pathlib.Path(cls._dir.name) / "filled"
        with engine(cls.filled, policy="compute") as llm:
            cls.alone = [generate(llm, [document])[0] for document in cls.documents]

    @classmethod
    def tearDownClass(cls):
        cls._dir.cleanup()

    def setUp(self):
        self.store = pathlib.Path(self._dir.name) / "store"
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(self.filled, self.store)
        self.parted = []  # prompts and answers

    def tearDown(self):
        """Greedy answers part at near ties: what vLLM alone thinks of these very tokens is
        compared."""
        if self.parted:
            with engine() as llm:
                for prompt, (tokens, likely, _) in self.parted:
                    for mine, theirs in zip(likely, score(llm, prompt, tokens), strict=True):
                        self.assertAlmostEqual(mine, theirs, delta=2 * SLICED)

    def chunks(self):
        return [path for path in self.store.rglob("*") if len(path.name) == 64 and path.is_file()]

    def check(self, got, wanted, within=SAME, prompt=None):
        """`prompt`: one whose answer may part from what is wanted at a near tie."""
        if prompt and got[0] != wanted[0]:
            self.parted.append((prompt, got))
            return
        self.assertEqual(got[0], wanted[0])
        for mine, theirs in zip(got[1], wanted[1]):
            self.assertAlmostEqual(mine, theirs, delta=within)

    def check_all(self, llm, cached=None, within=SAME):
        """Answers are those of vLLM alone; so many tokens of each are `cached`, or none, or as
        many as the planner likes."""
        for document, alone in zip(self.documents, self.alone):
            got = generate(llm, [document])[0]
            self.check(got, alone, within, document if within == SLICED else None)
            if cached is not None:
                self.assertEqual(got[2], cached)

    def test_vllm_alone_says_the_same(self):
        with engine() as llm:
            self.check_all(llm, cached=0)

    def test_what_is_stored_is_loaded_by_another_process(self):
        self.assertEqual(len(self.chunks()), 16 * len(self.documents))
        with engine(self.store, policy="load") as llm:
            self.check_all(llm, cached=2048)

    def test_a_slow_link_is_met_half_way(self):
        # A chunk in about the time that computing it takes.
        with engine(self.store, load_rate=256 * 1024 / 0.01) as llm:
            cached = []
            for document, alone in zip(self.documents, self.alone):
                got = generate(llm, [document])[0]
                self.check(got, alone, SLICED, document)
                cached.append(got[2])
            self.assertGreater(max(cached), 0)
            self.assertLess(min(cached), 2048)

    def test_requests_together_are_answered_as_alone(self):
        with engine(self.store) as llm:
            got = generate(llm, self.documents)
            for one, alone, document in zip(got, self.alone, self.documents):
                self.check(one, alone, SLICED, document)
            self.assertGreater(min(one[2] for one in got), 0)
            # Ten requests on one document: vLLM's prefix cache has it after the first.
            many = generate(llm, [self.documents[0] + [7 + i] for i in range(10)])
            self.assertGreaterEqual(min(one[2] for one in many), 2048)

    def test_damaged_chunks_are_computed(self):
        for path in self.chunks():
            flip(path, 4096 + 1000)
        with engine(self.store, policy="load") as llm:
            self.check_all(llm, cached=0)

    def test_a_store_that_is_emptied_or_silent_costs_time_only(self):
        with engine(self.store, policy="load") as llm:
            shutil.rmtree(self.store)
            self.check_all(llm, within=SLICED)
        shutil.copytree(self.filled, self.store, dirs_exist_ok=True)
        store = {"where": str(self.store), "load_latency_s": 600.0}
        with engine(self.store, policy="load", stores=[store], stall_timeout_s=1.0) as llm:
            self.check(generate(llm, [self.documents[0]])[0], self.alone[0])

    def test_preempted_requests_are_right(self):
        # Two prompts of ten blocks have room, but not for what they are answered.
        small = {"num_gpu_blocks_override": 21, "max_num_seqs": 4, "max_model_len": 2048,
                 "disable_log_stats": False}
        prompts = [document[:1200] for document in self.documents]
        with engine(self.store, vllm=small) as llm:
            self.parted = list(zip(prompts, generate(llm, prompts, max_tokens=120)))
            preemptions = sum(metric.value for metric in llm.get_metrics()
                              if metric.name == "vllm:num_preemptions")
        self.assertGreater(preemptions, 0)

    @unittest.skipUnless(len(os.sched_getaffinity(0)) > 1, "all share one CPU")
    def test_threads_are_not_where_vllm_computes(self):
        bound = max(os.sched_getaffinity(0))
        with unittest.mock.patch.dict(os.environ, VLLM_CPU_OMP_THREADS_BIND=str(bound)):
            with engine(self.store, policy="load") as llm:
                self.check_all(llm)
                (worker,) = [process for process in psutil.Process().children(recursive=True)
                             if process.name().startswith("VLLM::Worker")]
                where = [os.sched_getaffinity(thread.id) for thread in worker.threads()]
                self.assertEqual(os.sched_getaffinity(worker.pid), {bound}, "it is bound")
                elsewhere = os.sched_getaffinity(0) - {bound}
                # Twelve that write, those of the store, and one that copies.
                self.assertGreaterEqual(where.count(elsewhere), 14)

    def served(self, opened):
        """The store's chunks, by a process that holds the next call when so many were opened."""
        (chunks,) = self.store.glob("v1/" + "?" * 64)
        return relayed(chunks, opened)

    @unittest.skipUnless(CAN_FUSE, "a load that is held wants FUSE and fusermount3")
    def test_an_abort_in_mid_load_leaves_nothing_behind(self):
        from vllm import SamplingParams
        with self.served(opened=2) as relay, engine(self.store, policy="load") as llm:
            for i, document in enumerate(self.documents[:3]):
                name = llm.llm_engine.add_request(
                    f"aborted {i}", {"prompt_token_ids": document}, SamplingParams(max_tokens=4))
                self.assertTrue(relay.wait_held(), "nothing was loaded")
                llm.llm_engine.abort_request([name or f"aborted {i}"], internal=bool(name))
                relay.go_on(opened=3 if i < 2 else 10000)
            self.check_all(llm, within=SLICED)

    @unittest.skipUnless(CAN_FUSE, "a store that is killed wants FUSE and fusermount3")
    def test_a_store_that_is_killed_in_mid_load_costs_time_only(self):
        with self.served(opened=4) as relay, engine(self.store, policy="load") as llm:
            held = []
            killer = threading.Thread(target=lambda: (held.append(relay.wait_held()),
                                                      relay.kill()))
            killer.start()
            self.check_all(llm, within=SLICED)
            killer.join()
            self.assertEqual(held, [True], "it was not killed in mid-load")

    def test_an_asynchronous_scheduler(self):
        # vLLM's CPU worker computes one step at a time even then.
        with engine(self.store, policy="load",
                    scheduler="kvcake.vllm.KvcakeAsyncScheduler") as llm:
            self.check_all(llm, cached=2048)

    def test_another_salt_shares_nothing(self):
        with engine(self.store) as llm:
            for stored in (False, True):
                got = generate(llm, [self.documents[0]], salt="mine")[0]
                self.check(got, self.alone[0], SLICED, self.documents[0])
                self.assertEqual(got[2] > 0, stored)
                llm.reset_prefix_cache()

    def adapter(self, name, seed):
        """A LoRA adapter that says something else."""
        import torch
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest
        folder = pathlib.Path(self._dir.name) / name
        folder.mkdir()
        config = json.loads((MODEL / "config.json").read_text())
        size = config["hidden_size"]
        heads = config["num_attention_heads"] * config["head_dim"]
        torch.manual_seed(seed)
        save_file({f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{ab}.weight":
                   torch.randn(shape).bfloat16()
                   for i in range(config["num_hidden_layers"])
                   for ab, shape in (("A", (8, size)), ("B", (heads, 8)))},
                  folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"],
             "bias": "none"}))
        return LoRARequest(name, seed, str(folder))

    def test_adapters_share_nothing(self):
        one, other = self.adapter("one", 1), self.adapter("other", 2)
        said, prompts = {}, [self.documents[0]]
        for policy in ("compute", "load"):
            with engine(self.store, policy=policy, vllm={"enable_lora": True}) as llm:
                for lora in (one, None, other) if policy == "compute" else (other, one, None):
                    got = generate(llm, prompts, lora=lora)[0]
                    name = lora and lora.lora_name
                    if policy == "compute":
                        said[name] = got
                        continue
                    self.check(got, said[name])
                    self.assertEqual(got[2], 2048)
        self.assertNotEqual(said["one"][1], said[None][1])
        self.assertNotEqual(said["one"][1], said["other"][1])
        shutil.rmtree(self.store)
        with engine(self.store, policy="load", vllm={"enable_lora": True}) as llm:
            for lora in (one, None, other):
                got = generate(llm, prompts, lora=lora)[0]
                self.check(got, said[lora and lora.lora_name])
                self.assertEqual(got[2], 0)

    def test_an_adapter_that_is_replaced_after_vllm_has_loaded_it_is_not_kept(self):
        one, other = self.adapter("old", 3), self.adapter("new", 4)
        shutil.rmtree(self.store)
        with engine(self.store, vllm={"enable_lora": True}) as llm:
            llm.llm_engine.add_lora(one)  # as a server does when it starts
            shutil.copy(f"{other.lora_path}/adapter_model.safetensors", one.lora_path)
            before = generate(llm, [self.documents[0]], lora=one)[0]
        self.assertEqual(self.chunks(), [])
        with engine(self.store, policy="load", vllm={"enable_lora": True}) as llm:
            after = generate(llm, [self.documents[0]], lora=one)[0]
        self.assertEqual(after[2], 0)
        self.assertNotEqual(after[1], before[1])
        self.assertEqual(len(self.chunks()), 16)

    def test_other_weights_share_nothing(self):
        with engine(self.store, weights_id="other") as llm:
            self.check_all(llm, cached=0)

    def other_weights(self):
        """A model as the other is, that says something else."""
        from safetensors.torch import load_file, save_file
        folder = pathlib.Path(self._dir.name) / "turned"
        shutil.copytree(MODEL, folder)
        tensors = load_file(folder / "model.safetensors")
        turned = {name: -tensor if tensor.dim() == 1 else tensor
                  for name, tensor in tensors.items()}
        save_file(turned, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def test_weights_that_are_loaded_anew_share_nothing_and_are_not_kept(self):
        other, chunks = self.other_weights(), set(self.chunks())
        with engine(self.store, policy="load") as llm:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": str(other)})
            for document, alone in zip(self.documents, self.alone):
                tokens, _, cached = generate(llm, [document])[0]
                self.assertNotEqual(tokens, alone[0], "they were not loaded")
                self.assertEqual(cached, 0)
            generate(llm, [words(LONG, 6)])
            self.assertTrue(llm.reset_prefix_cache(reset_connector=True))
            self.assertEqual(generate(llm, [self.documents[0]])[0][2], 0)
        self.assertEqual(set(self.chunks()), chunks)

    def test_tensor_parallel(self):
        folder = pathlib.Path(self._dir.name) / "ranks"
        two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
        with engine(folder, policy="compute", vllm=two) as llm:
            wanted = generate(llm, [self.documents[0]])[0]
        with engine(folder, vllm=two) as llm:
            got = generate(llm, [self.documents[0]])[0]
            self.check(got, wanted, SLICED, self.documents[0])
            self.assertGreater(got[2], 0)


if __name__ == "__main__":
    unittest.main()
