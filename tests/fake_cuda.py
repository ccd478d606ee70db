"""A CUDA device that is played, for what kvcake.vllm.blocks uses of torch.cuda: copies that are
asked for are made late, as late as streams and events allow and in an order that `Card.advance`
draws, from and to the memory as it is then. So memory that is used again too early is seen in the
bytes, and so is a block that is read before it was written.
"""
from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)


class Event:
    """As long as it was not recorded, it is over, as CUDA has it."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._mark: _Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._card.current
        self._mark = _Mark(stream)
        stream.queue.append(self._mark)

    def query(self) -> bool:
        return self._mark is None or self._mark.passed

    def synchronize(self) -> None:
        if self._mark is not None:
            self._mark.stream.run_until(self._mark)

    @property
    def mark(self) -> _Mark | None:
        return self._mark


class _Mark:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.passed = stream, False


class Stream:
    """What was asked for and not done yet: calls, marks of events, marks that are waited for."""

    def __init__(self, card: Card, name: str) -> None:
        self.card, self.name = card, name
        self.queue: collections.deque[Callable[[], None] | _Mark | tuple[_Mark]] = \
            collections.deque()

    def wait_event(self, event: Event) -> None:
        if event.mark is not None:
            self.queue.append((event.mark,))

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.card)
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        mark = _Mark(self)
        self.queue.append(mark)
        self.run_until(mark)

    def run_until(self, mark: _Mark) -> None:
        while not mark.passed:
            if not self.step():
                self.queue[0][0].stream.run_until(self.queue[0][0])  # type: ignore[index]

    def step(self) -> bool:
        """Does the next thing; False: it waits for another stream."""
        first = self.queue[0]
        if isinstance(first, tuple) and not first[0].passed:
            return False
        self.queue.popleft()
        if isinstance(first, _Mark):
            first.passed = True
        elif not isinstance(first, tuple):
            first()
        return True


class Card:
    """The device, and what stands for the module torch in code that is tried on it."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.computing = self.stream("computing")  # what the model computes on
        self.current = self.computing
        self.blocking_copies = 0
        self._pinned: list[range] = []

    def stream(self, name: str) -> Stream:
        made = Stream(self, name)
        self.streams.append(made)
        return made

    def advance(self, rng: random.Random, steps: int) -> None:
        """Streams do so many things, in any order that they may."""
        for _ in range(steps):
            if ready := [s for s in self.streams if s.queue]:
                rng.choice(ready).step()

    def finish(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def tensor(self, data: torch.Tensor) -> OnCard:
        made = data.as_subclass(OnCard)
        made.card = self
        return made

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(tensor.data_ptr() in memory for memory in self._pinned)

    # ---- as `torch` has them

    @property
    def torch(self) -> Any:
        return _Torch(self)

    def empty(self, *shape: Any, pin_memory: bool = False, device: torch.device | None = None,
              **fields: Any) -> torch.Tensor:
        made = torch.empty(*shape, **fields)
        if device is not None:
            assert device == DEVICE
            return self.tensor(made)
        if pin_memory:
            self._pinned.append(range(made.data_ptr(), made.data_ptr() + made.nbytes))
        return made

    def copy(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        to, source = (one.as_subclass(torch.Tensor) if isinstance(one, OnCard) else one
                      for one in (to, source))
        self.current.queue.append(lambda: to.copy_(source))
        if not non_blocking:
            self.blocking_copies += 1
            self.current.synchronize()

    def enqueue(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """A kernel, on memory of the card alone."""
        def plain(one: Any) -> Any:
            assert isinstance(one, OnCard) or not isinstance(one, torch.Tensor)
            return one.as_subclass(torch.Tensor) if isinstance(one, OnCard) else one

        given = [plain(one) for one in args], {name: plain(one) for name, one in kwargs.items()}
        self.current.queue.append(lambda: operation(*given[0], **given[1]))


class _Torch:
    def __init__(self, card: Card) -> None:
        self._card, self.empty, self.cuda = card, card.empty, _Cuda(card)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Cuda:
    def __init__(self, card: Card) -> None:
        self._card = card

    def Stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return self._card.stream(f"side {len(self._card.streams)}")

    def Event(self) -> Event:
        return Event(self._card)

    def current_stream(self, device: torch.device | None = None) -> Stream:
        return self._card.current

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._card.current = self._card.current, stream
        try:
            yield
        finally:
            self._card.current = before


class OnCard(torch.Tensor):
    """Memory of the card, and views of it."""
    card: Card

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.device.__get__:
            return DEVICE
        card = next(one.card for one in args if isinstance(one, OnCard))
        if func is torch.Tensor.copy_:
            to, source = args
            host = [one for one in args if not isinstance(one, OnCard)]
            # CUDA waits where the host's memory is not pinned.
            late = (kwargs or {}).get("non_blocking", False) and all(map(card.is_pinned, host))
            card.copy(to, source, late)
            return to
        if func in (torch.Tensor.index_copy_, torch.index_select):
            card.enqueue(func, *args, **(kwargs or {}))
            return (kwargs or {}).get("out", args[0])
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, OnCard):
            made.card = card
        return made
