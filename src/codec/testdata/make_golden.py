#!/usr/bin/env python3
"""Writes slab.bin, its part NAME.part of each codec, the numbers NAME.slab of the parts that lose
something, and NAME.tables where a codec has tables (needs numpy and xxhash from PyPI): the codecs
of docs/format.md a second time, from that page alone. Its layout is that of golden_test.cc."""
import math
import pathlib
import struct

import numpy as np
import xxhash

HEADS, TOKENS, CHANNELS = 2, 160, 24
BLOCK_TOKENS_MAX = 128
GROUP = 64


def round_up(n: int, to: int = 64) -> int:
    return (n + to - 1) // to * to


def padded(data: bytes, to: int = 64) -> bytes:
    return data.ljust(round_up(len(data), to), b"\0")


def widen(bf16: np.ndarray) -> np.ndarray:
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def nearest(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def rounded_up(x: np.ndarray) -> np.ndarray:
    return ((x.astype(np.float32).view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)


def lossless_block(values: np.ndarray) -> tuple[bytes, bytes]:
    """The entry and the bytes of one block."""
    groups = (len(values) + GROUP - 1) // GROUP
    exponents = (values >> 7 & 0xFF).astype(np.uint8)
    rests = (values >> 8 & 0x80 | values & 0x7F).astype(np.uint8)
    counts = np.bincount(exponents, minlength=256)
    order = sorted(range(256), key=lambda e: (-counts[e], e))

    def size(width: int) -> int:
        if width == 0:
            return groups * GROUP
        escapes = len(values) - counts[order[: 2**width - 1]].sum()
        return round_up(groups * 8 * width) + round_up(int(escapes))

    width = min(range(5), key=lambda w: (size(w), w))
    table = order[: 2**width - 1]
    places = np.full(256, 2**width - 1)
    places[table] = np.arange(len(table))
    fill = groups * GROUP - len(values)
    place = np.concatenate([places[exponents], np.zeros(fill, int)])
    exponent = np.concatenate([exponents, np.zeros(fill, np.uint8)])
    escapes = exponent[place == 2**width - 1].astype(np.uint8).tobytes()
    planes = b""
    for group in range(groups):
        here = place[group * GROUP : (group + 1) * GROUP]
        for bit in range(width):
            planes += np.packbits(here >> bit & 1, bitorder="little").tobytes()
    entry = bytes(table).ljust(15, b"\0") + bytes([width])
    entry += len(escapes).to_bytes(8, "little") + bytes(8)
    rest = rests.tobytes().ljust(groups * GROUP, b"\0")
    return entry, rest + padded(planes) + padded(escapes)


def lossless(slab: np.ndarray) -> bytes:
    blocks = [lossless_block(block) for block in slab.reshape(2 * HEADS, -1)]
    directory = padded(b"".join(entry for entry, _ in blocks))
    return directory + b"".join(data for _, data in blocks) + bytes(GROUP)


def quotient(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.rint(np.divide(x, step, out=np.zeros_like(x), where=step > 0))


def int8(slab: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The part, and the numbers that it stands for."""
    keys, values = widen(slab).reshape(2, HEADS, TOKENS, CHANNELS)
    blocks = (TOKENS + BLOCK_TOKENS_MAX - 1) // BLOCK_TOKENS_MAX
    length = (TOKENS + blocks - 1) // blocks
    scales, key_bytes, decoded = b"", np.zeros(keys.shape, np.uint8), np.zeros(keys.shape, np.float32)
    for head in range(HEADS):
        for first in range(0, TOKENS, length):
            some = keys[head, first : first + length]
            least = some.min(axis=0)
            step = rounded_up((some.max(axis=0) - least) / np.float32(255))
            n = np.minimum(quotient(some - least, np.broadcast_to(widen(step), some.shape)), 255)
            scales += nearest(least).tobytes() + step.tobytes()
            key_bytes[head, first : first + length] = n
            decoded[head, first : first + length] = n.astype(np.float32) * widen(step) + least
    step = rounded_up(np.abs(values).max(axis=2) / np.float32(127))
    n = quotient(values, np.broadcast_to(widen(step)[..., None], values.shape)).clip(-127, 127)
    value_bytes = n.astype(np.int8)
    decoded_values = value_bytes.astype(np.float32) * widen(step)[..., None]
    part = padded(scales) + padded(step.tobytes())
    part += padded(key_bytes.tobytes()) + padded(value_bytes.tobytes())
    return part, nearest(np.concatenate([decoded.ravel(), decoded_values.ravel()]))


def tables_file(codec: int, body: bytes) -> bytes:
    rest = struct.pack("<IHHIIIIQ", 1, codec, 1, 1, HEADS, CHANNELS, 0, len(body)) + body
    return b"KVTABL\x1a\n" + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


LANES = 16
RANS_BITS = 12


class CacheGen:
    """Distributions of no model, but each level occurs: a bell around 0, wider for later
    channels."""

    MOST = (15, 7)  # of K and V

    def __init__(self, slab: np.ndarray):
        numbers = widen(slab).reshape(2, HEADS * TOKENS * CHANNELS)
        self.first_step = [nearest(x.max() / m / np.float32(2**10))
                           for x, m in zip(numbers, self.MOST)]
        self.counts = [[self.bell(m, 0.3 + 2.5 * c / CHANNELS) for c in range(HEADS * CHANNELS)]
                       for m in self.MOST]

    @staticmethod
    def bell(most: int, width: float) -> list[int]:
        shape = np.exp(-0.5 * (np.arange(-most, most + 1) / most / width * 3) ** 2)
        counts = np.maximum(1, np.floor(shape / shape.sum() * 2**RANS_BITS)).astype(int)
        counts[most] += 2**RANS_BITS - counts.sum()
        return counts.tolist()

    def tables(self) -> bytes:
        body = b""
        for most, step, counts in zip(self.MOST, self.first_step, self.counts):
            body += struct.pack("<HH", most, int(step)) + np.array(counts, "<u2").tobytes()
        return tables_file(3, body)

    def part(self, slab: np.ndarray) -> tuple[bytes, np.ndarray]:
        """The part, and the numbers that it stands for."""
        codes, symbols, decoded = b"", [], []
        for plane, most in zip(range(2), self.MOST):
            x = widen(slab).reshape(2, HEADS, TOKENS, CHANNELS)[plane]
            first_step = widen(self.first_step[plane]).astype(float)
            steps = nearest(first_step * 2 ** (np.arange(256) / 16))
            needed = np.abs(x).max(axis=(0, 2)) / np.float32(most)
            code = np.searchsorted(widen(steps), needed, side="left")
            assert code.max() < 256
            step = widen(steps[code])[None, :, None]
            n = np.rint(x / step).clip(-most, most)
            codes += code.astype(np.uint8).tobytes()
            symbols.append((n + most).astype(int).transpose(0, 2, 1).reshape(-1, TOKENS))
            decoded.append((n.astype(np.int8).astype(np.float32) * step).ravel())  # no -0
        return padded(codes) + padded(self.rans(symbols)), nearest(np.concatenate(decoded))

    def rans(self, symbols: list[np.ndarray]) -> bytes:
        states, words = [2**16] * LANES, []
        for plane in (1, 0):
            for channel in reversed(range(HEADS * CHANNELS)):
                counts = self.counts[plane][channel]
                for token in reversed(range(TOKENS)):
                    s = symbols[plane][channel, token]
                    first, count, x = sum(counts[:s]), counts[s], states[token % LANES]
                    if x >= count << (32 - RANS_BITS):
                        words.append(x & 0xFFFF)
                        x >>= 16
                    states[token % LANES] = (x // count << RANS_BITS) + x % count + first
        return np.array(states, "<u4").tobytes() + np.array(words[::-1], "<u2").tobytes()


FIRST_TOKENS = 4
OUTLIER_BLOCK, VALUES_PER_OUTLIER = 65536, 100


class KvQuant3:
    """Means and spreads of the slab itself, and centroids of no model."""

    CENTROIDS = (np.array([-1.9, -1.2, -0.7, -0.2, 0.25, 0.75, 1.25, 2.0], np.float32),
                 np.array([-2.1, -1.3, -0.75, -0.25, 0.2, 0.7, 1.2, 1.9], np.float32))

    def __init__(self, slab: np.ndarray):
        keys = widen(slab).reshape(2, HEADS, TOKENS, CHANNELS)[0]
        self.frequencies = (100.0 ** -np.linspace(0, 1, CHANNELS // 2)).astype(np.float32)
        self.offsets = keys.mean(axis=1).astype(np.float32)
        self.scales = (keys.std(axis=1) + 0.1).astype(np.float32)

    def tables(self) -> bytes:
        parts = [self.frequencies, self.offsets, self.scales, *self.CENTROIDS]
        return tables_file(4, b"".join(part.astype("<f4").tobytes() for part in parts))

    def angles(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        speeds = self.frequencies.astype(np.float64)
        each = np.vectorize(math.cos), np.vectorize(math.sin)  # libm's, not numpy's own
        c0, s0 = (f(float(position) * speeds) for f in each)
        ct, st = (f(np.arange(TOKENS, dtype=np.float64)[:, None] * speeds) for f in each)
        return (c0 * ct - s0 * st).astype(np.float32), (s0 * ct + c0 * st).astype(np.float32)

    def part(self, slab: np.ndarray, position: int) -> tuple[bytes, np.ndarray]:
        """The part, and the numbers that it stands for."""
        planes = widen(slab).reshape(2, HEADS, TOKENS, CHANNELS)
        first = min(max(0, FIRST_TOKENS - position), TOKENS)
        cosine, sine = self.angles(position)
        x, y = np.split(planes[0], 2, axis=2)
        keys = np.concatenate([x * cosine + y * sine, y * cosine - x * sine], axis=2)
        wide = planes[1].astype(np.float64)
        offset = nearest(wide.mean(axis=(0, 2)))
        spread = wide - wide.mean(axis=(0, 2))[None, :, None]
        scale = nearest(np.sqrt((spread ** 2).mean(axis=(0, 2))))
        offset[:first] = scale[:first] = 0
        part = padded(offset.tobytes() + scale.tobytes())
        k = self.plane(keys, self.offsets[:, None, :], self.scales[:, None, :], 0, first)
        v = self.plane(planes[1], widen(offset)[None, :, None], widen(scale)[None, :, None], 1,
                       first)
        part += k[0] + v[0] + k[1] + v[1]
        x, y = np.split(k[2], 2, axis=2)
        turned = nearest(np.concatenate([x * cosine - y * sine, y * cosine + x * sine], axis=2))
        decoded = np.stack([turned, nearest(v[2])])
        kept = slab.reshape(decoded.shape)[:, :, :first]
        decoded[:, :, :first] = kept
        return part + padded(kept.tobytes()), decoded.ravel()

    def plane(self, x, offset, scale, plane, first) -> tuple[bytes, bytes, np.ndarray]:
        """The outliers, the codes, and the numbers that they stand for."""
        centroids = self.CENTROIDS[plane]
        normal = np.divide(x - offset, scale, out=np.zeros_like(x), where=scale > 0)
        between = (centroids[:-1] + centroids[1:]) * np.float32(0.5)
        codes = (normal[..., None] > between).sum(axis=-1)
        codes[:, :first] = 0
        numbers = offset + scale * centroids[codes]
        errors = np.abs(x - numbers)
        errors[:, :first] = 0
        flat, numbers = x.ravel(), numbers.ravel().copy()
        indexes, values = b"", b""
        for at in range(0, len(flat), OUTLIER_BLOCK):
            block = errors.ravel()[at : at + OUTLIER_BLOCK]
            chosen = np.sort(np.argsort(-block, kind="stable")[: len(block) // VALUES_PER_OUTLIER])
            indexes += chosen.astype("<u2").tobytes()
            values += nearest(flat[at + chosen]).tobytes()
            numbers[at + chosen] = widen(nearest(flat[at + chosen]))
        bits = (codes.reshape(HEADS * TOKENS, CHANNELS, 1) >> np.arange(3) & 1).astype(np.uint8)
        rows = np.packbits(bits.reshape(HEADS * TOKENS, -1), axis=1, bitorder="little")
        return padded(indexes + values), padded(rows.tobytes()), numbers.reshape(x.shape)


def main() -> None:
    rng = np.random.default_rng(1)
    shape = (HEADS, TOKENS, CHANNELS)
    spread = np.exp(rng.standard_normal((HEADS, 1, CHANNELS)))
    keys = 2 * rng.standard_normal((HEADS, 1, CHANNELS)) + spread * rng.standard_normal(shape)
    keys[0, :, 3] = -1.5  # a channel that never changes
    keys[1, 7, 5] = 0.0
    values = 0.1 * rng.standard_normal(shape)
    values[0, 9] = 0  # a token without any
    values[1, 11, 2] = -1e-39  # subnormal
    slab = nearest(np.concatenate([keys.ravel(), values.ravel()]).astype(np.float32))
    here = pathlib.Path(__file__).parent
    (here / "slab.bin").write_bytes(slab.tobytes())
    (here / "lossless.part").write_bytes(lossless(slab))
    part, numbers = int8(slab)
    (here / "int8.part").write_bytes(part)
    (here / "int8.slab").write_bytes(numbers.tobytes())
    cachegen = CacheGen(slab)
    (here / "cachegen.tables").write_bytes(cachegen.tables())
    part, numbers = cachegen.part(slab)
    (here / "cachegen.part").write_bytes(part)
    (here / "cachegen.slab").write_bytes(numbers.tobytes())
    kvquant3 = KvQuant3(slab)
    (here / "kvquant3.tables").write_bytes(kvquant3.tables())
    for position, name in ((0, "kvquant3"), (4096, "kvquant3-4096")):
        part, numbers = kvquant3.part(slab, position)
        (here / f"{name}.part").write_bytes(part)
        (here / f"{name}.slab").write_bytes(numbers.tobytes())


main()
