"""vLLM's schedulers with the two things a connector cannot do: a running request jumps to what was
loaded, and waits, or computes less in a step, where the planner says so. No public interface of
vLLM: tests/vllm_hooks_test.py says which one moved.
"""
from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kvcake.vllm.connector import KvcakeConnector, check_runner


class CakeScheduling:
    """A mixin before a Scheduler of vLLM."""

    connector: Any
    running: list[Any]
    requests: dict[str, Any]
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.connector, KvcakeConnector):
            raise ValueError("kvcake: this scheduler wants the KvcakeConnector: "
                             '--kv-transfer-config \'{"kv_connector": "KvcakeConnector", '
                             '"kv_connector_module_path": "kvcake.vllm", "kv_role": "kv_both", '
                             '"kv_load_failure_policy": "recompute", ...}\'')
        check_runner(getattr(self, "use_v2_model_runner", False))
        self._planner = self.connector.planner
        self._jumping: dict[str, int] = {}  # running requests: tokens that they leave out
        self.connector.cached_tokens_of = self._cached_tokens
        self.connector.blocks_of = lambda name: self.kv_cache_manager.get_block_ids(name)[0]

    # What the prefix cache has is not loaded again.
    def _cached_tokens(self, request: Any) -> int:
        return self.kv_cache_manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1)[1] \
            if self.kv_cache_manager.enable_caching else 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self._jumping.clear()
        for request in self.running:
            after = self._planner.jump(request.request_id, request.num_computed_tokens)
            if after is not None:
                self._jumping[request.request_id] = after - request.num_computed_tokens
                request.num_computed_tokens = after
        return super().schedule(*args, **kwargs)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int,
                                   num_new_tokens: int) -> int:
        allowed = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return self._planner.cap(request.request_id, num_computed_tokens, allowed,
                                 running=request.status == RequestStatus.RUNNING)

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        for name, before in self._planner.unjump(scheduler_output.num_scheduled_tokens):
            self.requests[name].num_computed_tokens = before
        meta = super()._build_kv_connector_meta(connector, scheduler_output)
        if meta.jumps:
            scheduler_output.has_sync_kv_loads = True  # they are copied before the step computes
        for jump in meta.jumps:
            if jump.request in self._jumping:
                self._count(self.requests[jump.request], self._jumping[jump.request])
        return meta

    # Tokens that are jumped over are cached ones, as users see them. Those of an admission are
    # counted by vLLM.
    @staticmethod
    def _count(request: Any, tokens: int) -> None:
        stats = request.prefill_stats
        if stats and request.num_preemptions <= 0:
            stats.set(num_prompt_tokens=stats.num_prompt_tokens,
                      num_local_cached_tokens=stats.num_local_cached_tokens,
                      num_external_cached_tokens=stats.num_external_cached_tokens + tokens)

    # Blocks after one that is missing are wrong until they are computed again. vLLM leaves them to
    # its prefix cache meanwhile, which would hand them to others.
    def _handle_invalid_blocks(self, invalid_block_ids: set[int], *args: Any) -> set[str]:
        affected = super()._handle_invalid_blocks(invalid_block_ids, *args)
        for name in affected:
            self._evict_after(name, self.requests[name].num_computed_tokens)
        return affected

    def _evict_after(self, name: str, tokens: int) -> None:
        blocks = self.kv_cache_manager.get_block_ids(name)[0]
        self.kv_cache_manager.evict_blocks(set(blocks[tokens // self.block_size:]))

    # With priorities a request may be preempted in the step that has scheduled it. Its blocks are
    # in vLLM's prefix cache by then, but nobody computes them, or copies what it jumps over.
    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        name = request.request_id
        self._evict_after(name, request.num_computed_tokens - self._jumping.get(name, 0))
        super()._preempt_request(request, *args, **kwargs)
        self._planner.preempt(name)


class KvcakeScheduler(CakeScheduling, Scheduler):
    pass


class KvcakeAsyncScheduler(CakeScheduling, AsyncScheduler):
    pass
