"""vLLM's KV cache as blocks of all layers, copied in torch's terms: one path for CPU and GPU."""
from __future__ import annotations

import collections
import ctypes
from collections.abc import Iterator, Mapping, Sequence

import torch

from kvcake.cache import Chunk

STAGED = 2  # chunks on their way to or from a GPU: one is filled while another is copied

# Copied as numbers that no operation changes.
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    """What a chunk, [layers][blocks][...], passes through on its way to or from a GPU's blocks:
    pinned memory and as much of the GPU's, so that one copy goes over the bus and one kernel a
    layer scatters or gathers. It is used again when `copied` says that its last use is over."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._chunk = torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        self._blocks = torch.empty(shape[1], dtype=torch.int64, pin_memory=True)
        self._there = torch.empty(tuple(shape), dtype=dtype, device=device)
        self._blocks_there = torch.empty(shape[1], dtype=torch.int64, device=device)
        self.copied = torch.cuda.Event()

    def fill(self, chunk: torch.Tensor, blocks: Sequence[int]) -> int:
        """By the CPU, so that the chunk may go after it: how many blocks are not left out."""
        rows = [j for j, block in enumerate(blocks) if block >= 0]
        if len(rows) == len(blocks):
            self._chunk.copy_(chunk)
        else:
            self._chunk[:, :len(rows)].copy_(chunk[:, rows])
        self._blocks[:len(rows)].copy_(torch.tensor([blocks[j] for j in rows], dtype=torch.int64))
        return len(rows)

    def scatter(self, views: Sequence[torch.Tensor], count: int) -> None:
        self._blocks_there.copy_(self._blocks, non_blocking=True)
        self._there.copy_(self._chunk, non_blocking=True)
        for layer, view in enumerate(views):
            view.index_copy_(0, self._blocks_there[:count], self._there[layer, :count])

    def gather(self, views: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
        self._blocks.copy_(torch.tensor(blocks, dtype=torch.int64))
        self._blocks_there.copy_(self._blocks, non_blocking=True)
        for layer, view in enumerate(views):
            torch.index_select(view, 0, self._blocks_there, out=self._there[layer])
        self._chunk.copy_(self._there, non_blocking=True)

    def address(self) -> int:
        return self._chunk.data_ptr()


class TorchBlocks:
    """Implements worker.Blocks. On a GPU, chunks pass through staging and a side stream, which
    waits for the model's stream before it touches blocks; the model's waits for it before it
    computes."""

    def __init__(self, caches: Mapping[str, torch.Tensor], block_count: int,
                 blocks_a_chunk: int) -> None:
        views = [block_view(cache, block_count) for cache in caches.values()]
        first = views[0]
        if any(v.shape[1:] != first.shape[1:] or v.dtype != first.dtype for v in views):
            raise ValueError("kvcake: layers whose KV caches differ are not supported")
        raw = _RAW[first.dtype.itemsize]
        self.views = [view.view(raw) for view in views]
        self.layers, self.blocks_a_chunk = len(views), blocks_a_chunk
        self.shape, self.dtype, self.device = first.shape[1:], first.dtype, first.device
        self.block_bytes = first[0].numel() * first.element_size()
        self.slab_bytes = self.block_bytes * blocks_a_chunk
        self.on_host = self.device.type == "cpu"
        shape = (self.layers, blocks_a_chunk, *self.shape)
        self._host_chunk = torch.empty(shape, dtype=raw) if self.on_host else None
        self._staging = [] if self.on_host else [_Staging(shape, raw, self.device)
                                                 for _ in range(STAGED)]
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
        dtype = self.views[0].dtype
        elements = self.layers * chunk.stride // dtype.itemsize
        raw = (ctypes.c_uint8 * (self.layers * chunk.stride)).from_address(chunk.address)
        flat = torch.frombuffer(raw, dtype=dtype, count=elements)
        return flat.view(self.layers, -1)[:, :self.slab_bytes // dtype.itemsize].view(
            self.layers, self.blocks_a_chunk, *self.shape)

    def _free_staging(self) -> _Staging:
        staging = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        staging.copied.synchronize()
        return staging

    def write(self, chunks: Sequence[Chunk], blocks: Sequence[int]) -> None:
        of_chunk = [blocks[i * self.blocks_a_chunk:(i + 1) * self.blocks_a_chunk]
                    for i in range(len(chunks))]
        if self._stream is None:
            for chunk, named in zip(chunks, of_chunk):
                self._copy_in(self._view(chunk), named)
            return
        computing = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(computing)  # a step before may still use these blocks
        with torch.cuda.stream(self._stream):
            for chunk, named in zip(chunks, of_chunk):
                staging = self._free_staging()
                count = staging.fill(self._view(chunk), named)
                staging.scatter(self.views, count)
                staging.copied.record(self._stream)
        computing.wait_stream(self._stream)

    def _copy_in(self, source: torch.Tensor, blocks: Sequence[int]) -> None:
        for j, block in enumerate(blocks):
            if block < 0:
                continue
            for layer, view in enumerate(self.views):
                view[block].copy_(source[layer, j])

    def addresses(self, blocks: Sequence[int]) -> list[int] | None:
        if not self._bases:
            return None
        return [base + block * step for base, step in zip(self._bases, self._steps)
                for block in blocks]

    def read(self, chunks: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        if self._stream is None:
            for blocks in chunks:
                for j, block in enumerate(blocks):
                    for layer, view in enumerate(self.views):
                        self._host_chunk[layer, j].copy_(view[block])
                yield self._host_chunk.data_ptr(), self.slab_bytes
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        coming: collections.deque[_Staging] = collections.deque()
        for i in range(len(chunks)):
            # All but the one that the caller has had before come while it is busy with this one.
            for blocks in chunks[i + len(coming):i + STAGED]:
                coming.append(self._gather(blocks))
            staging = coming.popleft()
            staging.copied.synchronize()
            yield staging.address(), self.slab_bytes

    def _gather(self, blocks: Sequence[int]) -> _Staging:
        staging = self._free_staging()
        with torch.cuda.stream(self._stream):
            staging.gather(self.views, blocks)
            staging.copied.record(self._stream)
        return staging

    def settle(self) -> None:
        if not self.on_host:
            torch.cuda.current_stream(self.device).synchronize()
