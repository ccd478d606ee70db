"""A worker's side: owns keys, claims, loads and saves of one rank. Blocks are written by the jump
alone, from chunks that are acquired, all or none. Knows nothing of vLLM or torch.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvcake.cache import IN_MEMORY, STORED, Cache, Chunk, Error, Key, Restoration
from kvcake.vllm.messages import WAIT, Alone, Begin, Front, Jump, Progress, Report, Save, Step
from kvcake.vllm.stats import Counts

logger = logging.getLogger("vllm.kvcake")

# A step in which nobody computes has time until something came, but vLLM hears of new requests
# between steps only.
IDLE_WAIT_S = 0.002

# After a look that nobody answered in time none waits for so many times as long, and twice as long
# after each more: a store that is silent shall not stop every step.
QUIET_LOOKS, QUIET_S_MAX = 20, 30.0


class Blocks(Protocol):
    """vLLM's KV cache on this rank, as blocks of all layers."""

    def write(self, chunks: Sequence[Chunk], blocks: Sequence[int]) -> None:
        """Copies chunks to blocks, so many a chunk; -1: the block is left out. Done, or enqueued
        before the step's computation, when it returns; chunks may be released then."""

    def addresses(self, blocks: Sequence[int]) -> list[int] | None:
        """Where the blocks of one chunk lie, layer after layer; None where they are not in host
        memory, or in more pieces."""

    def read(self, chunks: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Copies the blocks of each chunk to memory that stays until the next one is asked for: its
        address, and the stride of layers."""

    def settle(self) -> None:
        """Sleeps until the step has computed, so that the clock says what it took: a GPU computes
        after the calls have returned."""


@dataclass
class _Open:
    restoration: Restoration
    epoch: int
    chunks: int
    loaded: int = 0  # by jumps
    computed: int = 0
    met: int = 0  # where the last jump began


@dataclass
class _Request:
    root: Key
    keys: list[Key] = field(default_factory=list)
    extras: dict[int, bytes] = field(default_factory=dict)


class Worker:
    """Used by the worker's thread alone."""

    def __init__(self, cache: Cache, blocks: Blocks, *, chunk_tokens: int, blocks_a_chunk: int,
                 slice_chunks_max: int, policy: str = "cake", rank: int = 0, ranks: int = 1,
                 look_s: float = 0.005, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache, self._blocks, self._clock = cache, blocks, clock
        self._chunk, self._a_chunk = chunk_tokens, blocks_a_chunk
        self._slice_max, self._policy, self._look_s = slice_chunks_max, policy, look_s
        self._ranks = ranks
        self._requests: dict[str, _Request] = {}
        self._open: dict[str, _Open] = {}
        self._claims: set[str] = set()  # on the advice of the last report
        self._closed: dict[str, Progress] = {}  # to be reported once
        self._step: Step | None = None
        self._advised: list[str] = []  # with the report of the step, in vLLM's order
        self._began = 0.0
        self._copying_s = 0.0  # of the step
        self._looking_s = 0.0  # of the step
        self._quiet_s = 0.0  # how long no look waits after the last that nobody answered
        self._quiet_until = 0.0
        self._last: Alone | None = None  # what the step before computed, which ended then
        self._last_ended = 0.0
        self._idle = False  # nobody computed in the step, and nobody waits for a first report
        self._retired = False
        self._failures = 0
        self._failed_blocks: set[int] = set()
        self._seconds_a_token = 0.0
        self.counts = Counts(first_rank=rank == 0)

    # ---- before the step

    def bind(self, step: Step) -> None:
        """What the scheduler said with the step: ends, begins, claims for what it computes."""
        self._cache.put_wait()  # the step may write into any block
        self._step, self._began, self._copying_s, self._looking_s = step, self._clock(), 0.0, 0.0
        self._advised = [*dict.fromkeys(step.advise + [begin.request for begin in step.begins])]
        for name, epoch in step.ends:
            if (opened := self._open.get(name)) and opened.epoch == epoch:
                self._close(name)
        for name in step.forgotten:
            if name in self._open:
                self._close(name)
            self._requests.pop(name, None)
        for begin in step.begins:
            self._begin(begin)
        self._give_back(self._claims - {front.request for front in step.fronts})
        self._claims = set()
        for front in step.fronts:
            if opened := self._find(front.request, front.epoch):
                self._claim_ahead(opened, front)

    # Claims that the step does not compute. To the planner a slice that is claimed is computed now:
    # one that waits in a queue for long would keep all others from computing.
    def _give_back(self, names: Iterable[str]) -> None:
        for name in names:
            opened = self._open.get(name)
            if opened is not None and opened.restoration.progress().claimed_count > 0:
                opened.restoration.computed(0)

    def load(self) -> None:
        """The jumps, before the step computes."""
        assert self._step is not None
        for jump in self._step.jumps:
            self._jump(jump)

    def _find(self, name: str, epoch: int) -> _Open | None:
        opened = self._open.get(name)
        return opened if opened is not None and opened.epoch == epoch else None

    def _close(self, name: str) -> None:
        opened = self._open.pop(name)
        opened.restoration.end()
        if opened.loaded > 0 or opened.computed > 0:
            saved_s = opened.loaded * self._chunk * self._seconds_a_token
            self.counts.restored(opened.loaded * self._chunk, opened.computed * self._chunk,
                                 opened.met, opened.chunks, saved_s)

    def retire(self) -> None:
        """Nothing is loaded or kept any more, whatever the scheduler says. Between steps, and on
        all ranks between the same ones."""
        for name, opened in list(self._open.items()):
            self._closed[name] = Progress(opened.epoch)
            self._close(name)
        self._requests.clear()  # without which nothing is saved
        self._retired = True

    def _begin(self, begin: Begin) -> None:
        if self._retired:
            self._closed[begin.request] = Progress(begin.epoch)
            return
        if begin.request in self._open:
            self._close(begin.request)
        root = self._cache.root(begin.salt)
        request = self._requests[begin.request] = _Request(root, [], begin.extras)
        self._extend(request, begin.tokens)
        if begin.restore_chunks == 0:
            return
        keys = request.keys[:begin.restore_chunks]
        held = self._look(keys)
        chunks = len(held.rstrip(b"\0"))  # what nobody has at the end is no part of it
        if not any(held[begin.cached_chunks:]):
            self._closed[begin.request] = Progress(begin.epoch)
            return
        try:
            restoration = self._cache.begin(root, keys[:chunks], policy=self._policy,
                                            slice_chunks_max=self._slice_max)
        except Error as error:  # it is computed
            logger.warning("kvcake: request %s is not restored: %s", begin.request, error)
            self._closed[begin.request] = Progress(begin.epoch)
            return
        opened = self._open[begin.request] = _Open(restoration, begin.epoch, chunks)
        self._confirm(opened, begin.cached_chunks)

    # A byte for each key of one prompt. What begins in a step shares one look's time: prompts are
    # looked for one after another, as a bucket is asked for no more of a prompt than what follows
    # on what it has.
    def _look(self, keys: Sequence[Key]) -> bytes:
        known = self._cache.lookup(keys)
        began = self._clock()
        patience = self._look_s - self._looking_s
        if patience <= 0 or began < self._quiet_until or all(known):
            return known
        held = self._cache.lookup(keys, patience)
        took = self._clock() - began
        self._looking_s += took
        if took < patience or held != known:
            self._quiet_s = 0.0
        elif patience > self._look_s / 2:  # what little was left says nothing of the stores
            self._quiet_s = min(max(2 * self._quiet_s, QUIET_LOOKS * self._look_s), QUIET_S_MAX)
            self._quiet_until = began + took + self._quiet_s
        return held

    def _extend(self, request: _Request, tokens: bytes) -> None:
        if not tokens:
            return
        size = 4 * self._chunk
        if not request.extras:
            parent = request.keys[-1] if request.keys else request.root
            request.keys += self._cache.keys(parent, tokens)
            return
        for at in range(0, len(tokens) - size + 1, size):
            parent = request.keys[-1] if request.keys else request.root
            if extra := request.extras.get(len(request.keys)):
                parent = self._cache.extend_key(parent, extra)
            request.keys += self._cache.keys(parent, tokens[at:at + size])

    # Nothing of what the step computes should be loading any more.
    def _claim_ahead(self, opened: _Open, front: Front) -> None:
        start, end = front.start // self._chunk, min(-(-front.end // self._chunk), opened.chunks)
        progress = opened.restoration.progress()
        # Chunks that the prefix cache has by now; not those of a jump, which are loaded. A claim
        # that begins there is the step's already.
        if progress.front < start and not any(jump.request == front.request
                                              for jump in self._step.jumps):
            self._confirm(opened, start)
            progress = opened.restoration.progress()
        claimed_end = progress.claimed_first + progress.claimed_count
        if progress.claimed_count > 0 and claimed_end < end:
            opened.restoration.computed(0)
            progress = opened.restoration.progress()
        if progress.claimed_count == 0 and progress.front < end:
            opened.restoration.claim(end - progress.front)

    # All chunks before `end` were computed, or are in vLLM's prefix cache.
    @staticmethod
    def _confirm(opened: _Open, end: int) -> None:
        restoration = opened.restoration
        while True:
            progress = restoration.progress()
            if progress.claimed_count == 0:
                if progress.front >= min(end, opened.chunks):
                    return
                restoration.claim(min(end, opened.chunks) - progress.front)
                continue
            first, last = progress.claimed_first, progress.claimed_first + progress.claimed_count
            computed = max(0, min(end, last) - first)
            restoration.computed(computed)

    def _jump(self, jump: Jump) -> None:
        began = self._clock()
        opened = self._find(jump.request, jump.epoch)
        count = len(jump.blocks) // self._a_chunk
        held: list[Chunk] = []
        try:
            for i in range(jump.first, jump.first + count):
                chunk = opened.restoration.acquire(i) if opened is not None else None
                if chunk is None:
                    break
                held.append(chunk)
            if len(held) == count:
                self._blocks.write(held, jump.blocks)
        finally:
            for chunk in held:
                chunk.release()
        if len(held) < count:
            self._fail(jump)
        else:
            assert opened is not None
            opened.loaded += count
            opened.met = jump.first
            took = self._clock() - began
            self._copying_s += took
            self.counts.copied(count * self._chunk, took)

    # The order of what travels excludes it, but for a jump that was on its way to a worker that has
    # retired. Should it happen, vLLM computes the blocks again; what is computed on top of them
    # until the scheduler knows is not kept.
    def _fail(self, jump: Jump) -> None:
        if self._ranks > 1 and not self._retired:  # as all ranks have, then
            # Other ranks compute on top of what is missing here, and do not know it.
            raise RuntimeError(f"kvcake: chunks of request {jump.request} are not in memory")
        self._failures += 1
        self._failed_blocks.update(block for block in jump.blocks if block >= 0)
        if self._find(jump.request, jump.epoch):
            self._close(jump.request)
        self._closed[jump.request] = Progress(jump.epoch)

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    # ---- after the step

    def computed(self) -> None:
        """The step has computed: its time is learned from, what it filled is kept."""
        step, self._step = self._step, None
        if step is None:
            return
        self._learn(step.alone)
        for front in step.fronts:
            if opened := self._find(front.request, front.epoch):
                self._computed(front, opened)
        for save in step.saves:
            self._save(save, keep=step.failures_seen == self._failures)
        self._last_ended = self._clock()
        self._idle = step.tokens == 0 and not step.begins

    # From the end of the step before where that was of the same prompt: scheduling costs, too.
    def _learn(self, alone: Alone | None) -> None:
        last, self._last = self._last, alone
        if alone is None:
            return
        self._blocks.settle()
        goes_on = last is not None and (last.request, last.end) == (alone.request, alone.start)
        began = self._last_ended if goes_on else self._began
        took = self._clock() - began - self._copying_s - self._looking_s
        count = alone.end - alone.start
        self._seconds_a_token = took / count
        self._cache.learn(alone.start, count, took)

    def _computed(self, front: Front, opened: _Open) -> None:
        end = front.end // self._chunk
        self._confirm(opened, end)
        # Also those that have been loaded meanwhile, which the restoration does not count.
        opened.computed += max(0, min(end, opened.chunks) - front.start // self._chunk)
        if end >= opened.chunks:
            self._close(front.request)

    def _save(self, save: Save, keep: bool) -> None:
        request = self._requests.get(save.request)
        if request is None:
            return
        self._extend(request, save.tokens)
        if not keep:
            self.counts.dropped(len(save.blocks) // self._a_chunk)
            return
        keys = request.keys[save.first:save.first + len(save.blocks) // self._a_chunk]
        parent = request.keys[save.first - 1] if save.first > 0 else request.root
        blocks = [save.blocks[i * self._a_chunk:(i + 1) * self._a_chunk] for i in range(len(keys))]
        parts = [self._blocks.addresses(of_chunk) for of_chunk in blocks]
        if all(part is not None for part in parts):
            # Copied while the scheduler plans; the next step begins when that is done.
            self._cache.put_async(keys, parent, save.first, parts, self._a_chunk)
            return
        held = self._cache.lookup(keys)
        wanted = [i for i in range(len(keys)) if not held[i] & STORED]
        wanted.sort(key=lambda i: not held[i] & IN_MEMORY)  # those first that need no memory
        read = self._blocks.read([blocks[i] for i in wanted])
        for done, (i, (address, stride)) in enumerate(zip(wanted, read), 1):
            before = keys[i - 1] if i > 0 else parent
            put = self._cache.put(keys[i], before, save.first + i, address, stride)
            if not put and not held[i] & IN_MEMORY:
                self.counts.dropped(len(wanted) - done)  # nor is there memory for the others
                return

    def report(self) -> Report | None:
        """What the scheduler hears, with the advice for its next step, which is a claim already."""
        self.computed()
        if self._idle and self._open:
            self._cache.wait(IDLE_WAIT_S)
        stats = self._cache.stats()
        self.counts.of_cache(stats.writes_written, stats.writes_dropped + stats.writes_failed,
                             stats.reads_failed)
        progress, self._closed = self._closed, {}
        left = self._slice_max  # of the next step, which vLLM gives to requests in turn
        for name in self._advised:
            if opened := self._open.get(name):
                advice = progress[name] = self._advise(opened, max(1, left))
                if advice.until > advice.front:
                    self._claims.add(name)
                    left -= advice.until - advice.front
        if not progress and self._failures == 0:
            return None
        return Report(progress, self._failures)

    def _advise(self, opened: _Open, chunks_max: int) -> Progress:
        restoration = opened.restoration
        if restoration.progress().claimed_count > 0:  # a claim on advice that the step did not take
            restoration.computed(0)
        front = min(restoration.progress().front, opened.chunks)
        turn = restoration.claim_front(chunks_max, chunks_max / self._slice_max)
        until = {"wait": WAIT, "done": opened.chunks}.get(turn.kind, turn.first + turn.count)
        return Progress(opened.epoch, opened.chunks if turn.kind == "done" else front, until,
                        opened.chunks)

    def close(self) -> None:
        """Gives all back, and closes the cache, which writes what is queued."""
        try:
            for name in list(self._open):
                self._close(name)
        finally:  # a cache that has lost its restorations for want of memory writes what it has
            self._cache.close()
