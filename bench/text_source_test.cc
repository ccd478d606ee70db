#include "bench/text_source.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("word{}{}", i, i % 7 == 0 ? "\n\n" : " ");
  return text;
}

TEST(TextSource, EqualLabelsAreEqualTextAndFewerTokensAreItsBeginning) {
  const TextSource source = TextSource::Of(Words(5000)).value();
  for (int i = 0; i < 50; ++i) {
    const std::string label = fmt::format("Document {}", i);
    const std::string whole = source.Cut({label, 1000}, 4, 1);
    EXPECT_EQ(whole, source.Cut({label, 1000}, 4, 1));
    EXPECT_THAT(whole, StartsWith(source.Cut({label, 20 + 7 * i}, 4, 1)));
    EXPECT_THAT(whole, StartsWith(label + "."));
  }
}

TEST(TextSource, OtherLabelsAndSeedsAreOtherText) {
  const TextSource source = TextSource::Of(Words(5000)).value();
  const std::string one = source.Cut({"Document 1", 100}, 4, 1);
  EXPECT_NE(one.substr(0, 12), source.Cut({"Document 2", 100}, 4, 1).substr(0, 12));
  EXPECT_NE(one.substr(0, 12), source.Cut({"Document 11", 100}, 4, 1).substr(0, 12));
  EXPECT_NE(one, source.Cut({"Document 1", 100}, 4, 2));
}

TEST(TextSource, LengthsAreRightToHalfAWordAlsoBeyondTheText) {
  const TextSource source = TextSource::Of(Words(300)).value();  // about 2,500 characters
  for (const int tokens : {10, 50, 1000, 20000}) {
    const std::string cut = source.Cut({"Document 3", tokens}, 3.5, 9);
    EXPECT_NEAR(static_cast<double>(cut.size()), 3.5 * tokens, 5);
    EXPECT_NE(cut.back(), ' ');
  }
}

TEST(TextSource, ReadsAFileOrTheTextsOfADirectory) {
  const TempDir dir;
  std::ofstream(dir.path() + "/a.txt") << Words(60);
  std::ofstream(dir.path() + "/b.txt") << Words(60);
  std::ofstream(dir.path() + "/c.md") << "\xff not read";
  EXPECT_TRUE(TextSource::Read(dir.path()));
  EXPECT_THAT(TextSource::Read(dir.path() + "/a.txt").error().message,
              HasSubstr("60 words makes no prompts"));
  EXPECT_THAT(TextSource::Read(dir.path() + "/none.txt").error().message, HasSubstr("--text"));
  const TempDir empty;
  EXPECT_THAT(TextSource::Read(empty.path()).error().message, HasSubstr("it has no *.txt"));
}

}  // namespace
}  // namespace kvcake::bench
