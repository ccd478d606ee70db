"""The connector: what vLLM calls in the scheduler's process, and in each worker's."""
from __future__ import annotations

import functools
import logging
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata,
    SupportsHMA)
from vllm.v1.core import kv_cache_utils

import kvcake
from kvcake.vllm import cpus, identity
from kvcake.vllm.blocks import TorchBlocks
from kvcake.vllm.config import (CHUNK_TOKENS, Config, check_version, folder_of, read_config,
                                shown)
from kvcake.vllm.messages import Report, Step
from kvcake.vllm.metrics import KvcakePromMetrics, KvcakeStats
from kvcake.vllm.planner import Planner, RequestKey
from kvcake.vllm.worker import Worker

logger = logging.getLogger("vllm.kvcake")


@dataclass
class StepMetadata(Step, KVConnectorMetadata):
    pass


@dataclass
class WorkerReport(Report, KVConnectorWorkerMetadata):
    pass


def check_supported(vllm_config: Any, kv_cache_config: Any) -> None:
    """ValueError that names what the plugin cannot do, and what to set instead."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    model = vllm_config.model_config
    refused = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": getattr(parallel, "decode_context_parallel_size", 1) > 1
        or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "speculative decoding": vllm_config.speculative_config is not None,
        "changing the weights of a running engine (--enable-sleep-mode, weight transfer)":
            bool(getattr(model, "enable_sleep_mode", False))
            or getattr(vllm_config, "weight_transfer_config", None) is not None,
        "KV scales that are computed on the fly (--calculate-kv-scales)":
            bool(getattr(vllm_config.cache_config, "calculate_kv_scales", False)),
        "attention in both directions within images, which no slice may cut":
            bool(getattr(model, "is_mm_prefix_lm", False)),
        "a model that wants whole prompts in one step, as pooling by MEAN or CLS does,":
            not getattr(model, "is_chunked_prefill_supported", True)
            or not getattr(model, "is_prefix_caching_supported", True),
    }
    for what, asked in refused.items():
        if asked:
            raise ValueError(f"kvcake: {what} is not supported")
    check_runner(getattr(vllm_config, "use_v2_model_runner", False))
    if getattr(transfer, "kv_load_failure_policy", "recompute") != "recompute":
        raise ValueError('kvcake: set "kv_load_failure_policy": "recompute" in '
                         "--kv-transfer-config: a load that fails must not fail its request")
    if transfer.kv_role != "kv_both":
        raise ValueError('kvcake: set "kv_role": "kv_both" in --kv-transfer-config')
    groups = kv_cache_config.kv_cache_groups
    specs = [type(group.kv_cache_spec).__name__ for group in groups]
    spec = groups[0].kv_cache_spec if len(groups) == 1 else None
    if specs != ["FullAttentionSpec"] or getattr(spec, "sliding_window", None) \
            or getattr(spec, "attention_chunk_size", None) or getattr(spec, "non_causal", False):
        raise ValueError(f"kvcake: the model's KV cache is {specs}: only causal full attention in "
                         "all layers is supported")


def check_scheduler(config: Any) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from kvcake.vllm.scheduler import CakeScheduling
    scheduler = config.get_scheduler_cls()
    if not issubclass(scheduler, CakeScheduling):
        raise ValueError("kvcake: start vLLM with --scheduler-cls kvcake.vllm.KvcakeScheduler "
                         "(with asynchronous scheduling kvcake.vllm.KvcakeAsyncScheduler)")
    if config.async_scheduling and not issubclass(scheduler, AsyncScheduler):
        raise ValueError("kvcake: vLLM schedules asynchronously, as it does by itself on GPUs, and "
                         "with this scheduler would run an empty step between two: start it with "
                         "--scheduler-cls kvcake.vllm.KvcakeAsyncScheduler, or with "
                         "--no-async-scheduling")


def check_runner(is_second: bool) -> None:
    if is_second:
        raise ValueError("kvcake: vLLM's second model runner, which it takes by itself where there "
                         "is Triton, does not hear that a running request has jumped: set "
                         "VLLM_USE_V2_MODEL_RUNNER=0 in the environment")


def before_reloads(tell: Callable[[], None]) -> None:
    """Calls `tell` before a model runner of this process loads weights anew, of which vLLM tells
    connectors nothing."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    reload = GPUModelRunner.reload_weights

    @functools.wraps(reload)
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return reload(*args, **kwargs)

    GPUModelRunner.reload_weights = told


def before_adapters(tell: Callable[[Any], None]) -> None:
    """Calls `tell` before the engine core of this process loads a LoRA adapter that no prompt has
    asked for yet, as servers do, of which vLLM tells connectors nothing."""
    from vllm.v1.engine.core import EngineCore
    load = EngineCore.add_lora

    @functools.wraps(load)  # whose annotation says what vLLM makes of the argument
    def told(self: EngineCore, lora_request: Any) -> Any:
        tell(lora_request)
        return load(self, lora_request)

    EngineCore.add_lora = told


class KvcakeConnector(KVConnectorBase_V1, SupportsHMA):
    """Cake for vLLM: prompts are computed from the front while stores load them from the back."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        check_version(vllm.__version__)
        super().__init__(vllm_config, role, kv_cache_config)
        check_supported(vllm_config, kv_cache_config)
        self.config: Config = read_config(
            vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._block = spec.block_size
        self._a_chunk = -(-CHUNK_TOKENS // self._block)
        self._chunk = self._block * self._a_chunk
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._retired = False
        self._worker: Worker | None = None
        self._cache: kvcake.Cache | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler(vllm_config)

    # What is stored is of the weights that vLLM started with, and others have no name: from then on
    # nothing is loaded or kept.
    def _retire(self, side: Planner | Worker) -> None:
        if not self._retired:
            self._retired = True
            side.retire()
            logger.warning("kvcake: weights were loaded anew, or caches reset as if they were: "
                           "nothing is loaded from stores or kept until vLLM starts again")

    # ---- in the scheduler's process

    def _start_scheduler(self, vllm_config: Any) -> None:
        check_scheduler(vllm_config.scheduler_config)
        self.planner = Planner(chunk_tokens=self._chunk, block_tokens=self._block,
                               ranks=self._ranks, policy=self.config.policy,
                               keep=self.config.keep)
        self._adapters = identity.Adapters()
        self._adapter_options = identity.adapter_options(
            getattr(vllm_config, "lora_config", None), vllm_config.model_config.dtype)
        before_adapters(lambda lora: self._adapters.loads(lora.lora_int_id, lora.lora_path))
        self._refused: set[str] = set()
        # What the scheduler counts, and says when it has begun.
        self.cached_tokens_of: Callable[[Any], int] = lambda request: 0
        self.blocks_of: Callable[[str], Sequence[int]] = lambda request: []

    def on_new_request(self, request: Any) -> None:
        try:
            key = self._key(request)
        except identity.Unkeyed as why:
            self._leave_out(request, why)
            return
        restores = not getattr(request, "skip_reading_prefix_cache", False)
        self.planner.add(request.request_id, request._all_token_ids, request.num_prompt_tokens, key,
                         restores=restores,
                         cached_tokens=self.cached_tokens_of(request) if restores else 0)

    def _leave_out(self, request: Any, why: identity.Unkeyed) -> None:
        if str(why) not in self._refused and len(self._refused) < 100:
            self._refused.add(str(why))
            logger.warning("kvcake: requests are neither restored nor kept: %s", why)
        self.planner.finish(request.request_id)

    def _key(self, request: Any) -> RequestKey:
        if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
            raise identity.Unkeyed("a prompt of embeddings has no tokens")
        if getattr(request, "resumable", False):
            raise identity.Unkeyed("a prompt that is still streamed may change")
        lora = request.lora_request
        parts: list[Any] = []
        if lora is not None:
            if getattr(lora, "tensorizer_config_dict", None):
                raise identity.Unkeyed("a LoRA adapter of tensorizer")
            if getattr(lora, "load_inplace", False):
                raise identity.Unkeyed("a LoRA adapter that each step loads anew (load_inplace)")
            parts.append(self._adapters.digest(lora.lora_int_id, lora.lora_path))
            if self._adapter_options:
                parts.append(self._adapter_options)
            if getattr(lora, "is_3d_lora_weight", False):  # how the same bytes are read
                parts.append("3d")
        salt = identity.encode([parts, request.cache_salt]) if parts or request.cache_salt else b""
        return RequestKey(salt, self._extras(request))

    # vLLM's own extra keys of the prompt's blocks: what it does not share, we do not either. The
    # adapter, which it knows by its name and path, is in the salt by its bytes. How many tokens an
    # image or a video became parts the chunks that it fills, which have no other token. The chunk
    # that the prompt ends in counts: the answer fills it.
    def _extras(self, request: Any) -> dict[int, bytes]:
        made: dict[int, bytes] = {}
        lengths: dict[int, list[int]] = {}
        for place in (one.mm_position for one in request.mm_features or ()):
            last = place.offset + place.length - 1
            for chunk in range(place.offset // self._chunk, last // self._chunk + 1):
                lengths.setdefault(chunk, []).append(place.length)
        feature = 0
        for chunk in range(-(-request.num_prompt_tokens // self._chunk)):
            start = chunk * self._chunk
            extra, feature = kv_cache_utils.generate_block_hash_extra_keys(
                request, start, start + self._chunk, feature)
            kept = [key for key in extra or () if not _names_adapter(request, key)]
            if kept:
                made[chunk] = identity.encode(kept + lengths.get(chunk, []))
        return made

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int
                                   ) -> tuple[int | None, bool]:
        tokens = self.planner.matched(request.request_id, num_computed_tokens)
        lora = request.lora_request
        if tokens is not None and lora is not None and self.planner.knows(request.request_id):
            # It may have waited for long, and vLLM may load its adapter in this step only.
            try:
                self._adapters.digest(lora.lora_int_id, lora.lora_path)
            except identity.Unkeyed as why:
                self._leave_out(request, why)
                tokens = 0
        return tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.planner.admitted(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        started = {new.req_id: new.num_computed_tokens
                   for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        started.update(zip(cached.req_ids, cached.num_computed_tokens))
        scheduled = {name: (started[name], started[name] + count)
                     for name, count in scheduler_output.num_scheduled_tokens.items()}
        step = self.planner.step(scheduled, self.blocks_of,
                                 scheduler_output.total_num_scheduled_tokens)
        return StepMetadata(**vars(step))

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if report is not None:
            self.planner.hear(report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        self.planner.finish(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]
                                    ) -> tuple[bool, None]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool:
        # It is asked for by those who have changed weights, in ways that nobody may see.
        self._retire(self.planner)
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a miss some day

    # ---- in a worker's process

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        distinct = {cache.data_ptr(): (name, cache) for name, cache in kv_caches.items()}
        blocks = TorchBlocks(dict(distinct.values()), self._kv_cache_config.num_blocks,
                             self._a_chunk)
        if not blocks.on_host and not self.config.experimental_cuda:
            raise ValueError("kvcake: the plugin has never run on a GPU; to be the first, set "
                             '"experimental_cuda": true in kv_connector_extra_config')
        kvcake.set_log(logger)
        rank = self._rank()
        slice_tokens = self._vllm_config.scheduler_config.max_num_batched_tokens
        name_space = identity.name_space(self._facts(blocks, rank))
        self._cache = cpus.run_beside_computing(lambda: kvcake.Cache(
            name_space, layers=blocks.layers, chunk_tokens=self._chunk,
            slab_bytes=blocks.slab_bytes, stores=self.config.listed(),
            memory_bytes=self.config.memory_bytes, store_ttl_s=self.config.store_ttl_s,
            stall_timeout_s=self.config.stall_timeout_s, device=self._device()))
        self._worker = Worker(
            self._cache, blocks, chunk_tokens=self._chunk, blocks_a_chunk=self._a_chunk,
            slice_chunks_max=max(1, slice_tokens // self._chunk), policy=self.config.policy,
            rank=rank, ranks=self._ranks, look_s=self.config.look_s)
        before_reloads(self._retire_worker)
        stats = self._cache.stats()
        logger.info("kvcake %s: %d chunks of %d tokens in %s, memory for %d", kvcake.__version__,
                    stats.stored_chunks, self._chunk, ", ".join(map(shown, self.config.stores)),
                    stats.memory_chunks)
        self._warn_of_little_memory(stats.memory_chunks)

    # All prompts that are restored at a time share it with what waits to be written.
    def _warn_of_little_memory(self, chunks: int) -> None:
        held, longest = chunks * self._chunk, self._vllm_config.model_config.max_model_len
        if held < longest:
            logger.warning(
                "kvcake: memory_bytes holds %d tokens, and a prompt may have %d: what finds no "
                "room is computed again. %d bytes would hold one, in each worker", held, longest,
                -(-self.config.memory_bytes * longest // max(1, held)))

    def _rank(self) -> int:
        if self._ranks == 1:
            return 0
        from vllm.distributed import get_tensor_model_parallel_rank
        return get_tensor_model_parallel_rank()

    # Costs that were measured hold for it.
    def _device(self) -> str:
        return f"vllm {vllm.__version__}, {torch.get_num_threads()} threads, {_instructions()}"

    def _facts(self, blocks: TorchBlocks, rank: int) -> dict[str, Any]:
        model, cache = self._vllm_config.model_config, self._vllm_config.cache_config
        config = model.hf_config.to_dict()
        facts = {
            "vllm": vllm.__version__, "weights": self._weights(),
            "config": identity.config_digest(config),
            "longest": model.max_model_len if identity.depends_on_length(config) else None,
            "dtype": str(model.dtype), "kv_cache_dtype": str(cache.cache_dtype),
            "quantization": str(model.quantization), "block_tokens": self._block,
            "layout": blocks.layout(), "instructions": _instructions(),
            "tensor_parallel": [rank, self._ranks]}
        # Which layers are quantized, and how, where vLLM does it as it loads them.
        if (quantized := getattr(model, "quantization_config", None)) is not None:
            facts["quantization_options"] = identity.options_digest(quantized)
        # vLLM's hashes of images have what a request says of their processing, not what it was
        # started with.
        if images := getattr(model, "multimodal_config", None):
            facts["processing"] = identity.config_digest(images.mm_processor_kwargs or {})
            normalizes = getattr(getattr(model, "_model_info", None),
                                 "supports_mm_device_do_normalize", True)
            if told := identity.media_options(images, normalizes):
                facts["media_options"] = identity.options_digest(told)
        return facts

    def _weights(self) -> str:
        if self.config.weights_id:
            return "named " + self.config.weights_id
        remembered = self._remembered()
        model, load = self._vllm_config.model_config, self._vllm_config.load_config
        try:
            load_format = str(load.load_format).rpartition(".")[2].lower()
            if load_format == "dummy":
                raise identity.Unkeyed("they are made up (--load-format dummy)")
            folder = pathlib.Path(model.model)
            if not folder.is_dir():
                folder = _snapshot(model.model, model.revision, load.download_dir)
            digest = identity.folder_digest(folder, remembered, load_format)
            if not model.trust_remote_code:
                return digest
            revision = model.code_revision
            code = identity.code_digest(model.hf_config.to_dict(), model.model, revision,
                                        lambda name: _snapshot(name, revision, None))
            return f"{digest} {code}" if code else digest
        except (identity.Unkeyed, OSError, ValueError) as why:
            raise ValueError(f"kvcake: the weights of {model.model} cannot be told by their bytes: "
                             f'{why}. Name them by "weights_id" in kv_connector_extra_config, '
                             "another name for other weights") from why

    # Where digests of weights are, which are not hashed for a store that cannot be used.
    def _remembered(self) -> pathlib.Path | None:
        folder = next(filter(None, map(folder_of, self.config.stores)), None)
        if folder is None:
            return None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as why:
            raise ValueError(f"kvcake: the store {folder} cannot be made: {why}") from why
        return folder / "vllm-weights.json"

    def _retire_worker(self) -> None:
        if self._worker is not None:
            self._retire(self._worker)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata)
        if self._worker is not None:
            self._worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any,
                      **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.computed()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._worker.report() if self._worker is not None else None
        return WorkerReport(report.progress, report.failures) if report is not None else None

    def shutdown(self) -> None:
        if self._worker is not None:
            try:
                self._worker.close()
            finally:
                self._worker = self._cache = None
                kvcake.set_log(None)

    # ---- metrics

    def get_kv_connector_stats(self) -> KvcakeStats | None:
        if self._worker is None:
            return None
        data = self._worker.counts.take()
        return KvcakeStats(data=data) if data else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvcakeStats:
        return KvcakeStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KvcakePromMetrics:
        return KvcakePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _names_adapter(request: Any, key: Any) -> bool:
    """Whether vLLM's extra key is that of the request's adapter, whose digest says more. A tuple of
    a name and an offset is an image's, which a client may call "lora"."""
    return (request.lora_request is not None and isinstance(key, tuple) and key[0] == "lora"
            and not isinstance(key[1], int))


# What was downloaded of a repository of Hugging Face.
def _snapshot(name: str, revision: str | None, cache: str | None) -> pathlib.Path:
    from huggingface_hub import snapshot_download
    return pathlib.Path(snapshot_download(name, revision=revision, cache_dir=cache,
                                          local_files_only=True))


# vLLM lays out its cache on CPUs by what the CPU has; so do its numbers depend on it.
def _instructions() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    wanted = {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd",
              "bf16", "sve", "i8mm"}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("flags", "features")):
            return " ".join(sorted(wanted & set(line.split())))
    return "unknown"
