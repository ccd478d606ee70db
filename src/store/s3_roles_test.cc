// S3 stores of instances, whose credentials are a role's.
#include <gmock/gmock.h>

#include <atomic>

#include "store/s3_server_testing.h"
#include "store/s3_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class S3RolesTest : public testing::Test {
 protected:
  // The instance endpoint counts the credentials that it has given; each have another token, or all
  // the same.
  void StartInstance(bool has_others) {
    instance_.SetFault([this, has_others](const S3Seen& seen) {
      S3Fault answer{.status = 200};
      if (seen.target == "/latest/api/token") {
        answer.body = "a token";
        if (seen.method != "PUT") answer.status = 405;
      } else if (seen.headers.at("x-aws-ec2-metadata-token") != "a token") {
        answer.status = 401;
      } else if (seen.target == "/latest/meta-data/iam/security-credentials/") {
        answer.body = "a-role\n";
      } else if (seen.target == "/latest/meta-data/iam/security-credentials/a-role") {
        const int number = given_++;
        answer.body = fmt::format(
            R"({{"AccessKeyId":"I","SecretAccessKey":"i","Token":"token {}",
                "Expiration":"{}-01-01T00:00:00Z"}})",
            has_others ? number : 0, expires_);
      } else {
        answer.status = 404;
      }
      return answer;
    });
    server_.SetCredentials({"I", "i", "token 0"});
  }
  std::unique_ptr<RemoteTier> Open() {
    S3TierOptions options;
    options.client.place = server_.Place();
    options.layout = layout_;
    options.root = Root();
    return OpenS3Tier(options).value();
  }

  S3Server server_, instance_;
  std::atomic<int> given_{0};
  int expires_ = 2099;  // at its beginning
  const std::string endpoint_ = instance_.endpoint();
  const ScopedEnvironment environment_{{{"AWS_ACCESS_KEY_ID", nullptr},
                                        {"AWS_SECRET_ACCESS_KEY", nullptr},
                                        {"AWS_PROFILE", nullptr},
                                        {"AWS_SHARED_CREDENTIALS_FILE", "/nowhere"},
                                        {"AWS_CONFIG_FILE", "/nowhere"},
                                        {"AWS_EC2_METADATA_DISABLED", nullptr},
                                        {"AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint_.c_str()}}};
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(4);
};

// The instance endpoint is asked, once for all, and again when they have expired.
TEST_F(S3RolesTest, AnInstancesRoleIsUsedAndRenewed) {
  StartInstance(/*has_others=*/true);
  const auto tier = Open();
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
  EXPECT_EQ(given_, 1);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.SetCredentials({"I", "i", "token 1"});
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(given_, 2);
  server_.SetCredentials({"I", "i", "token 2"});
  EXPECT_EQ(Held(*tier, chain_), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(given_, 3) << "once for all, though no reply to HEAD says why";
}

TEST_F(S3RolesTest, AllThatWereRefusedTogetherAreAskedAgainByTheNewToken) {
  StartInstance(/*has_others=*/true);
  const auto tier = Open();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[i], i == 0 ? Root() : chain_[i - 1]));
  }
  server_.SetCredentials({"I", "i", "token 1"});
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4, true));
  EXPECT_EQ(given_, 2);
}

TEST_F(S3RolesTest, ATokenIsRenewedForWhicheverReasonItIsRefused) {
  int number = 0;
  for (const char* const code : {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}) {
    given_ = 0;
    StartInstance(/*has_others=*/true);
    const auto tier = Open();
    server_.SetFault([=, refused = std::make_shared<std::atomic<bool>>()](const S3Seen&) {
      return refused->exchange(true) ? S3Fault{} : S3Fault{.status = 400, .code = code};
    });
    server_.SetCredentials({"I", "i", "token 1"});
    EXPECT_TRUE(PutChunk(*tier, layout_, chain_[number++], Root())) << code;
    EXPECT_EQ(given_, 2) << code;
  }
}

// Without s3:ListBucket what is missing is forbidden, and a reply to HEAD does not say why.
TEST_F(S3RolesTest, AnInstanceIsNotAskedForEachRequestThatIsRefused) {
  StartInstance(/*has_others=*/false);
  server_.SetFault([&](const S3Seen& seen) {
    return seen.method == "HEAD" && !server_.Object(seen.name) ? S3Fault{.status = 403} : S3Fault{};
  });
  const auto tier = Open();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
  EXPECT_EQ(given_, 2) << "at first, and whether it has others";
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(Held(*tier, chain_), (std::vector<bool>{true, false, false, false}));
}

// The environment says what it said.
TEST_F(S3RolesTest, CredentialsOfTheEnvironmentThatAreRefusedAreNotTriedTwice) {
  const ScopedEnvironment environment(
      {{"AWS_ACCESS_KEY_ID", "E"}, {"AWS_SECRET_ACCESS_KEY", "e"}, {"AWS_SESSION_TOKEN", "old"}});
  server_.SetCredentials({"E", "e", "new"});
  server_.SetFault([](const S3Seen&) { return S3Fault{.status = 403, .code = "ExpiredToken"}; });
  const Status put = PutChunk(*Open(), layout_, chain_[0], Root());
  ASSERT_FALSE(put);
  EXPECT_NE(put.error().message.find("set new credentials"), std::string::npos)
      << put.error().message;
  EXPECT_EQ(server_.Requests().size(), 1u);
}

// Its own clock may be wrong, or this machine's: what was given just now is all there is.
TEST_F(S3RolesTest, WhatSeemsToHaveExpiredWhenItIsGivenIsUsed) {
  expires_ = 2001;
  StartInstance(/*has_others=*/false);
  const auto tier = Open();
  for (size_t i = 0; i < chain_.size(); ++i) {
    const Status put = PutChunk(*tier, layout_, chain_[i], ParentOf(chain_, i));
    EXPECT_TRUE(put) << put.error().message;
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[i], ParentOf(chain_, i)), std::nullopt);
  }
  EXPECT_EQ(given_, 1);
}

TEST_F(S3RolesTest, WithoutCredentialsTheErrorSaysWhereTheyBelong) {
  const ScopedEnvironment no_instance({{"AWS_EC2_METADATA_DISABLED", "true"}});
  const Status put = PutChunk(*Open(), layout_, chain_[0], Root());
  ASSERT_FALSE(put);
  EXPECT_THAT(put.error().message, HasSubstr("~/.aws/credentials"));
  EXPECT_TRUE(instance_.Requests().empty()) << "who forbids to ask it is heard";
}

// They are secrets: no proxy is told.
TEST_F(S3RolesTest, AnInstanceIsAskedDirectlyWhateverTheProxy) {
  StartInstance(/*has_others=*/true);
  const ScopedEnvironment proxy(
      {{"http_proxy", "http://127.0.0.1:1"}, {"no_proxy", nullptr}, {"NO_PROXY", nullptr}});
  EXPECT_FALSE(PutChunk(*Open(), layout_, chain_[0], Root())) << "the store is behind the proxy";
  EXPECT_EQ(given_, 1);
}

TEST_F(S3RolesTest, AnEndpointMayEndWithASlash) {
  StartInstance(/*has_others=*/true);
  const std::string slashed = endpoint_ + "/";
  const ScopedEnvironment given({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", slashed.c_str()}});
  EXPECT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
}

// Each request would wait for it, and the endpoint bears no crowd.
TEST_F(S3RolesTest, AnInstanceThatHasNoneIsNotAskedForEachRequest) {
  instance_.SetFault([](const S3Seen&) { return S3Fault{.status = 404}; });
  const auto tier = Open();
  for (int i = 0; i < 3; ++i) {
    const Status put = PutChunk(*tier, layout_, chain_[0], Root());
    ASSERT_FALSE(put);
    EXPECT_THAT(put.error().message, HasSubstr("(the instance endpoint: status 404)"));
  }
  EXPECT_EQ(instance_.Requests().size(), 1u);
}

TEST_F(S3RolesTest, ATokenWithALineMoreIsNone) {
  instance_.SetFault([](const S3Seen&) {
    return S3Fault{.status = 200, .body = "a token\r\nx-forwarded-for: 10.0.0.1"};
  });
  const Status put = PutChunk(*Open(), layout_, chain_[0], Root());
  ASSERT_FALSE(put);
  EXPECT_THAT(put.error().message, HasSubstr("the instance endpoint answers no token"));
  EXPECT_EQ(instance_.Requests().size(), 1u);
}

}  // namespace
}  // namespace kvcake
