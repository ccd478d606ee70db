#!/usr/bin/env python3
"""Writes chunk_v1.bin and chunk_v2.bin into the folder that is named, from docs/format.md alone
(needs xxhash from PyPI): a second implementation. No codec has made the parts of the second."""
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

# Parts of 128 and 64 bytes, by int8 (2), which has no tables; the chunk begins at token 8.
parts = [bytes((layer + i) % 256 for i in range(64 * (2 - layer))) for layer in range(LAYERS)]
entries = b"".join(
    struct.pack("<QI", xxhash.xxh3_64_intdigest(part), len(part) // 64) + bytes(16)
    for part in parts
)
encoded = b"KVCAKE\x1a\n" + struct.pack("<IIQ", 2, 4096, 0)
encoded += struct.pack("<IIII", LAYERS, HEADS, DIM, TOKENS) + struct.pack("<HHHH", 1, 2, 1, 0)
encoded += struct.pack("<QQQ", 8192, SLAB, PAYLOAD) + struct.pack("<QH", 8, 0) + bytes(14)
encoded += keys[2] + keys[1] + root + bytes(32) + bytes(32) + entries
encoded = encoded.ljust(4088, b"\0")
encoded += struct.pack("<Q", xxhash.xxh3_64_intdigest(encoded)) + b"".join(parts)

folder = sys.argv[1]
files = {"chunk_v1.bin": header + b"".join(slabs), "chunk_v2.bin": encoded.ljust(8192, b"\0")}
for name, file in files.items():
    with open(f"{folder}/{name}", "wb") as out:
        out.write(file)
