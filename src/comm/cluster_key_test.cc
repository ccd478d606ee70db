#include "comm/cluster_key.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class ClusterKeyTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("KVCAKE_CLUSTER_KEY"); }
  void TearDown() override { unsetenv("KVCAKE_CLUSTER_KEY"); }

  std::string File(const std::string& text, mode_t mode = 0600) {
    const std::string path = dir_.path() + "/key";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  TempDir dir_;
};

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

TEST_F(ClusterKeyTest, IsOfAFileOrOfTheEnvironmentOrThereIsNone) {
  const auto none = ClusterKey::Load("");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
  const auto file = ClusterKey::Load(File(std::string(kSecret) + "\n"));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_FALSE(file->empty());
  for (const char* end : {"", "\n", " \r\n"}) {  // as of `echo KEY`
    setenv("KVCAKE_CLUSTER_KEY", (std::string(kSecret) + end).c_str(), 1);
    const auto environment = ClusterKey::Load("");
    ASSERT_TRUE(environment);
    EXPECT_EQ(environment->Prove("p", {"t"}), file->Prove("p", {"t"}));
  }
  EXPECT_NE(none->Prove("p", {"t"}), file->Prove("p", {"t"}));
}

TEST_F(ClusterKeyTest, AFileThatOthersMayUseIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0601, 0444}) {
    const std::string path = File(kSecret, mode);
    const auto key = ClusterKey::Load(path);
    ASSERT_FALSE(key) << mode;
    EXPECT_EQ(key.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(key.error().message, HasSubstr("chmod 600 " + path));
  }
  EXPECT_TRUE(ClusterKey::Load(File(kSecret, 0400)));
}

TEST_F(ClusterKeyTest, WhatIsNoKeyIsRefused) {
  for (const std::string& text : {std::string(), std::string("short\n"), std::string(5000, 'x')}) {
    const auto key = ClusterKey::Load(File(text));
    ASSERT_FALSE(key);
    EXPECT_THAT(key.error().message, HasSubstr("openssl rand -hex 32"));
  }
  for (const size_t bytes : {kClusterKeyBytesMin, kClusterKeyBytesMax}) {
    EXPECT_TRUE(ClusterKey::Of(std::string(bytes, 'x'), "test"));
  }
  EXPECT_FALSE(ClusterKey::Of(std::string(kClusterKeyBytesMin - 1, 'x'), "test"));
  EXPECT_FALSE(ClusterKey::Of(std::string(kClusterKeyBytesMax + 1, 'x'), "test"));
  EXPECT_THAT(ClusterKey::Load(dir_.path()).error().message, HasSubstr("is no file"));
  EXPECT_EQ(ClusterKey::Load(dir_.path() + "/none").error().code, ErrorCode::kIo);
  setenv("KVCAKE_CLUSTER_KEY", "", 1);
  ASSERT_FALSE(ClusterKey::Load("")) << "an empty one is a mistake, not none";
}

TEST_F(ClusterKeyTest, AProofIsOfItsKeyPurposeAndTranscript) {
  const ClusterKey key = *ClusterKey::Of(kSecret, "test");
  const Digest proof = key.Prove("purpose", {"ab", "c"});
  EXPECT_TRUE(SameProof(proof, key.Prove("purpose", {"ab", "c"})));
  EXPECT_FALSE(SameProof(proof, key.Prove("purpose", {"a", "bc"})));
  EXPECT_FALSE(SameProof(proof, key.Prove("purpose", {"abc"})));
  EXPECT_FALSE(SameProof(proof, key.Prove("purposea", {"b", "c"})));
  EXPECT_FALSE(SameProof(proof, key.Prove("other", {"ab", "c"})));
  const ClusterKey other = *ClusterKey::Of(std::string(kSecret) + "0", "test");
  EXPECT_FALSE(SameProof(proof, other.Prove("purpose", {"ab", "c"})));
  Digest near = proof;
  near.back() ^= 1;
  EXPECT_FALSE(SameProof(proof, near));
  EXPECT_NE(NewNonce(), NewNonce());
}

// RFC 2104's construction over the length-prefixed parts, so that other programs can speak it.
TEST_F(ClusterKeyTest, IsHmacSha256OfLengthPrefixedParts) {
  const ClusterKey key = *ClusterKey::Of(kSecret, "test");
  std::string message;
  for (const std::string& part : {std::string("purpose"), std::string("ab")}) {
    message += static_cast<char>(part.size()) + std::string(7, '\0') + part;
  }
  std::string inner(64, '\x36'), outer(64, '\x5c');
  for (size_t i = 0; i < std::string(kSecret).size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ kSecret[i]);
    outer[i] = static_cast<char>(outer[i] ^ kSecret[i]);
  }
  const Digest first = Sha256().Update(inner).Update(message).Finish();
  EXPECT_EQ(key.Prove("purpose", {"ab"}),
            Sha256().Update(outer).Update(std::as_bytes(std::span(first))).Finish());
}

}  // namespace
}  // namespace kvcake
