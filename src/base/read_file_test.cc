#include "base/read_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/open_descriptors_testing.h"
#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

class ReadFileTest : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return dir_.path() + "/" + name; }
  std::optional<ErrorCode> Refused(const std::string& name) const {
    const auto text = ReadFile(In(name), 100);
    if (text) return std::nullopt;
    EXPECT_NE(text.error().message.find(In(name)), std::string::npos) << text.error().message;
    return text.error().code;
  }

  const TempDir dir_;
};

TEST_F(ReadFileTest, ReadsAFileAndALinkToIt) {
  const std::string bytes("a\0\r\n\xff", 5);
  std::ofstream(In("file")) << bytes;
  std::ofstream(In("empty"));
  ASSERT_EQ(symlink(In("file").c_str(), In("link").c_str()), 0);
  EXPECT_EQ(ReadFile(In("file"), 5), bytes);
  EXPECT_EQ(ReadFile(In("link"), 5), bytes);
  EXPECT_EQ(ReadFile(In("empty"), 0), "");
}

TEST_F(ReadFileTest, WhatIsNoFileIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/zero", In("zeros").c_str()), 0);
  ASSERT_EQ(mkdir(In("dir").c_str(), 0700), 0);
  for (const char* name : {"pipe", "zeros", "dir"})
    EXPECT_EQ(Refused(name), ErrorCode::kIo) << name;
  EXPECT_EQ(Refused("none"), ErrorCode::kNotFound);
  std::ofstream(In("file"));
  EXPECT_EQ(Refused("file/none"), ErrorCode::kNotFound);
  ASSERT_EQ(symlink("loop", In("loop").c_str()), 0);
  EXPECT_EQ(Refused("loop"), ErrorCode::kIo) << "there is one, and it cannot be read";
}

TEST_F(ReadFileTest, WhatIsTooLongIsNotRead) {
  std::ofstream(In("long")) << std::string(101, 'x');
  EXPECT_EQ(Refused("long"), ErrorCode::kResourceExhausted);
}

TEST_F(ReadFileTest, WhatComesInPiecesIsReadWhole) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_DIRECT), 0);  // a call reads what one call has written, and no more
  for (const std::string_view piece : {"a", "bcde", "fgh"}) {
    ASSERT_EQ(write(ends[1], piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
  }
  close(ends[1]);
  std::array<char, 8> text = {};
  EXPECT_EQ(ReadFully(ends[0], std::span(text).first(5)), 5);
  EXPECT_EQ(std::string_view(text.data(), 5), "abcde");
  EXPECT_EQ(ReadFully(ends[0], text), 3) << "it ends there";
  EXPECT_EQ(std::string_view(text.data(), 3), "fgh");
  close(ends[0]);
  EXPECT_EQ(ReadFully(ends[0], text), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(ReadFileTest, NothingStaysOpen) {
  std::ofstream(In("file")) << "text";
  const size_t before = testing_util::OpenDescriptors();
  EXPECT_TRUE(ReadFile(In("file"), 4));
  EXPECT_FALSE(ReadFile(In("file"), 3));
  EXPECT_FALSE(ReadFile(dir_.path(), 3));
  EXPECT_EQ(testing_util::OpenDescriptors(), before);
}

}  // namespace
}  // namespace kvcake
