#include "store/owner.h"

#include <gtest/gtest.h>

#include "base/temp_dir_testing.h"
#include "io/power_loss_file_system_testing.h"

namespace kvcake {
namespace {

// Written with the chunks: a number of another day or machine must be the same.
TEST(OwnerTest, ANameIsTheSameNumberEverywhere) {
  EXPECT_EQ(OwnerOf(""), kNobody);
  EXPECT_EQ(OwnerOf("ann"), 0x49915e0d7d4b402eull);
  EXPECT_NE(OwnerOf("ann"), OwnerOf("bob"));
}

TEST(OwnerTest, AFileSaysWhoseItIs) {
  PowerLossFileSystem fs(1);
  ASSERT_TRUE(fs.MakeDirs("/a"));
  {
    const auto file = fs.Create("/a/chunk", false).value();
    EXPECT_EQ(ReadOwner(fs, "/a/chunk"), kNobody);
    ASSERT_TRUE(WriteOwner(*file, OwnerOf("ann")));
    EXPECT_EQ(ReadOwner(fs, "/a/chunk"), OwnerOf("ann"));
    for (const char* odd : {"", "0", "0123456789abcdeg", "0123456789abcdef0"}) {
      ASSERT_TRUE(file->SetAttribute("user.kvcake.owner", odd));
      EXPECT_EQ(ReadOwner(fs, "/a/chunk"), kNobody) << odd;
    }
  }
  EXPECT_EQ(ReadOwner(fs, "/a/missing"), kNobody);
}

}  // namespace
}  // namespace kvcake
