"""What tests on a played device (fake_cuda.py) share: KV caches there, and what a block has to hold.
"""
import hashlib
import unittest
import unittest.mock

import torch
from fake_cuda import Card
from kvcake.vllm import blocks as blocks_module

LAYERS, SHAPE = 2, (2, 3)


def truth(tokens, layer):
    """What a block has to hold of which the last token is the last of these."""
    digest = hashlib.sha256(repr((list(tokens), layer)).encode()).digest()
    return int.from_bytes(digest[:7], "little") + torch.arange(6).view(SHAPE)


class CudaTest(unittest.TestCase):
    def setUp(self):
        self.card = Card()
        patched = unittest.mock.patch.object(blocks_module, "torch", self.card.torch)
        patched.start()
        self.addCleanup(patched.stop)

    def caches(self, block_count):
        return {f"layer {i}": self.card.tensor(torch.zeros((block_count, *SHAPE),
                                                           dtype=torch.int64))
                for i in range(LAYERS)}
