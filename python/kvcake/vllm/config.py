"""What `kv_connector_extra_config` may say, checked; and which vLLM this is."""
from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvcake.cache import Store

TESTED = ("0.31", "0.32")
CHUNK_TOKENS = 128  # at least: blocks are smaller on GPUs
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*://"  # of a store that is no directory


@dataclass(frozen=True)
class Config:
    """`stores` is a list of directories, the fastest first; or of objects with the fields of
    kvcake.Store."""
    stores: tuple[Store, ...] = ()
    policy: str = "cake"  # "compute": nothing is loaded; "load": the whole hit is waited for
    keep: str = "all"  # chunks that are stored: "all", "prompts", or "none"
    memory_bytes: int = 1 << 30  # of each worker: for chunks that come, are kept, or are cached
    store_capacity_bytes: int = 0  # 0: kvcake's default
    store_ttl_s: float = 0.0  # chunks that nobody has used for so long go; 0: never
    load_rate: float = 0.0  # bytes/s of each store and worker, for experiments; 0: as it is
    stall_timeout_s: float = 30.0  # a store that is silent for so long is given up
    look_s: float = 0.005  # a step waits so long to hear what stores have
    weights_id: str = ""  # names the weights where their files cannot be read
    experimental_cuda: bool = False

    def listed(self) -> list[Store]:
        return [Store(store.where, store.capacity_bytes or self.store_capacity_bytes,
                      store.load_rate_bytes_per_s or self.load_rate, store.load_latency_s)
                for store in self.stores]


_MOST = {"look_s": 60.0}  # steps wait for so long
_CHOICES = {"policy": ("cake", "compute", "load"), "keep": ("all", "prompts", "none")}


def read_config(given: Mapping[str, Any]) -> Config:
    """ValueError that names the option and what it may be."""
    known = {one.name: one for one in fields(Config)}
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"kvcake: kv_connector_extra_config has no {name!r}; it knows "
                             f"{', '.join(known)}")
        if name == "stores":
            read[name] = _stores(value)
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise ValueError(f"kvcake: {name} is {value!r}, must be one of {_CHOICES[name]}")
            read[name] = value
        else:
            read[name] = _scalar(name, value, type(known[name].default))
    if not read.get("stores"):
        raise ValueError('kvcake: name a directory to keep chunks in: '
                         'kv_connector_extra_config {"stores": ["/var/cache/kvcake"]}')
    return Config(**read)


def _scalar(name: str, value: Any, wanted: type) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) \
        and 0 <= value < 1 << 64 and value <= _MOST.get(name, value)
    fits = {bool: isinstance(value, bool), str: isinstance(value, str), float: is_number,
            int: is_number and int(value) == value}[wanted]
    if not fits:
        number = "a number from 0" + (f" to {_MOST[name]:g}" if name in _MOST else "")
        raise ValueError(f"kvcake: {name} is {value!r}, must be "
                         f"{ {bool: 'true or false', str: 'text'}.get(wanted, number) }")
    return wanted(value)


def _stores(value: Any) -> tuple[Store, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"kvcake: stores is {value!r}, must be a list of directories")
    kinds = {one.name: str if one.name == "where" else type(one.default) for one in fields(Store)}
    made = []
    for one in value:
        given = {"where": one} if isinstance(one, str) else one
        if not isinstance(given, Mapping) or "where" not in given or given.keys() - kinds.keys():
            raise ValueError(f"kvcake: stores has {one!r}: must be a directory, or an object with "
                             f"{', '.join(kinds)}")
        made.append(Store(**{name: _scalar(f"{name} of stores", what, kinds[name])
                             for name, what in given.items()}))
    return tuple(made)


def folder_of(store: Store) -> pathlib.Path | None:
    """The directory that it is; None where it is elsewhere."""
    place = store.where.partition("?")[0]
    return None if re.match(_SCHEME, place) else pathlib.Path(re.sub("%3[Ff]", "?", place))


def shown(store: Store) -> str:
    """Where it is, for a log: without a user and a password."""
    return re.sub(f"^({_SCHEME}).*@", r"\1***@", store.where)


def check_version(version: str, environment: Mapping[str, str] = os.environ) -> None:
    """RuntimeError that names a vLLM that nobody has tried."""
    if ".".join(version.split(".")[:2]) in TESTED or environment.get("KVCAKE_VLLM_ANY") == "1":
        return
    raise RuntimeError(
        f"kvcake: vLLM {version} is not known to this plugin, which was tried with "
        f"{', '.join(TESTED)}: parts of vLLM that are no public interface may have moved. Set "
        "KVCAKE_VLLM_ANY=1 to try it")
