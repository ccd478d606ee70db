#include "base/secret_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "base/open_descriptors_testing.h"
#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class SecretFileTest : public testing::Test {
 protected:
  std::string File(const std::string& text) const {
    const std::string path = dir_.path() + "/secret";
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }

  const TempDir dir_;
};

TEST_F(SecretFileTest, ASecretEndsWhereItsTextDoesAndOneTooLongIsSeenToBe) {
  EXPECT_EQ(ReadSecretFile(File(" a b \t\r\n\n"), "--key", 4), " a b");
  EXPECT_EQ(ReadSecretFile(File("12345\n"), "--key", 4), "12345");
  EXPECT_EQ(ReadSecretFile(File("1234567"), "--key", 4), "12345");
  EXPECT_EQ(ReadSecretFile(File("1234" + std::string(60, '\n') + "5"), "--key", 4)->size(), 5u);
  EXPECT_EQ(ReadSecretFile(File(""), "--key", 4), "");
}

TEST_F(SecretFileTest, WhatIsNoFileIsNotWaitedFor) {
  const std::string pipe = dir_.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, dir_.path()}) {
    const auto secret = ReadSecretFile(path, "--key", 4);
    ASSERT_FALSE(secret);
    EXPECT_EQ(secret.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(secret.error().message, "--key " + path + " is no file");
  }
}

TEST_F(SecretFileTest, WhatOthersMayUseIsRefusedAndNothingStaysOpen) {
  const std::string path = File("1234");
  const size_t before = testing_util::OpenDescriptors();
  EXPECT_TRUE(ReadSecretFile(path, "--key", 4));
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  const auto secret = ReadSecretFile(path, "--key", 4);
  ASSERT_FALSE(secret);
  EXPECT_THAT(secret.error().message, HasSubstr("chmod 600 " + path));
  EXPECT_EQ(testing_util::OpenDescriptors(), before);
}

}  // namespace
}  // namespace kvcake
