"""How kvcake.vllm.blocks copies where copies are made late, as on a GPU: against a played device
(fake_cuda.py). Runs in a virtual environment with vLLM and kvcake.
"""
import ctypes
import random
import unittest

import torch
from cuda_fixture import LAYERS, CudaTest, truth
from kvcake.cache import Chunk
from kvcake.vllm import blocks as blocks_module


class CopiesTest(CudaTest):
    BLOCKS, A_CHUNK = 40, 2

    def setUp(self):
        super().setUp()
        self.memory = self.caches(self.BLOCKS)
        self.blocks = blocks_module.TorchBlocks(self.memory, self.BLOCKS, self.A_CHUNK)
        self.held = []

    def chunk(self, seed):
        """Chunk `seed`, in memory that is its own until it is released."""
        data = torch.stack([torch.stack([self.block(seed, j, layer) for j in range(self.A_CHUNK)])
                            for layer in range(LAYERS)]).numpy().tobytes()
        memory = ctypes.create_string_buffer(data, len(data))
        self.held.append(memory)
        return Chunk(0, ctypes.addressof(memory), len(data) // LAYERS)

    @staticmethod
    def block(seed, j, layer):
        return truth([seed, j], layer)

    def release_all(self):
        for memory in self.held:
            ctypes.memset(memory, 0xee, len(memory))

    def write(self, seeds, first=0):
        """As the jump does: what was written from is used for something else at once."""
        self.blocks.write([self.chunk(seed) for seed in seeds],
                          range(first, first + len(seeds) * self.A_CHUNK))
        self.release_all()

    def compute(self, to=None):
        """A step that reads all blocks, and writes some; what it read is in the list."""
        read = []

        def step():
            read.append([cache.as_subclass(torch.Tensor).clone()
                         for cache in self.memory.values()])
            for block, seed in (to or {}).items():
                for layer, cache in enumerate(self.memory.values()):
                    cache.as_subclass(torch.Tensor)[block] = self.block(seed, 0, layer)
        self.card.current.queue.append(step)
        return read

    def check(self, read, seeds, first=0):
        for i, seed in enumerate(seeds):
            for j in range(self.A_CHUNK):
                for layer in range(LAYERS):
                    self.assertTrue(torch.equal(read[0][layer][first + i * self.A_CHUNK + j],
                                                self.block(seed, j, layer)), (seed, j, layer))

    def test_staging_is_used_again_only_when_its_copy_is_done(self):
        self.write(range(7))
        read = self.compute()
        self.card.finish()
        self.check(read, range(7))
        self.assertEqual(self.card.blocking_copies, 0, "the CPU waited for a copy")

    def test_copies_are_late_where_memory_is_left(self):
        self.write(range(blocks_module.STAGED))
        self.assertEqual(len(self.card.streams), 2)
        self.assertTrue(self.card.streams[1].queue, "copies were waited for")
        self.assertFalse(any(cache.as_subclass(torch.Tensor).any()
                             for cache in self.memory.values()))

    def test_a_step_computes_on_what_was_copied_and_no_sooner(self):
        for seed in range(30):
            rng = random.Random(seed)
            chunks = range(100 * seed, 100 * seed + rng.randrange(1, 9))
            self.write(chunks)
            self.card.advance(rng, rng.randrange(40))
            read = self.compute()
            self.card.advance(rng, rng.randrange(100))
            self.card.finish()
            self.check(read, chunks)

    def test_a_block_is_not_written_while_a_step_before_reads_it(self):
        for stream in (self.card.computing, self.card.stream("another")):
            self.card.current = stream  # which the model computes on
            self.write([1, 2])
            before, after = self.compute(), None
            self.write([3, 4])
            after = self.compute()
            self.card.streams[1].synchronize()  # the copies would rather be first
            self.card.finish()
            self.check(before, [1, 2])
            self.check(after, [3, 4])

    def test_what_is_kept_is_what_the_step_computed(self):
        self.compute({0: 5, 1: 6})
        (address, stride), = self.blocks.read([[0, 1]])
        self.compute({0: 7, 1: 8})  # the next step has the blocks already
        data = ctypes.string_at(address, LAYERS * stride)
        wanted = [self.block(seed, 0, layer) for layer in range(LAYERS) for seed in (5, 6)]
        self.assertEqual(data, torch.stack(wanted).numpy().tobytes())
        self.write([9], first=10)  # with what was read still queued behind
        read = self.compute()
        self.card.finish()
        self.check(read, [9], first=10)

    def test_many_are_kept_while_others_come(self):
        count = 3 * blocks_module.STAGED
        self.compute({block: 20 + block for block in range(count * self.A_CHUNK)})
        chunks = [range(i * self.A_CHUNK, (i + 1) * self.A_CHUNK) for i in range(count)]
        for i, (address, stride) in enumerate(self.blocks.read(chunks)):
            if i == 1:
                self.assertTrue(self.card.streams[1].queue, "none was asked for ahead")
            wanted = [self.block(20 + block, 0, layer) for layer in range(LAYERS)
                      for block in chunks[i]]
            self.card.advance(random.Random(i), 7)
            self.assertEqual(ctypes.string_at(address, LAYERS * stride),
                             torch.stack(wanted).numpy().tobytes(), i)
        self.assertEqual(self.card.blocking_copies, 0)

    def test_reading_may_stop(self):
        self.compute({block: 20 + block for block in range(8)})
        read = self.blocks.read([[0, 1], [2, 3], [4, 5]])
        next(read)
        read.close()
        self.write([1, 2, 3], first=10)  # through the staging of what was on its way
        computed = self.compute()
        self.card.finish()
        self.check(computed, [1, 2, 3], first=10)

    def test_blocks_are_left_out(self):
        self.compute({4: 30, 5: 31, 6: 32, 7: 33})
        self.blocks.write([self.chunk(1), self.chunk(2)], [-1, 5, 6, -1])
        self.release_all()
        read = self.compute()
        self.card.finish()
        for layer in range(LAYERS):
            for block, wanted in ((4, self.block(30, 0, layer)), (5, self.block(1, 1, layer)),
                                  (6, self.block(2, 0, layer)), (7, self.block(33, 0, layer))):
                self.assertTrue(torch.equal(read[0][layer][block], wanted), (layer, block))
        self.assertEqual(self.card.blocking_copies, 0)

    def test_one_copy_goes_over_the_bus(self):
        asked = []
        copy = self.card.copy
        self.card.copy = lambda to, source, late: (asked.append(to.nbytes), copy(to, source, late))
        self.write([1])
        list(self.blocks.read([[0, 1]]))
        chunk = LAYERS * self.A_CHUNK * self.blocks.block_bytes
        self.assertEqual(sorted(asked), [8 * self.A_CHUNK] * 2 + [chunk] * 2)

    def test_an_abort_in_mid_copy_writes_nothing_late(self):
        for seed in range(30):
            rng = random.Random(seed)
            self.write([1, 2, 3])
            self.card.advance(rng, rng.randrange(12))
            # Its request is aborted: vLLM gives its blocks to another one.
            self.compute({block: 50 + block for block in range(6)})
            read = self.compute()
            self.card.advance(rng, rng.randrange(60))
            self.card.finish()
            for block in range(6):
                for layer in range(LAYERS):
                    self.assertTrue(torch.equal(read[0][layer][block],
                                                self.block(50 + block, 0, layer)))

    def test_the_clock_is_asked_when_the_step_has_computed(self):
        read = self.compute()
        self.blocks.settle()
        self.assertTrue(read)


if __name__ == "__main__":
    unittest.main()
