#!/usr/bin/env python3
"""Writes src/jinja/unicode_table.cc, Unicode's case and classes, from Python's own copy of them.

    tools/make_unicode_table.py > src/jinja/unicode_table.cc
"""
import sys
import unicodedata

CODES = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
# In the order of the bits of CharacterClass in unicode_table.h.
CLASSES = [
    str.isalpha,
    str.isdecimal,
    str.isdigit,
    str.isnumeric,
    str.isprintable,
    str.islower,
    str.isupper,
    lambda c: unicodedata.category(c) == "Lt",
    # A letter after it is not the first of a word.
    lambda c: (c + "a").title()[-1] == "a",
    # It hides what is before a sigma.
    lambda c: ("A" + c + "\u03a3").lower()[-1] == "\u03c2" and
              ("1" + c + "\u03a3").lower()[-1] == "\u03c3",
    str.isidentifier,
    lambda c: ("a" + c).isidentifier(),
]


def classes() -> list[tuple[int, int, int]]:
    """(first, last, bits), without what has no class."""
    ranges: list[tuple[int, int, int]] = []
    for code in CODES:
        bits = sum(bool(holds(chr(code))) << i for i, holds in enumerate(CLASSES))
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == bits:
            ranges[-1] = (ranges[-1][0], code, bits)
        elif bits:
            ranges.append((code, code, bits))
    return ranges


def mappings(of, otherwise) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """(first, last, step, delta) and (code, three codes or zeros) where they differ."""
    ranges: list[tuple[int, ...]] = []
    special: list[tuple[int, ...]] = []
    for code in CODES:
        mapped = of(chr(code))
        if mapped == otherwise(chr(code)):
            continue
        if len(mapped) > 1:
            special.append((code, *(ord(c) for c in mapped), *[0] * (3 - len(mapped))))
            continue
        delta = ord(mapped) - code
        if ranges and ranges[-1][3] == delta:
            first, last, step, _ = ranges[-1]
            if code - last in (1, 2) and (first == last or code - last == step):
                ranges[-1] = (first, code, code - last, delta)
                continue
        ranges.append((code, code, 1, delta))
    return ranges, special


def table(kind: str, name: str, rows: list[tuple[int, ...]]) -> None:
    print(f"constexpr {kind} {name}[] = {{")
    line = "    "
    for row in rows:
        numbers = [str(n) for n in row]
        if kind == "SpecialCase":
            numbers[1:] = ["{" + ",".join(numbers[1:]) + "}"]
        entry = "{" + ",".join(numbers) + "},"
        if len(line) + len(entry) > 100:
            print(line)
            line = "    "
        line += entry
    print(line + "\n};\n")


def main() -> None:
    print(f"// Made by tools/make_unicode_table.py from Unicode {unicodedata.unidata_version}.\n"
          '#include "jinja/unicode_table.h"\n\nnamespace kvcake::jinja {\n\nnamespace {\n\n'
          "// clang-format off")
    table("ClassRange", "kClasses", classes())
    same = str
    cases = [("Upper", str.upper, same), ("Lower", str.lower, same), ("Title", str.title, str.upper),
             ("Fold", str.casefold, str.lower)]
    for name, of, otherwise in cases:
        ranges, special = mappings(of, otherwise)
        table("CaseRange", f"k{name}Ranges", ranges)
        table("SpecialCase", f"k{name}Special", special)
    print("// clang-format on\n\n}  // namespace\n\n"
          "std::span<const ClassRange> ClassRanges() { return kClasses; }\n"
          "const CaseTable& TableOf(Case to) {\n  static constexpr CaseTable kTables[] = {")
    for name, _, _ in cases:
        print(f"      {{k{name}Ranges, k{name}Special}},")
    print("  };\n  return kTables[static_cast<int>(to)];\n}\n\n}  // namespace kvcake::jinja")


if __name__ == "__main__":
    main()
