"""vLLM's KV cache as blocks of all layers, copied in torch's terms: one path for CPU and GPU."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch

from kvcake.cache import Chunk

STAGED = 2  # chunks on their way to a GPU: one is filled while another is copied


def block_view(cache: torch.Tensor, block_count: int) -> torch.Tensor:
    """The layer's cache with its blocks first, wherever the backend has them: each whole, also
    where a kernel's blocks are parts of vLLM's. ValueError where that cannot be told."""
    if cache.shape[0] == block_count:
        return cache
    if cache.shape[0] % block_count == 0:
        return cache.unflatten(0, (block_count, -1))
    dims = [dim for dim, size in enumerate(cache.shape) if size == block_count]
    if len(dims) != 1:
        raise ValueError(f"kvcake: which dimension of a KV cache of shape {tuple(cache.shape)} "
                         f"counts its {block_count} blocks is not clear")
    return cache.movedim(dims[0], 0)


class _Staging:
    """Host memory that a chunk passes through. It is used again when the copies of its last use
    have been done, which `copied` says where there are streams."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, on_host: bool) -> None:
        self.memory = torch.empty(tuple(shape), dtype=dtype, pin_memory=not on_host)
        self.copied = None if on_host else torch.cuda.Event()


class TorchBlocks:
    """Implements worker.Blocks. On a GPU, chunks pass through pinned memory and a side stream,
    which waits for the model's stream before it touches blocks; the model's waits for it before it
    computes."""

    def __init__(self, caches: Mapping[str, torch.Tensor], block_count: int,
                 blocks_a_chunk: int) -> None:
        self.views = [block_view(cache, block_count) for cache in caches.values()]
        first = self.views[0]
        if any(v.shape[1:] != first.shape[1:] or v.dtype != first.dtype for v in self.views):
            raise ValueError("kvcake: layers whose KV caches differ are not supported")
        self.layers, self.blocks_a_chunk = len(self.views), blocks_a_chunk
        self.shape, self.dtype, self.device = first.shape[1:], first.dtype, first.device
        self.block_bytes = first[0].numel() * first.element_size()
        self.slab_bytes = self.block_bytes * blocks_a_chunk
        self.on_host = self.device.type == "cpu"
        shape = (self.layers, blocks_a_chunk, *self.shape)
        self._staging = [_Staging(shape, self.dtype, self.on_host)
                         for _ in range(1 if self.on_host else STAGED)]
        self._turn = 0
        # Addresses of the CPU's caches, where each block's bytes lie in one piece.
        self._bases = [view.data_ptr() for view in self.views] if self.on_host and all(
            view[0].is_contiguous() for view in self.views) else []
        self._steps = [view.stride(0) * view.element_size() for view in self.views]
        self._stream = None if self.on_host else torch.cuda.Stream(self.device)

    def layout(self) -> dict:
        """What a chunk's bytes mean, for its name space."""
        view = self.views[0]
        return {"shape": list(self.shape), "dtype": str(self.dtype), "layers": self.layers,
                "order": sorted(range(view.dim() - 1), key=lambda dim: -view.stride(dim + 1)),
                "blocks_a_chunk": self.blocks_a_chunk}

    def _view(self, chunk: Chunk) -> torch.Tensor:
        elements = self.layers * chunk.stride // self.dtype.itemsize
        raw = (ctypes.c_uint8 * (self.layers * chunk.stride)).from_address(chunk.address)
        flat = torch.frombuffer(raw, dtype=self.dtype, count=elements)
        return flat.view(self.layers, -1)[:, :self.slab_bytes // self.dtype.itemsize].view(
            self.layers, self.blocks_a_chunk, *self.shape)

    def _free_staging(self) -> _Staging:
        staging = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        if staging.copied is not None:
            staging.copied.synchronize()
        return staging

    def write(self, chunks: Sequence[Chunk], blocks: Sequence[int]) -> None:
        if self._stream is None:
            for i, chunk in enumerate(chunks):
                self._copy_in(self._view(chunk), blocks[i * self.blocks_a_chunk:])
            return
        computing = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(computing)  # a step before may still use these blocks
        with torch.cuda.stream(self._stream):
            for i, chunk in enumerate(chunks):
                staging = self._free_staging()
                staging.memory.copy_(self._view(chunk))  # by the CPU: the chunk may go after it
                self._copy_in(staging.memory, blocks[i * self.blocks_a_chunk:])
                staging.copied.record(self._stream)
        computing.wait_stream(self._stream)

    def _copy_in(self, source: torch.Tensor, blocks: Sequence[int]) -> None:
        for j, block in enumerate(blocks[:self.blocks_a_chunk]):
            if block < 0:
                continue
            for layer, view in enumerate(self.views):
                view[block].copy_(source[layer, j], non_blocking=True)

    def addresses(self, blocks: Sequence[int]) -> list[int] | None:
        if not self._bases:
            return None
        return [base + block * step for base, step in zip(self._bases, self._steps)
                for block in blocks]

    def read(self, blocks: Sequence[int]) -> tuple[int, int]:
        staging = self._free_staging()
        if self._stream is None:
            self._copy_out(blocks, staging.memory)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                self._copy_out(blocks, staging.memory)
                staging.copied.record(self._stream)
            staging.copied.synchronize()
        return staging.memory.data_ptr(), self.slab_bytes

    def _copy_out(self, blocks: Sequence[int], target: torch.Tensor) -> None:
        for j, block in enumerate(blocks):
            for layer, view in enumerate(self.views):
                target[layer, j].copy_(view[block], non_blocking=True)

    def settle(self) -> None:
        if not self.on_host:
            torch.cuda.current_stream(self.device).synchronize()
