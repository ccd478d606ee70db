#!/usr/bin/env python3
"""Writes src/model/nfc_table.cc, Unicode's normalisation data, from Python's own copy of it.

    tools/make_nfc_table.py > src/model/nfc_table.cc
"""
import sys
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic, not by table


def decompositions():
    for code in range(sys.maxunicode + 1):
        mapping = unicodedata.decomposition(chr(code))
        if not mapping or mapping.startswith("<") or code in HANGUL:
            continue
        parts = [int(part, 16) for part in mapping.split()]
        yield code, parts[0], parts[1] if len(parts) == 2 else 0


def never_composed():
    for code, _, second in decompositions():
        if second and unicodedata.normalize("NFC", chr(code)) != chr(code):
            yield (code,)


def combining_ranges():
    first = last = current = 0
    for code in range(sys.maxunicode + 1):
        combining = unicodedata.combining(chr(code))
        if combining and combining == current and code == last + 1:
            last = code
            continue
        if current:
            yield first, last, current
        first, last, current = code, code, combining
    if current:
        yield first, last, current


def table(kind, name, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "    "
    for row in rows:
        entry = ",".join(str(n) for n in row)
        entry = f"{{{entry}}}," if len(row) > 1 else f"{entry},"
        if len(line) + len(entry) > 100:
            print(line)
            line = "    "
        line += entry
    print(line)
    print("};")


def main():
    print(f"// Made by tools/make_nfc_table.py from Unicode {unicodedata.unidata_version}.")
    print('#include "model/nfc_table.h"\n\nnamespace kvcake {\n\nnamespace {\n')
    print("// clang-format off")
    table("CombiningRange", "kCombiningRanges", combining_ranges())
    print()
    table("Decomposition", "kDecompositions", decompositions())
    print()
    table("uint32_t", "kNeverComposed", never_composed())
    print("// clang-format on\n\n}  // namespace\n")
    print("std::span<const CombiningRange> CombiningRanges() { return kCombiningRanges; }")
    print("std::span<const Decomposition> Decompositions() { return kDecompositions; }")
    print("std::span<const uint32_t> NeverComposed() { return kNeverComposed; }")
    print("\n}  // namespace kvcake")


if __name__ == "__main__":
    main()
