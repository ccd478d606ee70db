"""Caches, restorations and chunks as objects; errors as exceptions."""
from __future__ import annotations

import array
import atexit
import ctypes
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvcake import _library
from kvcake._library import LIBRARY as _lib

Key = bytes  # 32 of them
IN_MEMORY, STORED = _library.IN_MEMORY, _library.STORED  # bits of what lookup() says
CHUNK_TOKENS = 128  # where nothing else is said
_LEVELS = {0: 5, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR,
           5: logging.CRITICAL}


class Error(Exception):
    """A call failed. `status` is one of kvcake.h's codes; the text names what was wrong."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple:
        """As it goes from one process to another, which makes it anew."""
        return type(self), (self.status, str(self))


def _check(status: int) -> None:
    if status == _library.OK:
        return
    name = _lib.kvcake_status_name(status).decode()
    message = _lib.kvcake_last_error().decode(errors="replace")
    raise Error(status, f"{name}: {message}" if message else name)


def version() -> str:
    """The library's version."""
    return _lib.kvcake_version().decode()


_log_function = _library.LOG_FUNCTION()  # kept alive while the library may call it


def set_log(logger: logging.Logger | None) -> None:
    """Has the library's warnings go to `logger`; None: to stderr again. Of the whole process."""
    global _log_function

    def write(_: object, level: int, message: bytes) -> None:
        logger.log(_LEVELS.get(level, logging.ERROR), "%s", message.decode(errors="replace"))

    made = _library.LOG_FUNCTION(write) if logger is not None else _library.LOG_FUNCTION()
    _check(_lib.kvcake_set_log(made, None))
    _log_function = made


# Threads of the library must not call into an interpreter that ends.
atexit.register(lambda: set_log(None))


@dataclass(frozen=True)
class Store:
    """A place that keeps chunks: what kvcake's `--store` takes, and limits of it."""
    where: str
    capacity_bytes: int = 0  # 0: the library's default
    load_rate_bytes_per_s: float = 0.0  # 0: as it is; else a slower link, for experiments
    load_latency_s: float = 0.0


class Progress(NamedTuple):
    """Where a restoration is, in chunks."""
    chunks: int
    front: int  # the first that is neither here nor computed
    back: int  # all from here on are here or computed
    claimed_first: int
    claimed_count: int
    computed: int
    loaded: int
    reused: int
    predicted_s: float


class Turn(NamedTuple):
    """What to compute next: "slice", "wait" or "done"."""
    kind: str
    first: int
    count: int
    wait_s: float


_KINDS = {_library.TURN_SLICE: "slice", _library.TURN_WAIT: "wait", _library.TURN_DONE: "done"}


class Stats(NamedTuple):
    """Counts of a cache, as kvcake.h explains them."""
    memory_chunks: int
    memory_referenced: int
    memory_cached: int
    restorations: int
    acquired: int
    reads: int
    read_bytes: int
    reads_failed: int
    reads_in_flight: int
    stored_chunks: int
    writes_queued: int
    writes_written: int
    writes_failed: int
    writes_dropped: int


def _keys(keys: Sequence[Key]) -> ctypes.Array:
    for key in keys:
        _check_key(key)
    made = (_library.Key * len(keys))()
    ctypes.memmove(made, b"".join(keys), 32 * len(keys))
    return made


def _key(key: Key) -> _library.Key:
    _check_key(key)
    return _library.Key.from_buffer_copy(key)


def _check_key(key: Key) -> None:
    if len(key) != 32:
        raise ValueError(f"a key has 32 bytes, not {len(key)}")


def _text(value: str) -> bytes:
    """C's text ends at the first null byte: what follows one would be left out."""
    if "\0" in value:
        raise ValueError(f"{value!r} has a null character")
    return value.encode()


class Chunk:
    """A chunk that is held: verified, unchanged and at its address until it is released. Release
    it, or use it as a context manager: the cache is not closed before."""

    def __init__(self, number: int, address: int, stride: int) -> None:
        self._number, self.address, self.stride = number, address, stride

    def __enter__(self) -> Chunk:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        _check(_lib.kvcake_release(self._number))


class Restoration:
    """One prompt that is restored. End it, or use it as a context manager."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> Restoration:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Loads that nobody else wants are cancelled; chunks that are held stay."""
        _check(_lib.kvcake_end(self._number))

    def progress(self) -> Progress:
        info = _library.ProgressInfo()
        _check(_lib.kvcake_progress(self._number, ctypes.byref(info)))
        return Progress(*(getattr(info, name) for name in Progress._fields))

    def claim_front(self, chunks_max: int, share: float = 1.0) -> Turn:
        """What the planner would have computed next, of at most so many chunks; a slice is claimed
        until `computed` says what became of it."""
        turn = _library.Turn()
        _check(_lib.kvcake_claim_front(self._number, chunks_max, share, ctypes.byref(turn)))
        return self._turn(turn)

    def claim(self, chunks: int) -> Turn:
        """Claims up to so many chunks from the front, whatever the planner thinks."""
        turn = _library.Turn()
        _check(_lib.kvcake_claim(self._number, chunks, ctypes.byref(turn)))
        return self._turn(turn)

    @staticmethod
    def _turn(turn: _library.Turn) -> Turn:
        return Turn(_KINDS[turn.kind], turn.first, turn.count, turn.wait_s)

    def computed(self, count: int, seconds: float = 0.0) -> None:
        """So many chunks of the slice were computed, in so many seconds; 0 teach the planner
        nothing, and it has single chunks computed while it does not know how long they take."""
        _check(_lib.kvcake_computed(self._number, count, seconds))

    def acquire(self, chunk: int) -> Chunk | None:
        """Holds a chunk that is here; None: it is not loaded, or was computed by the caller."""
        slabs = _library.Slabs()
        status = _lib.kvcake_acquire(self._number, chunk, ctypes.byref(slabs))
        if status == _library.NOT_FOUND:
            self.progress()  # which raises where it is the restoration that is not there
            return None
        _check(status)
        return Chunk(slabs.chunk, slabs.data, slabs.stride)


class Cache:
    """Stores, and memory for chunks. Calls may be made from any thread; close it at the end."""

    def __init__(self, name_space: str, *, layers: int, slab_bytes: int, chunk_tokens: int = 0,
                 stores: Iterable[Store] = (), memory_bytes: int = 0,
                 write_queue_share: float = 0.0, store_ttl_s: float = 0.0,
                 stall_timeout_s: float = 0.0, device: str = "") -> None:
        """`name_space` says all that the chunks' numbers and layout depend on. 0 and "" are the
        library's defaults."""
        self.layers, self.slab_bytes = layers, slab_bytes
        self.chunk_tokens = chunk_tokens or CHUNK_TOKENS
        listed = list(stores)
        array_of = (_library.Store * max(1, len(listed)))(*(
            _library.Store(where=_text(s.where), capacity_bytes=s.capacity_bytes,
                           load_rate_bytes_per_s=s.load_rate_bytes_per_s,
                           load_latency_s=s.load_latency_s) for s in listed))
        options = _library.Options(
            name_space=_text(name_space), layers=layers, chunk_tokens=self.chunk_tokens,
            slab_bytes=slab_bytes, stores=array_of, store_count=len(listed),
            memory_bytes=memory_bytes, write_queue_share=write_queue_share,
            store_ttl_s=store_ttl_s, stall_timeout_s=stall_timeout_s,
            device=_text(device) or None)
        number = ctypes.c_uint64()
        _check(_lib.kvcake_open(ctypes.byref(options), ctypes.byref(number)))
        self._number = number.value

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Error:
            if raised is None:
                raise  # else what was raised inside says more, and may be why chunks are held

    def close(self) -> None:
        """Writes what is queued. Error while chunks are held or other threads call."""
        _check(_lib.kvcake_close(self._number))

    def root(self, salt: bytes = b"") -> Key:
        """The key before a prompt's first: only prompts with the same salt share chunks."""
        key = _library.Key()
        _check(_lib.kvcake_root(self._number, salt, len(salt), ctypes.byref(key)))
        return bytes(key.bytes)

    def keys(self, parent: Key, tokens: Sequence[int] | bytes) -> list[Key]:
        """The keys of the full chunks of `tokens`: numbers, or 32 bits of each in the machine's
        order."""
        packed = tokens if isinstance(tokens, bytes) else array.array("i", tokens).tobytes()
        count = len(packed) // 4
        made = (_library.Key * (count // self.chunk_tokens))()
        _check(_lib.kvcake_keys(self._number, ctypes.byref(_key(parent)), packed, count, made,
                                len(made)))
        return [bytes(key.bytes) for key in made]

    @staticmethod
    def extend_key(key: Key, extra: bytes) -> Key:
        """The parent of a chunk that depends on something that is no token, as on an image."""
        extended = _library.Key()
        _check(_lib.kvcake_extend_key(ctypes.byref(_key(key)), extra, len(extra),
                                      ctypes.byref(extended)))
        return bytes(extended.bytes)

    def lookup(self, keys: Sequence[Key], timeout_s: float = 0.0) -> bytes:
        """A byte for each key: 0 where nobody is known to have it; STORED is set where a store
        has."""
        held = (ctypes.c_uint8 * len(keys))()
        _check(_lib.kvcake_lookup(self._number, _keys(keys), len(keys), timeout_s, held))
        return bytes(held)

    def begin(self, parent: Key, keys: Sequence[Key], *, policy: str = "cake",
              slice_chunks_max: int = 0) -> Restoration:
        """Begins to load a prompt's chunks; `policy` is "cake", "compute" or "load"."""
        if policy not in _library.POLICIES:
            raise ValueError(f"policy is {policy!r}, and may be one of {list(_library.POLICIES)}")
        request = _library.Request(
            keys=_keys(keys), key_count=len(keys), parent=ctypes.pointer(_key(parent)),
            policy=_library.POLICIES[policy], slice_chunks_max=slice_chunks_max)
        number = ctypes.c_uint64()
        _check(_lib.kvcake_begin(self._number, ctypes.byref(request), ctypes.byref(number)))
        return Restoration(number.value)

    def put(self, key: Key, parent: Key, position: int, address: int, stride: int = 0) -> bool:
        """Copies the chunk at `address` and queues it. False: there was no memory, it is counted
        in `writes_dropped`."""
        write = _library.Write(key=_key(key), parent=_key(parent), position=position,
                               data=address, stride=stride)
        status = _lib.kvcake_put(self._number, ctypes.byref(write))
        if status == _library.FULL:
            return False
        _check(status)
        return True

    def put_async(self, keys: Sequence[Key], parent: Key, first: int,
                  parts: Sequence[Sequence[int]], parts_per_slab: int = 1) -> None:
        """Has a thread of the library put chunks that follow each other from position `first` on
        and that no store holds: each as layers * parts_per_slab addresses of equally many bytes,
        which stay as they are until put_wait() has returned."""
        wanted = self.layers * parts_per_slab
        if [len(of_chunk) for of_chunk in parts] != [wanted] * len(keys):
            raise ValueError(f"parts must have {wanted} addresses for each of {len(keys)} keys")
        writes = (_library.AsyncWrite * len(keys))(*(
            _library.AsyncWrite(key=_key(key), parent=_key(keys[i - 1] if i > 0 else parent),
                                position=first + i, parts=(ctypes.c_void_p * wanted)(*parts[i]),
                                parts_per_slab=parts_per_slab) for i, key in enumerate(keys)))
        _check(_lib.kvcake_put_async(self._number, writes, len(keys)))

    def put_wait(self) -> tuple[int, int]:
        """Puts what the library's thread has not begun to, and sleeps until nothing that
        put_async() was given is read any more: how many chunks have been kept since the last
        call, and how many there was no memory for."""
        kept, dropped = ctypes.c_uint64(), ctypes.c_uint64()
        _check(_lib.kvcake_put_wait(self._number, ctypes.byref(kept), ctypes.byref(dropped)))
        return kept.value, dropped.value

    def flush(self) -> None:
        """Sleeps until all that was put is written or has failed."""
        _check(_lib.kvcake_flush(self._number))

    def learn(self, prefix_tokens: int, tokens: int, seconds: float) -> None:
        """What computing tokens of any prompt after others took; the planner counts with it. Not
        what `Restoration.computed` was told."""
        _check(_lib.kvcake_learn(self._number, prefix_tokens, tokens, seconds))

    def wait(self, timeout_s: float) -> None:
        """Sleeps until something came since this thread waited last, or for so long."""
        _check(_lib.kvcake_wait(self._number, timeout_s))

    def stats(self) -> Stats:
        info = _library.StatsInfo()
        _check(_lib.kvcake_stats(self._number, ctypes.byref(info)))
        return Stats(*(getattr(info, name) for name in Stats._fields))
