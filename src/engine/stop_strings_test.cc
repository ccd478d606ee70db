#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcake {
namespace {

// The definition: the first stop string to be whole, of several that end at one place the one that
// is named first, and where it begins; the text's end where there is none.
std::pair<size_t, std::string> FirstWhole(const std::string& text,
                                          const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (const auto& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) return {end - stop.size(), stop};
    }
  }
  return {text.size(), ""};
}

std::string RandomText(std::string_view letters, int length, std::mt19937& rng) {
  std::string text;
  for (int i = 0; i < length; ++i) text += letters[rng() % letters.size()];
  return text;
}

TEST(StopStringsTest, AnySplittingGivesTheTextBeforeTheFirstStop) {
  std::mt19937 rng(1);
  const auto random_text = [&](int length) { return RandomText("ab\n", length, rng); };
  int found = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> stops = {random_text(1 + rng() % 4), random_text(1 + rng() % 4)};
    const std::string text = random_text(rng() % 30);
    StopStrings matcher(stops);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t piece = 1 + rng() % 5;
      out += matcher.Append(text.substr(at, piece));
      at += piece;
    }
    out += matcher.Finish();
    found += matcher.found();
    const auto [cut, stop] = FirstWhole(text, stops);
    ASSERT_EQ(out, text.substr(0, cut));
    ASSERT_EQ(matcher.found() ? matcher.stop() : "", stop);
  }
  EXPECT_GT(found, 1000);
}

// The definition: everything before the first occurrence that ends behind the early text.
TEST(StopStringsTest, EarlyTextBeginsStopsAndCompletesNone) {
  std::mt19937 rng(2);
  const auto random_text = [&](int length) { return RandomText("ab", length, rng); };
  int begun_early = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> stops = {random_text(1 + rng() % 5), random_text(1 + rng() % 5)};
    const std::string early = random_text(rng() % 8), late = random_text(1 + rng() % 8);
    const std::string text = early + late;
    StopStrings matcher(stops);
    std::string out;
    size_t cut = std::string::npos;
    const auto looks = [&](size_t size) {  // as soon as there is one
      for (const auto& stop : stops) {
        if (cut == std::string::npos && text.substr(0, size).ends_with(stop)) {
          cut = size - stop.size();
        }
      }
    };
    for (const char c : early) out += matcher.AppendEarly(std::string(1, c));
    for (size_t at = 0; at < late.size(); ++at) {
      out += matcher.Append(late.substr(at, 1));
      looks(early.size() + at + 1);
      ASSERT_EQ(matcher.found(), cut != std::string::npos);
    }
    out += matcher.Finish();
    ASSERT_EQ(out, text.substr(0, cut)) << early << ' ' << late;
    begun_early += cut < early.size();
  }
  EXPECT_GT(begun_early, 500);
}

TEST(StopStringsTest, SaysWhichOneItWas) {
  StopStrings matcher({"", "never", "cde", "d", "cd"});
  EXPECT_EQ(matcher.Append("abcdef"), "abc");  // as if letters came one by one
  EXPECT_EQ(matcher.stop(), "d");
  StopStrings longer({"cd", "d"});
  EXPECT_EQ(longer.Append("abcd"), "ab");
  EXPECT_EQ(longer.stop(), "cd");
}

TEST(StopStringsTest, HoldsBackNoMoreThanNeeded) {
  StopStrings matcher({"stop", ""});
  EXPECT_EQ(matcher.Append("go on, s"), "go on, ");
  EXPECT_EQ(matcher.Append("tay"), "stay");
  EXPECT_EQ(matcher.Append("sto"), "");
  EXPECT_EQ(matcher.Append("p here"), "");
  EXPECT_TRUE(matcher.found());
  EXPECT_EQ(matcher.Append("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

}  // namespace
}  // namespace kvcake
