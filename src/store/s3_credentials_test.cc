#include "store/s3_credentials.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/temp_dir_testing.h"
#include "store/s3_server_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class S3CredentialsTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.path() + "/" + name) << text;
  }

  const TempDir dir_;
  const std::string credentials_ = dir_.path() + "/credentials", config_ = dir_.path() + "/config";
  const ScopedEnvironment environment_{{{"AWS_ACCESS_KEY_ID", nullptr},
                                        {"AWS_SECRET_ACCESS_KEY", nullptr},
                                        {"AWS_SESSION_TOKEN", nullptr},
                                        {"AWS_PROFILE", nullptr},
                                        {"AWS_SHARED_CREDENTIALS_FILE", credentials_.c_str()},
                                        {"AWS_CONFIG_FILE", config_.c_str()}}};
};

TEST_F(S3CredentialsTest, TheEnvironmentComesFirstThenTheFiles) {
  EXPECT_FALSE(LocalCredentials("").value());
  Write("config",
        "[default]\nregion=x\n[profile \"other\"]\naws_access_key_id = C\n"
        "aws_secret_access_key = c=c\n");
  EXPECT_FALSE(LocalCredentials("").value());
  EXPECT_EQ(LocalCredentials("other").value()->secret_key, "c=c");
  Write("credentials",
        "# one\n[default]\r\n aws_access_key_id=F\r\naws_secret_access_key=f\r\n"
        "[ two ]\naws_access_key_id=T\naws_secret_access_key=t\naws_session_token=s\n");
  EXPECT_EQ(LocalCredentials("").value()->access_key, "F");
  EXPECT_EQ(LocalCredentials("").value()->secret_key, "f");
  EXPECT_EQ(LocalCredentials("two").value()->session_token, "s");
  const ScopedEnvironment profile({{"AWS_PROFILE", "two"}});
  EXPECT_EQ(LocalCredentials("").value()->access_key, "T");
  const ScopedEnvironment set({{"AWS_ACCESS_KEY_ID", "E"}, {"AWS_SECRET_ACCESS_KEY", "e"}});
  EXPECT_EQ(LocalCredentials("").value()->access_key, "E");
  EXPECT_EQ(LocalCredentials("other").value()->access_key, "C") << "the store's own profile";
}

TEST_F(S3CredentialsTest, HalfOfThemIsRefusedByName) {
  {
    const ScopedEnvironment set({{"AWS_ACCESS_KEY_ID", "E"}});
    EXPECT_THAT(LocalCredentials("").error().message, HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
  }
  Write("credentials", "[default]\naws_access_key_id=F\n");
  EXPECT_THAT(LocalCredentials("").error().message, HasSubstr(credentials_));
  EXPECT_THAT(LocalCredentials("nobody").error().message, HasSubstr("profile 'nobody'"));
}

TEST_F(S3CredentialsTest, SourcesThatAreNotLookedAtAreRefusedByName) {
  const ScopedEnvironment container({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://x"}});
  EXPECT_THAT(LocalCredentials("").error().message,
              HasSubstr("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
  Write("credentials", "[default]\nAWS_Access_Key_Id=F\naws_secret_access_key=f\n");
  EXPECT_EQ(LocalCredentials("").value()->access_key, "F");
  const ScopedEnvironment token({{"AWS_ACCESS_KEY_ID", "E"},
                                 {"AWS_SECRET_ACCESS_KEY", "e"},
                                 {"AWS_SESSION_TOKEN", "t\r\nx-evil: 1"}});
  EXPECT_FALSE(LocalCredentials(""));
}

TEST_F(S3CredentialsTest, AnInstancesAreReadWithTheirEnd) {
  const auto read = ParseInstanceCredentials(
      R"({"Code":"Success","AccessKeyId":"I","SecretAccessKey":"i","Token":"t",
          "Expiration":"2026-11-26T12:00:00Z"})");
  EXPECT_EQ(read->session_token, "t");
  EXPECT_EQ(read->expires_s, 1795694400);
  EXPECT_FALSE(ParseInstanceCredentials("[]"));
  EXPECT_FALSE(ParseInstanceCredentials("<html>"));
  EXPECT_FALSE(ParseInstanceCredentials(R"({"AccessKeyId":1,"SecretAccessKey":"i"})"));
  EXPECT_FALSE(
      ParseInstanceCredentials(R"({"AccessKeyId":"I","SecretAccessKey":"i","Expiration":"soon"})"));
}

}  // namespace
}  // namespace kvcake
