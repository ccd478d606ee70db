"""The scheduler's side: what a step may compute of a prompt that is restored, and when it jumps.

It holds no store and no claim: it believes what workers reported last. A request has an epoch for
each time that it is begun; what is said of an earlier one is dropped. Knows nothing of vLLM.
"""
from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvcake.vllm.messages import WAIT, Alone, Begin, Front, Jump, Progress, Report, Save, Step

# An admission waits so many steps for the workers' first word on its prompt: pipelined schedulers
# hear it two steps late.
PATIENCE_STEPS = 3
# Advice on restorations that workers give after a step, beside that on what begins: it has its
# price, and few of a long queue can be admitted.
ADVISED = 64
LEARNS_FROM = 0.9  # of a step's tokens that are one request's: others' time is not its


@dataclass
class RequestKey:
    """What a request's chunks depend on beside its tokens."""
    salt: bytes = b""
    extras: dict[int, bytes] = field(default_factory=dict)  # by chunk


@dataclass
class _Request:
    key: RequestKey
    tokens: Sequence[int]  # vLLM's own list: it grows as the request is decoded
    prompt_tokens: int
    restores: bool  # it may be loaded, not just kept
    epoch: int
    cached: int = 0  # chunks that the prefix cache had as the epoch began: they are not loaded
    known_chunks: int = 0  # whose keys the workers can make
    told: bool = False  # workers know of it, from this epoch or one before
    restoring: bool = False
    progress: Progress | None = None  # of this epoch, from all ranks
    asked: int = 0  # times that its admission waited for the first report
    fresh: bool = True  # no step of this epoch was scheduled yet
    saved: int = 0  # chunks
    jump: tuple[int, int] | None = None  # from which token to which chunk, in the next step


class Planner:
    """Used by the scheduler's thread alone."""

    def __init__(self, *, chunk_tokens: int, block_tokens: int, ranks: int = 1,
                 policy: str = "cake", keep: str = "all") -> None:
        assert chunk_tokens % block_tokens == 0
        self._chunk, self._block, self._ranks = chunk_tokens, block_tokens, ranks
        self._policy, self._keep = policy, keep
        self._requests: dict[str, _Request] = {}
        self._next = Step()
        self._asked: list[str] = []  # restorations that vLLM asked for since the last step
        self._epochs = self._failures = 0

    # ---- requests come and go

    def add(self, request: str, tokens: Sequence[int], prompt_tokens: int, key: RequestKey, *,
            restores: bool = True, cached_tokens: int = 0) -> None:
        """A new request; `cached_tokens`: that vLLM's prefix cache has."""
        self.finish(request)
        self._requests[request] = _Request(key, tokens, prompt_tokens, restores, epoch=0)
        self._begin(request, cached_tokens)

    def preempt(self, request: str) -> None:
        """vLLM has taken its blocks."""
        if request in self._requests:
            self._end(request)
            self._begin(request, cached_tokens=0)

    def finish(self, request: str) -> None:
        """Finished or aborted, or unknown."""
        if request in self._requests:
            self._end(request)
            self._next.begins = [b for b in self._next.begins if b.request != request]
            if self._requests.pop(request).told:
                self._next.forgotten.append(request)

    def knows(self, request: str) -> bool:
        """Whether it is restored or kept."""
        return request in self._requests

    def retire(self) -> None:
        """Nothing is restored or kept any more."""
        self._policy, self._keep = "compute", "none"
        for request in self._requests:
            self._end(request)

    def _begin(self, request: str, cached_tokens: int) -> None:
        state = self._requests[request]
        self._epochs += 1
        chunks = (len(state.tokens) - 1) // self._chunk  # the last token is always computed
        full = len(state.tokens) // self._chunk
        cached = cached_tokens // self._chunk
        may_load = state.restores and self._policy != "compute" and chunks > cached
        state.epoch, state.restoring, state.progress = self._epochs, may_load, None
        state.asked, state.fresh = 0, True
        state.cached, state.known_chunks = cached, full
        if not may_load and self._keep == "none":
            return
        self._next.begins.append(Begin(
            request, self._epochs, state.key.salt, self._packed(state, 0, full), state.key.extras,
            chunks if may_load else 0, cached))

    def _end(self, request: str) -> None:
        state = self._requests[request]
        untold = [b for b in self._next.begins if b.epoch == state.epoch]
        if state.restoring and not untold:
            self._next.ends.append((request, state.epoch))
        for begin in untold:
            begin.restore_chunks = 0
        state.restoring, state.jump = False, None

    def _packed(self, state: _Request, first: int, end: int) -> bytes:
        return array.array("i", state.tokens[first * self._chunk:end * self._chunk]).tobytes()

    # ---- before and while a step is scheduled

    def matched(self, request: str, computed: int) -> int | None:
        """For a request that is to be admitted with `computed` tokens of the prefix cache: how many
        more are here. None: not now, its loads or its first report are waited for."""
        state = self._requests.get(request)
        if state is None or not state.restoring:
            return 0
        if len(self._asked) < ADVISED:
            self._asked.append(request)
        if computed // self._chunk < state.cached:  # the prefix cache has lost some since
            self._end(request)
            self._begin(request, computed)
        progress = state.progress
        if progress is None:
            state.asked += 1
            return None if state.asked <= PATIENCE_STEPS else 0
        if computed // self._chunk >= progress.chunks:
            return 0
        if progress.until == WAIT:
            return None
        return max(0, progress.front * self._chunk - computed)

    def admitted(self, request: str, external: int) -> None:
        """Blocks were allocated for `external` tokens that matched() said are here."""
        state = self._requests.get(request)
        if state is not None and external > 0:
            assert state.progress is not None
            end = state.progress.front
            state.jump = (end * self._chunk - external, end)

    def jump(self, request: str, computed: int) -> int | None:
        """For a running request: how many tokens are there after the jump, if it can jump now. The
        step has to schedule it, or unjump() takes it back."""
        state = self._requests.get(request)
        if state is None or not state.restoring:
            return None
        self._asked.append(request)
        progress = state.progress
        if progress is None or progress.front <= computed // self._chunk:
            return None
        if progress.until == WAIT and progress.front < progress.chunks:
            return None  # it would compute nothing in this step
        state.jump = (computed, progress.front)
        return progress.front * self._chunk

    def unjump(self, scheduled: dict[str, int]) -> list[tuple[str, int]]:
        """Requests that were to jump but that the step does not schedule, and what they have
        computed then."""
        undone = []
        for name, state in self._requests.items():
            if state.jump is not None and name not in scheduled:
                undone.append((name, state.jump[0]))
                state.jump = None
        return undone

    def cap(self, request: str, computed: int, new: int, *, running: bool) -> int:
        """How many of `new` tokens the step may compute; 0: a running request waits."""
        state = self._requests.get(request)
        if state is None or not state.restoring or state.progress is None or new <= 0:
            return new
        progress, here = state.progress, computed // self._chunk
        if here >= progress.chunks:
            return new
        if progress.until == WAIT:
            if running:
                return 0
            until = here + 1
        else:
            until = max(progress.until, here + 1)
        if until >= progress.chunks:
            return new  # what follows the last chunk is computed with it
        end = min(computed + new, until * self._chunk)
        whole = end // self._chunk * self._chunk
        return (whole if whole > computed else end) - computed

    # ---- with a step, and after it

    def step(self, scheduled: dict[str, tuple[int, int]],
             blocks_of: Callable[[str], Sequence[int]], tokens: int) -> Step:
        """What travels with a step that computes tokens [start, end) of each request."""
        step, self._next = self._next, Step()
        step.tokens, step.failures_seen = tokens, self._failures
        step.advise, self._asked = self._asked, []
        for name, (start, end) in scheduled.items():
            if end - start > 1 and end - start >= LEARNS_FROM * tokens:
                step.alone = Alone(name, start, end)
        for begin in step.begins:
            self._requests[begin.request].told = True
        for name, (start, end) in scheduled.items():
            state = self._requests.get(name)
            if state is None:
                continue
            if state.jump is not None:
                step.jumps.append(self._jump(name, state, blocks_of(name)))
            elif state.fresh:
                state.saved = max(state.saved, start // self._chunk)
            state.fresh = False
            if state.restoring:
                step.fronts.append(Front(name, state.epoch, start, end))
                if state.progress is not None and end // self._chunk >= state.progress.chunks:
                    self._end(name)
            self._save(step, name, state, end, blocks_of)
        return step

    def _jump(self, name: str, state: _Request, blocks: Sequence[int]) -> Jump:
        assert state.jump is not None
        (start, end), state.jump = state.jump, None
        first, a_chunk = start // self._chunk, self._chunk // self._block
        # Blocks that are full may be others', by the prefix cache.
        to = [block if i >= start // self._block else -1
              for i, block in enumerate(blocks[:end * a_chunk])][first * a_chunk:]
        assert len(to) == (end - first) * a_chunk, "vLLM has allocated fewer blocks than computed"
        state.saved = max(state.saved, end)
        return Jump(name, state.epoch, first, to)

    def _save(self, step: Step, name: str, state: _Request, end: int,
              blocks_of: Callable[[str], Sequence[int]]) -> None:
        if self._keep == "none":
            return
        known = len(state.tokens) if self._keep == "all" else state.prompt_tokens
        full = min(end, known) // self._chunk
        if full <= state.saved:
            return
        a_chunk = self._chunk // self._block
        more = self._packed(state, state.known_chunks, full) if full > state.known_chunks else b""
        state.known_chunks = max(full, state.known_chunks)
        blocks = list(blocks_of(name)[state.saved * a_chunk:full * a_chunk])
        step.saves.append(Save(name, state.saved, blocks, more))
        state.saved = full

    def hear(self, report: Report) -> None:
        """The workers' report, of all ranks together."""
        if report.failures > self._failures:
            # What was computed since is not kept: it is offered again as it is computed again, by
            # whatever requests vLLM sets back.
            self._failures = report.failures
            for name, state in self._requests.items():
                state.saved = 0
                self._end(name)
        for name, progress in report.progress.items():
            state = self._requests.get(name)
            if state is None or not state.restoring or progress.epoch != state.epoch:
                continue
            if progress.chunks == 0:
                self._end(name)
            elif progress.ranks == self._ranks:
                state.progress = progress
