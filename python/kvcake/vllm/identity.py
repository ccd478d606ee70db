"""What the numbers in a KV cache depend on, as text and bytes that are hashed into keys: weights by
their bytes, LoRA adapters by theirs, and vLLM's own extra keys. What has no key is refused.
"""
from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Unkeyed(Exception):
    """It has no key: it is neither loaded nor kept."""


# ---- weights

_READ_BYTES = 1 << 22
_REMEMBERED_MAX = 512  # files, the last hashed: weights may be copied anew at each start


def _hash_range(path: pathlib.Path, start: int, count: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(start)
        while count > 0:
            block = file.read(min(count, _READ_BYTES))
            if not block:
                raise Unkeyed(f"{path} is cut short")
            digest.update(block)
            count -= len(block)
    return digest.hexdigest()


def _safetensors(path: pathlib.Path) -> list[list]:
    """[name, dtype, shape, digest] of each tensor."""
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > 100 << 20:
                raise Unkeyed(f"{path} is no safetensors file")
            header = json.loads(file.read(size))
        tensors = [(name, one["dtype"], one["shape"], *one["data_offsets"])
                   for name, one in header.items() if name != "__metadata__"]
        base = 8 + size
        return [[name, dtype, shape, _hash_range(path, base + start, end - start)]
                for name, dtype, shape, start, end in tensors]
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as why:
        raise Unkeyed(f"{path} is no whole safetensors file") from why


def _stamp(path: pathlib.Path) -> list:
    stat = path.stat()
    return [str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns,
            stat.st_ctime_ns]


def files_digest(files: Iterable[pathlib.Path], remembered: pathlib.Path | None = None) -> str:
    """Of the tensors of safetensors files, however they are spread over files, and of the bytes of
    other files. `remembered` is a file that keeps digests of files that have not changed since:
    who hashes at the same time, as ranks do when they start, waits for the first one's."""
    with _alone(remembered):
        return _files_digest(sorted(files), remembered)


def _alone(remembered: pathlib.Path | None) -> contextlib.AbstractContextManager:
    if remembered is None:
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    try:
        folder = os.open(remembered.parent, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: all of them hash
        pass
    return stack


def _files_digest(listed: list[pathlib.Path], remembered: pathlib.Path | None) -> str:
    cache: dict[str, list] = {}
    if remembered is not None:
        try:
            cache = dict(json.loads(remembered.read_text()))
        except (OSError, ValueError, TypeError):
            pass

    def digest(path: pathlib.Path) -> tuple[str, list]:
        stamp = json.dumps(_stamp(path))
        if stamp in cache:
            return stamp, cache[stamp]
        if path.suffix == ".safetensors":
            return stamp, _safetensors(path)
        return stamp, [[path.name, "file", [], _hash_range(path, 0, path.stat().st_size)]]

    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        made = dict(pool.map(digest, listed))
    if remembered is not None and any(stamp not in cache for stamp in made):
        try:
            others = [stamp for stamp in cache if stamp not in made]
            too_many = max(0, len(others) + len(made) - _REMEMBERED_MAX)
            kept = {stamp: cache[stamp] for stamp in others[too_many:]}
            partial = remembered.with_name(f"{remembered.name}.{os.getpid()}")
            with open(partial, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                json.dump({**kept, **made}, file)
            partial.replace(remembered)
        except OSError:
            pass  # it is hashed again at the next start
    tensors = sorted(tensor for listed_tensors in made.values() for tensor in listed_tensors)
    return hashlib.sha256(json.dumps(tensors).encode()).hexdigest()


_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# What vLLM's --load-format has it load, whatever else is there; others are as "auto".
_OF_FORMAT = {"pt": ("*.pt",), "npcache": ("*.bin",), "gguf": ("*.gguf",)}
_AS_AUTO = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral",
            "bitsandbytes", "sharded_state", "runai_streamer", "runai_streamer_sharded")


def weight_files(folder: pathlib.Path, load_format: str = "auto") -> list[pathlib.Path]:
    """Those that vLLM would load: of one format, as it does."""
    if load_format not in _OF_FORMAT and load_format not in _AS_AUTO:
        raise Unkeyed(f"which files --load-format {load_format} loads is not known")
    for pattern in _OF_FORMAT.get(load_format, _WEIGHTS):
        if found := sorted(folder.glob(pattern)):
            return found
    return []


def folder_digest(folder: pathlib.Path, remembered: pathlib.Path | None = None,
                  load_format: str = "auto") -> str:
    """Of a model's weights, and of what may come with them: code, and how images become input."""
    weights = weight_files(folder, load_format)
    if not weights:
        raise Unkeyed(f"{folder} has no files of weights")
    beside = [file for pattern in ("*.py", "*processor_config.json")
              for file in folder.glob(pattern)]
    return files_digest(weights + beside, remembered)


def _code_repositories(config: Mapping[str, Any]) -> set[str]:
    """Those that auto_map names: "repository--module.Class"; without one it is the model's own."""
    named: set[str] = set()
    for name, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if name != "auto_map":
            named |= _code_repositories(value)
            continue
        for one in value.values():
            places = one if isinstance(one, (list, tuple)) else [one]
            named.update(place.partition("--")[0] for place in places
                         if isinstance(place, str) and "--" in place)
    return named


def code_digest(config: Mapping[str, Any], own: str, revision: str | None,
                folder_of: Callable[[str], pathlib.Path]) -> str:
    """Of code that does not come with the weights of the model `own`, but from repositories that
    its configuration names, or from another `revision`; empty where there is none."""
    repositories = sorted(_code_repositories(config) - ({own} if revision is None else set()))
    found: list[list[str]] = []
    for repository in repositories:
        files = list(folder_of(repository).glob("*.py"))
        if not files:
            raise Unkeyed(f"the code of {repository} is not there")
        found.append([repository, files_digest(files)])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else ""


# ---- what beside tokens a request's chunks depend on

def encode(value: Any) -> bytes:
    """Text, bytes, whole numbers, None and lists of them, so that no two are the same."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + encode(value.encode())[1:]
    if isinstance(value, (bytes, bytearray)):
        return b"b" + struct.pack("<Q", len(value)) + bytes(value)
    if isinstance(value, int):
        return b"i" + encode(str(int(value)))[1:]
    if isinstance(value, (list, tuple)):
        return b"l" + struct.pack("<Q", len(value)) + b"".join(map(encode, value))
    raise Unkeyed(f"a key of a kind that is not known: {type(value).__name__}")


class Adapters:
    """Digests of LoRA adapters, which vLLM knows by a number and a name that may mean another one
    tomorrow. An adapter whose files have changed since it was first seen, by loads() or digest(),
    has no key: which of both vLLM has loaded is not known."""

    def __init__(self, known_max: int = 1 << 13) -> None:
        # The last used last; vLLM has fewer in memory, so one that is left out is loaded again.
        self._known: dict[int, tuple[str, str]] = {}
        self._known_max = known_max

    def digest(self, number: int, folder: str) -> str:
        path = pathlib.Path(folder)
        files = weight_files(path) + sorted(path.glob("adapter_config.json"))
        if len(files) < 2:
            raise Unkeyed(f"the LoRA adapter's files are not in a folder {folder}")
        try:
            stamp = json.dumps([_stamp(file) for file in files])
            known, digest = self._known.pop(number, None) or (stamp, files_digest(files))
        except OSError as why:
            raise Unkeyed(f"the LoRA adapter in {folder} cannot be read: {why}") from why
        self._know(number, known, digest)
        if known != stamp:
            raise Unkeyed(f"the LoRA adapter in {folder} has changed since it was loaded")
        return digest

    def loads(self, number: int, folder: str) -> None:
        """vLLM loads it next, maybe long before a prompt asks for it: what is there now counts.
        Where that cannot be told it has no key later."""
        try:
            self.digest(number, folder)
        except Unkeyed:
            if number not in self._known:
                self._know(number, "", "")

    def _know(self, number: int, stamp: str, digest: str) -> None:
        self._known[number] = stamp, digest
        if len(self._known) > self._known_max:
            del self._known[next(iter(self._known))]


def adapter_options(lora: Any, dtype: Any) -> list[Any]:
    """What vLLM makes of any adapter's bytes by its options; empty where it was told nothing, as
    keys of adapters had none of them once. `dtype`: the model's, which "auto" means."""
    targets = getattr(lora, "target_modules", None)
    own = str(getattr(lora, "lora_dtype", None)).removeprefix("torch.")
    told = [None if targets is None else sorted(set(targets)),
            None if own in ("None", "auto", str(dtype).removeprefix("torch.")) else own]
    told += [bool(getattr(lora, name, None)) or None
             for name in ("enable_moe_shared_loras", "enable_mixed_moe_lora_format")]
    return told if any(one is not None for one in told) else []


def media_options(images: Any, normalizes: bool) -> dict[str, Any]:
    """What vLLM was told of how images and videos become input, beside what processors are given;
    empty where it was told nothing, as name spaces had none of it once. `normalizes`: the model
    does so on its device where nobody says otherwise."""
    rate = getattr(images, "video_pruning_rate", None)
    method = getattr(images, "video_pruning_method", None)
    on_device = getattr(images, "mm_device_do_normalize", None)
    scales = getattr(images, "mm_encoder_fp8_scale_path", None)
    told = {"media_io_kwargs": getattr(images, "media_io_kwargs", None) or None,
            "video_pruning": [rate, method] if rate else None,
            "mm_encoder_attn_dtype": getattr(images, "mm_encoder_attn_dtype", None),
            "mm_encoder_fp8_scales": files_digest([pathlib.Path(scales)]) if scales else None,
            "mm_device_do_normalize": on_device if on_device != normalizes else None}
    return {name: value for name, value in told.items() if value is not None}


def config_digest(config: Mapping[str, Any]) -> str:
    """Of a model's configuration, without what names it."""
    kept = {name: value for name, value in config.items()
            if name not in ("_name_or_path", "name_or_path", "transformers_version", "torch_dtype",
                            "dtype", "use_cache")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=repr).encode()).hexdigest()


def options_digest(options: Any) -> str:
    """The same in each process that was given them. ValueError where one of them is only known by
    where it lies in memory."""
    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, value))
        text = repr(value)
        if re.search(" at 0x[0-9a-fA-F]+", text):
            raise ValueError(f"kvcake: an option of vLLM is {text}: nothing tells it from others")
        return text

    return hashlib.sha256(json.dumps(options, sort_keys=True, default=plain).encode()).hexdigest()


# What numbers of these depend on is in the configuration; of others, also on how long prompts may be.
_PLAIN_ROPE = (None, "default", "linear", "llama3", "yarn")


def depends_on_length(config: Mapping[str, Any]) -> bool:
    """Whether rotary embeddings are chosen by the longest prompt that vLLM was started for."""
    for name, value in config.items():
        if not isinstance(value, Mapping):
            continue
        kind = value.get("rope_type", value.get("type"))
        if name.startswith("rope_") and kind not in _PLAIN_ROPE:
            return True
        if depends_on_length(value):
            return True
    return False


def name_space(facts: Mapping[str, Any]) -> str:
    """One line for each fact, in order of their names."""
    return "vllm plugin 1\n" + "".join(f"{name}={json.dumps(facts[name], sort_keys=True)}\n"
                                       for name in sorted(facts))
