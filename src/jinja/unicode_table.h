// Unicode's case and classes as Python's strings know them; unicode_table.cc is made by
// tools/make_unicode_table.py.
#pragma once

#include <cstdint>
#include <span>

namespace kvcake::jinja {

enum CharacterClass : uint16_t {
  kAlpha = 1,
  kDecimal = 2,
  kDigit = 4,
  kNumeric = 8,
  kPrintable = 16,
  kLower = 32,
  kUpper = 64,
  kTitle = 128,
  kCased = 256,
  kCaseIgnorable = 512,
  kIdentifierStart = 1024,
  kIdentifier = 2048,
};

struct ClassRange {
  uint32_t first;
  uint32_t last;
  uint16_t classes;
};
// Each `step`-th character of the range becomes itself + delta.
struct CaseRange {
  uint32_t first;
  uint32_t last;
  uint32_t step;
  int32_t delta;
};
// A character that becomes several; 0 behind the last.
struct SpecialCase {
  uint32_t code;
  uint32_t to[3];
};
struct CaseTable {
  std::span<const CaseRange> ranges;
  std::span<const SpecialCase> special;
};

// Where a character is not in the table of its title case, that is its upper case, and its folded
// case is its lower.
enum class Case { kUpper, kLower, kTitle, kFold };

// All in ascending order.
std::span<const ClassRange> ClassRanges();
const CaseTable& TableOf(Case to);

}  // namespace kvcake::jinja
