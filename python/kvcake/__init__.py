"""Stores of KV caches, and prompts that are restored from them: libkvcake for Python.

A `Cache` keeps chunks of a KV cache in stores; a `Restoration` loads those of a prompt from the
back, while the caller computes from the front what the planner tells it to. docs/library.md of
kvcake has the meaning of each call, which is the same here. `kvcake.vllm` is a plugin for vLLM.
"""
from kvcake.cache import (Cache, Chunk, Error, Key, Progress, Restoration, Stats, Store, Turn,
                          set_log, version)

__version__ = version()
__all__ = ["Cache", "Chunk", "Error", "Key", "Progress", "Restoration", "Stats", "Store", "Turn",
           "set_log", "version"]
