"""A vLLM that is played, for the plugin's tests. What imports it has said where kvcake is.

The engine schedules, allocates blocks, shares them by a prefix cache, preempts and aborts; its
forward pass writes into each block what a chunk's bytes have to be, and is wrong on top of what is
wrong. So a block that was served from elsewhere than its own tokens is seen.
"""
import collections.abc
import ctypes
import hashlib

import kvcake
from kvcake.vllm.planner import Planner, RequestKey
from kvcake.vllm.worker import Worker

LAYERS, BLOCK_TOKENS, BLOCK_BYTES, BLOCKS = 2, 4, 600, 4000


def truth(rank, tokens, salt, end):
    """What a block whose last token is the end-th has to hold."""
    seed = hashlib.sha256(repr((rank, list(tokens[:end]), salt)).encode()).digest()
    return (seed * (LAYERS * BLOCK_BYTES // 32 + 1))[:LAYERS * BLOCK_BYTES]


class BlockMemory(collections.abc.MutableMapping):
    """What blocks hold, block by block; layer by layer in one piece of memory, as vLLM has it."""

    def __init__(self):
        self._memory = ctypes.create_string_buffer(LAYERS * BLOCKS * BLOCK_BYTES)
        self._written = set()

    def address(self, layer, block):
        return ctypes.addressof(self._memory) + (layer * BLOCKS + block) * BLOCK_BYTES

    def __getitem__(self, block):
        if block not in self._written:
            raise KeyError(block)
        return b"".join(ctypes.string_at(self.address(layer, block), BLOCK_BYTES)
                        for layer in range(LAYERS))

    def __setitem__(self, block, content):
        self._written.add(block)
        for layer in range(LAYERS):
            ctypes.memmove(self.address(layer, block),
                           content[layer * BLOCK_BYTES:(layer + 1) * BLOCK_BYTES], BLOCK_BYTES)

    def __delitem__(self, block):
        self._written.remove(block)

    def __iter__(self):
        return iter(self._written)

    def __len__(self):
        return len(self._written)


class FakeBlocks:
    """A rank's KV cache. `in_pieces`: chunks are copied out of it one after another, as on a GPU."""

    def __init__(self, blocks_a_chunk, in_pieces=False):
        self.a_chunk, self.data, self._in_pieces = blocks_a_chunk, BlockMemory(), in_pieces

    def write(self, chunks, blocks):
        for i, chunk in enumerate(chunks):
            for j, block in enumerate(blocks[i * self.a_chunk:(i + 1) * self.a_chunk]):
                if block >= 0:
                    self.data[block] = b"".join(
                        ctypes.string_at(chunk.address + layer * chunk.stride + j * BLOCK_BYTES,
                                         BLOCK_BYTES) for layer in range(LAYERS))

    def addresses(self, blocks):
        if self._in_pieces:
            return None
        return [self.data.address(layer, block) for layer in range(LAYERS) for block in blocks]

    def read(self, chunks):
        for blocks in chunks:
            slabs = b"".join(self.data[block][layer * BLOCK_BYTES:(layer + 1) * BLOCK_BYTES]
                             for layer in range(LAYERS) for block in blocks)
            held = ctypes.create_string_buffer(slabs, len(slabs))
            yield ctypes.addressof(held), len(blocks) * BLOCK_BYTES

    def settle(self):
        """What is called has computed when it returns."""


class FakeRequest:
    def __init__(self, name, tokens, salt):
        self.name, self.tokens, self.salt = name, tokens, salt
        self.prompt, self.answer = len(tokens), 3
        self.computed, self.blocks, self.running = 0, [], False


class FakeEngine:
    """vLLM's scheduler loop, its prefix cache and its workers."""

    BUDGET = 24

    def __init__(self, folder, *, ranks=1, stale=0, blocks_a_chunk=1, policy="cake", rate=0.0,
                 keep="all", memory_chunks=200, in_pieces=False):
        self.chunk, self.stale, self.late = BLOCK_TOKENS * blocks_a_chunk, stale, []
        self.planner = Planner(chunk_tokens=self.chunk, block_tokens=BLOCK_TOKENS, ranks=ranks,
                               policy=policy, keep=keep)
        self.ranks, self.caches, self.workers = [], [], []
        for rank in range(ranks):
            self.ranks.append(FakeBlocks(blocks_a_chunk, in_pieces))
            self.caches.append(kvcake.Cache(
                f"rank {rank}", layers=LAYERS, chunk_tokens=self.chunk,
                slab_bytes=BLOCK_BYTES * blocks_a_chunk,
                stores=[kvcake.Store(folder, load_rate_bytes_per_s=rate)],
                memory_bytes=memory_chunks * 4096 * (LAYERS + 1), write_queue_share=1.0))
            self.workers.append(Worker(
                self.caches[rank], self.ranks[rank], chunk_tokens=self.chunk,
                blocks_a_chunk=blocks_a_chunk, slice_chunks_max=self.BUDGET // self.chunk,
                policy=policy, rank=rank, ranks=ranks, look_s=1.0))
        self.waiting, self.running, self.finished = [], [], []
        self.prefix, self.free, self.poisoned = {}, list(range(BLOCKS)), set()
        self.jumps = self.computed_tokens = self.failed = 0

    def close(self):
        for worker in self.workers:
            worker.close()

    # ---- what users and the scheduler do

    def submit(self, request):
        cached = len(self.hit(request)) * BLOCK_TOKENS
        self.planner.add(request.name, request.tokens, request.prompt,
                         RequestKey(request.salt), cached_tokens=cached)
        self.waiting.append(request)

    def hit(self, request):
        """The blocks of the prefix cache; the last token is always computed."""
        blocks = []
        for end in range(BLOCK_TOKENS, len(request.tokens), BLOCK_TOKENS):
            block = self.prefix.get((tuple(request.tokens[:end]), request.salt))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def abort(self, request):
        self.planner.finish(request.name)
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def preempt(self, request):
        self.running.remove(request)
        request.computed, request.blocks, request.running = 0, [], False
        self.planner.preempt(request.name)
        self.waiting.insert(0, request)

    def forget_prefixes(self):
        self.prefix.clear()

    def step(self):
        scheduled, budget = {}, self.BUDGET
        for request in self.running:
            after = self.planner.jump(request.name, request.computed)
            if after is not None:
                request.computed = after
        for request in list(self.running):
            new = min(len(request.tokens) - request.computed, budget)
            new = self.planner.cap(request.name, request.computed, new, running=True)
            if new > 0:
                scheduled[request] = new
                budget -= new
        for request in list(self.waiting):
            if budget == 0:
                break
            blocks = self.hit(request)
            local = len(blocks) * BLOCK_TOKENS
            external = self.planner.matched(request.name, local)
            if external is None:
                continue
            new = min(len(request.tokens) - local - external, budget)
            new = self.planner.cap(request.name, local + external, new, running=False)
            assert new > 0, "an admission gets a chunk at least"
            request.blocks, request.computed, request.running = blocks, local + external, True
            self.planner.admitted(request.name, external)
            self.waiting.remove(request)
            self.running.append(request)
            scheduled[request] = new
            budget -= new
        for name, before in self.planner.unjump({r.name: n for r, n in scheduled.items()}):
            next(r for r in self.running if r.name == name).computed = before
        for request, new in scheduled.items():
            while len(request.blocks) * BLOCK_TOKENS < request.computed + new:
                request.blocks.append(self.free.pop())
        return self._execute(scheduled)

    # ---- what the workers do

    def _execute(self, scheduled):
        by_name = {request.name: request for request in scheduled}
        step = self.planner.step(
            {r.name: (r.computed, r.computed + new) for r, new in scheduled.items()},
            lambda name: by_name[name].blocks, sum(scheduled.values()))
        self.jumps += len(step.jumps)
        reports, failed = [], set()
        for rank, worker in enumerate(self.workers):
            worker.bind(step)
            worker.load()
            for request, new in scheduled.items():
                self._forward(rank, request, request.computed + new)
            if scheduled:
                worker.computed()
            failed |= worker.take_failed_blocks()
            reports.append(worker.report())
        self._commit(scheduled, failed)
        reports = [report for report in reports if report is not None]
        self.late.append(reports)
        if len(self.late) > self.stale:
            heard = self.late.pop(0)
            while len(heard) > 1:
                heard[0] = heard[0].aggregate(heard.pop())
            if heard:
                self.planner.hear(heard[0])
        return bool(scheduled)

    # The new tokens' blocks. On top of wrong ones it is wrong, too.
    def _forward(self, rank, request, end):
        data = self.ranks[rank].data
        right = all(data.get(request.blocks[i]) == truth(rank, request.tokens, request.salt,
                                                         (i + 1) * BLOCK_TOKENS)
                    for i in range(request.computed // BLOCK_TOKENS))
        for i in range(request.computed // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)):
            whole = truth(rank, request.tokens, request.salt, (i + 1) * BLOCK_TOKENS)
            full = (i + 1) * BLOCK_TOKENS <= end
            data[request.blocks[i]] = whole if full and right else bytes(len(whole))

    def _commit(self, scheduled, failed):
        for request, new in scheduled.items():
            bad = next((i for i, block in enumerate(request.blocks) if block in failed), None)
            if bad is not None:  # as vLLM's recompute policy has it
                request.computed = bad * BLOCK_TOKENS
                del request.blocks[bad:]
                self.failed += 1
                continue
            request.computed += new
            self.computed_tokens += new
            for i in range(request.computed // BLOCK_TOKENS):
                self.prefix.setdefault(
                    (tuple(request.tokens[:(i + 1) * BLOCK_TOKENS]), request.salt),
                    request.blocks[i])
            if request.computed < len(request.tokens):
                continue
            if request.answer == 0:
                self.running.remove(request)
                self.planner.finish(request.name)
                self.finished.append(request)
            else:
                request.answer -= 1
                request.tokens.append(request.computed % 7)
