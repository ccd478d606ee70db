#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace kvcake {
namespace {

// The definition: everything before the first occurrence of any stop string.
std::string CutAtFirstStop(const std::string& text, const std::vector<std::string>& stops) {
  size_t cut = std::string::npos;
  for (const auto& stop : stops) cut = std::min(cut, text.find(stop));
  return text.substr(0, cut);
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
    // Two stops of one length: neither contains the other, so the first to begin ends first.
    const int length = 1 + rng() % 4;
    const std::vector<std::string> stops = {random_text(length), random_text(length)};
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
    ASSERT_EQ(out, CutAtFirstStop(text, stops));
    ASSERT_EQ(matcher.found(), out.size() < text.size());
    ASSERT_TRUE(!matcher.found() || text.substr(out.size()).starts_with(matcher.stop()));
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
      for (size_t at = 0; at < size; ++at) {
        for (const auto& stop : stops) {
          const size_t end = at + stop.size();
          if (text.compare(at, stop.size(), stop) != 0 || end > size) continue;
          if (end > early.size()) cut = std::min(cut, at);
        }
      }
    };
    for (const char c : early) out += matcher.AppendEarly(std::string(1, c));
    for (size_t at = 0; at < late.size(); ++at) {
      out += matcher.Append(late.substr(at, 1));
      if (cut == std::string::npos) looks(early.size() + at + 1);
      ASSERT_EQ(matcher.found(), cut != std::string::npos);
    }
    out += matcher.Finish();
    ASSERT_EQ(out, text.substr(0, cut)) << early << ' ' << late;
    begun_early += cut < early.size();
  }
  EXPECT_GT(begun_early, 500);
}

TEST(StopStringsTest, SaysWhichOneItWas) {
  StopStrings matcher({"", "never", "ef", "cde", "cd"});
  EXPECT_EQ(matcher.Append("abcdef"), "ab");
  EXPECT_EQ(matcher.stop(), "cde");
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
