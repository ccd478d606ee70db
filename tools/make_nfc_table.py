#!/usr/bin/env python3
"""Writes src/model/nfc_table.cc, Unicode's normalisation data, from Python's own copy of it.

    tools/make_nfc_table.py > src/model/nfc_table.cc
"""
import sys
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic, not by table

# Marks and a letter that Unicode 10 to 14 brought. Hugging Face's tokenizers normalise as Unicode 9
# says, and leave them as they are.
NEWER = """7fd 898-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa a82c 10d24-10d27
10eab-10eac 10f46-10f50 10f82-10f85 11070 1133b 1145e 11839-1183a 11938 1193d-1193e 11943 119e0
11a34 11a47 11a99 11d42 11d44-11d45 11d97 16ff0-16ff1 1e130-1e136 1e2ae 1e2ec-1e2ef"""


def known():
    newer = set()
    for span in NEWER.split():
        first, _, last = span.partition("-")
        newer.update(range(int(first, 16), int(last or first, 16) + 1))
    return (code for code in range(sys.maxunicode + 1) if code not in newer)


def decompositions():
    for code in known():
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
    for code in known():
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
    print(f"// Made by tools/make_nfc_table.py from Unicode {unicodedata.unidata_version}, without what is newer")
    print("// than Unicode 9.")
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
