"""libkvcake.so.0 by ctypes: its structures and calls as kvcake.h declares them, and nothing else."""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint8,
                    c_uint64, c_void_p)

ABI = 0

OK, NOT_FOUND, FULL, TIMEOUT, BUSY = 0, 3, 6, 8, 9
IN_MEMORY, STORED = 1, 2
TURN_SLICE, TURN_WAIT, TURN_DONE = 0, 1, 2
POLICIES = {"cake": 0, "compute": 1, "load": 2}


class Sized(ctypes.Structure):
    """A structure that begins with its size; zeros otherwise, which are the defaults."""

    def __init__(self, **fields: object) -> None:
        """ValueError for a number that its field cannot hold, which ctypes would cut."""
        super().__init__(ctypes.sizeof(self), **fields)
        for name, value in fields.items():
            if isinstance(value, int) and (getattr(self, name) or 0) != value:
                raise ValueError(f"{name} cannot be {value}")


class Key(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * 32)]


class Store(Sized):
    _fields_ = [("struct_size", c_size_t), ("where", c_char_p), ("capacity_bytes", c_uint64),
                ("load_rate_bytes_per_s", c_double), ("load_latency_s", c_double)]


class Options(Sized):
    _fields_ = [("struct_size", c_size_t), ("name_space", c_char_p), ("layers", c_int32),
                ("chunk_tokens", c_int32), ("slab_bytes", c_uint64), ("stores", POINTER(Store)),
                ("store_count", c_size_t), ("memory_bytes", c_uint64),
                ("write_queue_share", c_double), ("store_ttl_s", c_double),
                ("stall_timeout_s", c_double), ("device", c_char_p)]


class Request(Sized):
    _fields_ = [("struct_size", c_size_t), ("keys", POINTER(Key)), ("key_count", c_size_t),
                ("parent", POINTER(Key)), ("policy", c_int32), ("slice_chunks_max", c_int32)]


class ProgressInfo(Sized):
    _fields_ = [("struct_size", c_size_t), ("chunks", c_int32), ("front", c_int32),
                ("back", c_int32), ("claimed_first", c_int32), ("claimed_count", c_int32),
                ("computed", c_int32), ("loaded", c_int32), ("reused", c_int32),
                ("predicted_s", c_double)]


class Turn(Sized):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("first", c_int32),
                ("count", c_int32), ("wait_s", c_double)]


class Slabs(Sized):
    _fields_ = [("struct_size", c_size_t), ("chunk", c_uint64), ("data", c_void_p),
                ("stride", c_uint64)]


class Write(Sized):
    _fields_ = [("struct_size", c_size_t), ("key", Key), ("parent", Key), ("position", c_int32),
                ("data", c_void_p), ("stride", c_uint64)]


class AsyncWrite(Sized):
    _fields_ = [("struct_size", c_size_t), ("key", Key), ("parent", Key), ("position", c_int32),
                ("parts", POINTER(c_void_p)), ("parts_per_slab", c_size_t)]


class StatsInfo(Sized):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in (
        "memory_chunks", "memory_referenced", "memory_cached", "restorations", "acquired", "reads",
        "read_bytes", "reads_failed", "reads_in_flight", "stored_chunks", "writes_queued",
        "writes_written", "writes_failed", "writes_dropped")]


STRUCTURES = {"kvcake_key": Key, "kvcake_store": Store, "kvcake_options": Options,
              "kvcake_request": Request, "kvcake_progress_info": ProgressInfo,
              "kvcake_turn": Turn, "kvcake_slabs": Slabs, "kvcake_write": Write,
              "kvcake_async_write": AsyncWrite,
              "kvcake_stats_info": StatsInfo}

LOG_FUNCTION = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class Int32(c_int32):
    """An argument that is refused where it does not fit, which ctypes would cut."""

    @classmethod
    def from_param(cls, value: int) -> c_int32:
        """ValueError, which ctypes makes its ArgumentError, for what has more bits."""
        if c_int32(value).value != value:
            raise ValueError(f"{value} has more than 32 bits")
        return c_int32(value)


_id = c_uint64
# Name: what it returns, then its arguments.
CALLS: dict[str, tuple] = {
    "kvcake_status_name": (c_char_p, c_int),
    "kvcake_last_error": (c_char_p,),
    "kvcake_version": (c_char_p,),
    "kvcake_set_log": (c_int, LOG_FUNCTION, c_void_p),
    "kvcake_open": (c_int, POINTER(Options), POINTER(_id)),
    "kvcake_close": (c_int, _id),
    "kvcake_root": (c_int, _id, c_char_p, c_size_t, POINTER(Key)),
    "kvcake_keys": (c_int, _id, POINTER(Key), c_void_p, c_size_t, POINTER(Key), c_size_t),
    "kvcake_extend_key": (c_int, POINTER(Key), c_char_p, c_size_t, POINTER(Key)),
    "kvcake_lookup": (c_int, _id, POINTER(Key), c_size_t, c_double, POINTER(c_uint8)),
    "kvcake_begin": (c_int, _id, POINTER(Request), POINTER(_id)),
    "kvcake_end": (c_int, _id),
    "kvcake_progress": (c_int, _id, POINTER(ProgressInfo)),
    "kvcake_claim_front": (c_int, _id, Int32, c_double, POINTER(Turn)),
    "kvcake_claim": (c_int, _id, Int32, POINTER(Turn)),
    "kvcake_computed": (c_int, _id, Int32, c_double),
    "kvcake_acquire": (c_int, _id, Int32, POINTER(Slabs)),
    "kvcake_release": (c_int, _id),
    "kvcake_put": (c_int, _id, POINTER(Write)),
    "kvcake_put_async": (c_int, _id, POINTER(AsyncWrite), c_size_t),
    "kvcake_put_wait": (c_int, _id, POINTER(c_uint64), POINTER(c_uint64)),
    "kvcake_flush": (c_int, _id),
    "kvcake_learn": (c_int, _id, Int32, Int32, c_double),
    "kvcake_wait": (c_int, _id, c_double),
    "kvcake_stats": (c_int, _id, POINTER(StatsInfo)),
}


def _path() -> str:
    """KVCAKE_LIBRARY, else the library inside the wheel, else the system's."""
    if named := os.environ.get("KVCAKE_LIBRARY"):
        return named
    name = f"libkvcake.so.{ABI}"
    inside = pathlib.Path(__file__).parent / name
    return str(inside) if inside.exists() else name


def load() -> ctypes.CDLL:
    """The library, with every call typed. OSError where there is none."""
    library = ctypes.CDLL(_path())
    for name, (returns, *arguments) in CALLS.items():
        call = getattr(library, name)
        call.restype, call.argtypes = returns, arguments
    return library


LIBRARY = load()
