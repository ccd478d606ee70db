"""vLLM's schedulers with the two things a connector cannot do: a running request jumps to what was
loaded, and waits, or computes less in a step, where the planner says so. No public interface of
vLLM: tests/vllm_hooks_test.py says which one moved.
"""
from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kvcake.vllm.connector import KvcakeConnector


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
        self._planner = self.connector.planner
        self.connector.cached_tokens_of = self._cached_tokens
        self.connector.blocks_of = lambda name: self.kv_cache_manager.get_block_ids(name)[0]

    # What the prefix cache has is not loaded again.
    def _cached_tokens(self, request: Any) -> int:
        return self.kv_cache_manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1)[1] \
            if self.kv_cache_manager.enable_caching else 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request in self.running:
            after = self._planner.jump(request.request_id, request.num_computed_tokens)
            if after is not None:
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
            self._count(self.requests[jump.request], jump)
        return meta

    # Tokens that were jumped over are cached ones, as users see them.
    def _count(self, request: Any, jump: Any) -> None:
        pass

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self._planner.preempt(request.request_id)


class KvcakeScheduler(CakeScheduling, Scheduler):
    pass


class KvcakeAsyncScheduler(CakeScheduling, AsyncScheduler):
    pass
