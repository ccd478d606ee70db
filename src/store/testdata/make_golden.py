#!/usr/bin/env python3
"""Writes chunk_v1.bin from docs/format.md alone (needs xxhash from PyPI): a second implementation."""
import hashlib
import struct
import sys

import xxhash

LAYERS, HEADS, DIM, TOKENS = 2, 1, 4, 8
PAYLOAD = 2 * 2 * HEADS * TOKENS * DIM
SLAB = (PAYLOAD + 4095) // 4096 * 4096


def prefixed(text):
    return struct.pack("<I", len(text)) + text


root = hashlib.sha256(b"kvcake root v1" + prefixed(b"model") + prefixed(b"golden")).digest()
keys = [root]
for first in (1, 9):
    tokens = struct.pack("<8I", *range(first, first + 8))
    keys.append(hashlib.sha256(keys[-1] + tokens).digest())
slabs = [bytes((layer + i) % 256 for i in range(PAYLOAD)).ljust(SLAB, b"\0") for layer in range(LAYERS)]
header = b"KVCAKE\x1a\n" + struct.pack("<IIQ", 1, 4096, 0)
header += struct.pack("<IIII", LAYERS, HEADS, DIM, TOKENS) + struct.pack("<HHHH", 1, 0, 1, 0)
header += struct.pack("<QQQ", 4096 + LAYERS * SLAB, SLAB, PAYLOAD) + bytes(24)
header += keys[2] + keys[1] + root
header += b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(slab)) for slab in slabs)
header = header.ljust(4088, b"\0")
header += struct.pack("<Q", xxhash.xxh3_64_intdigest(header))
sys.stdout.buffer.write(header + b"".join(slabs))
