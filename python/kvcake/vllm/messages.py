"""What travels between the scheduler and its workers, once a step (docs/vllm.md)."""
from __future__ import annotations

from dataclasses import dataclass, field

WAIT = -1  # as Progress.until: the planner would rather wait for loads than compute


@dataclass
class Begin:
    """A request, or its next epoch: what the worker makes keys of, and whether to load."""
    request: str
    epoch: int
    salt: bytes
    tokens: bytes  # of its full chunks, 32 bits each
    extras: dict[int, bytes] = field(default_factory=dict)  # by chunk, full or not: no tokens
    restore_chunks: int = 0  # of them may be loaded; 0: none
    cached_chunks: int = 0  # that vLLM's prefix cache has


@dataclass
class Front:
    """The step computes tokens [start, end) of the request."""
    request: str
    epoch: int
    start: int
    end: int


@dataclass
class Alone:
    """The step computes tokens [start, end) of the request, and next to nothing else: what it takes
    is what they cost."""
    request: str
    start: int
    end: int


@dataclass
class Jump:
    """Chunks from `first` on are copied to these blocks before the step computes; -1: a block that
    is not to be written, as others may have it."""
    request: str
    epoch: int
    first: int
    blocks: list[int]


@dataclass
class Save:
    """Chunks from `first` on are full after the step, in these blocks. `tokens`: of chunks that the
    worker knows no key of yet."""
    request: str
    first: int
    blocks: list[int]
    tokens: bytes = b""


@dataclass
class Step:
    """From the scheduler, with a step; applied in this order."""
    ends: list[tuple[str, int]] = field(default_factory=list)  # restorations: request, epoch
    forgotten: list[str] = field(default_factory=list)  # requests that are over
    begins: list[Begin] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    fronts: list[Front] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    advise: list[str] = field(default_factory=list)  # requests, beside those of `begins`
    alone: Alone | None = None
    tokens: int = 0  # that the step computes, of all requests
    failures_seen: int = 0  # jumps that failed, as far as the scheduler has heard


@dataclass
class Progress:
    """The state of one restoration, in chunks, as `ranks` workers see it: the worst of all."""
    epoch: int
    front: int = 0  # the first chunk that is neither here nor computed
    until: int = WAIT  # the planner would compute [front, until) next
    chunks: int = 0  # of the restoration; 0: there is nothing to load, or nothing any more
    ranks: int = 1

    def worst(self, other: Progress) -> Progress:
        if self.epoch != other.epoch:
            return max(self, other, key=lambda progress: progress.epoch)
        return Progress(self.epoch, min(self.front, other.front), min(self.until, other.until),
                        min(self.chunks, other.chunks), self.ranks + other.ranks)


@dataclass
class Report:
    """From a worker, after a step."""
    progress: dict[str, Progress] = field(default_factory=dict)
    failures: int = 0  # jumps that failed, since the worker began

    def aggregate(self, other: Report) -> Report:
        merged = dict(self.progress)
        for request, progress in other.progress.items():
            mine = merged.get(request)
            merged[request] = mine.worst(progress) if mine else progress
        return type(self)(merged, max(self.failures, other.failures))
