#include "store/s3_place.h"

#include <gmock/gmock.h>

#include "store/open_store.h"
#include "store/s3_server_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class S3PlaceTest : public testing::Test {
 protected:
  const ScopedEnvironment environment_{{{"AWS_ENDPOINT_URL", nullptr},
                                        {"AWS_ENDPOINT_URL_S3", nullptr},
                                        {"AWS_REGION", nullptr},
                                        {"AWS_DEFAULT_REGION", nullptr}}};

  static S3Place Read(const std::string& url) {
    const auto store = ReadStoreUrl(url);
    EXPECT_TRUE(store) << store.error().message;
    EXPECT_FALSE(store->keeps_files());
    return store->s3.value();
  }
  static std::string Refused(const std::string& url) {
    const auto store = ReadStoreUrl(url);
    EXPECT_FALSE(store) << url;
    return store ? "" : store.error().message;
  }
};

TEST_F(S3PlaceTest, ABucketIsAwssUnlessAnEndpointIsNamed) {
  EXPECT_EQ(Read("s3://chunks").BaseUrl(), "https://chunks.s3.us-east-1.amazonaws.com");
  EXPECT_EQ(Read("s3://chunks?region=eu-central-1").BaseUrl(),
            "https://chunks.s3.eu-central-1.amazonaws.com");
  // No certificate for *.s3... is of such a host.
  EXPECT_EQ(Read("s3://my.chunks").BaseUrl(), "https://s3.us-east-1.amazonaws.com/my.chunks");
  EXPECT_EQ(Read("s3://chunks?endpoint=http://minio:9000/").BaseUrl(), "http://minio:9000/chunks");
  EXPECT_EQ(Read("s3://chunks?endpoint=https://ceph&addressing=virtual").BaseUrl(),
            "https://chunks.ceph");
}

TEST_F(S3PlaceTest, WhatTheUrlDoesNotSayTheEnvironmentDoes) {
  const ScopedEnvironment set({{"AWS_ENDPOINT_URL", "http://all"},
                               {"AWS_DEFAULT_REGION", "eu-west-1"},
                               {"AWS_REGION", ""}});
  EXPECT_EQ(Read("s3://chunks").endpoint, "http://all");
  EXPECT_EQ(Read("s3://chunks").region, "eu-west-1");
  const ScopedEnvironment more({{"AWS_ENDPOINT_URL_S3", "http://s3"}, {"AWS_REGION", "sa-east-1"}});
  EXPECT_EQ(Read("s3://chunks").endpoint, "http://s3");
  EXPECT_EQ(Read("s3://chunks").region, "sa-east-1");
  EXPECT_EQ(Read("s3://chunks?endpoint=http://mine&region=x-1").endpoint, "http://mine");
}

TEST_F(S3PlaceTest, APrefixIsAFolder) {
  EXPECT_EQ(Read("s3://chunks/a/b/").prefix, "a/b/");
  EXPECT_EQ(Read("s3://chunks/").prefix, "");
  EXPECT_EQ(Read("s3://chunks/a?endpoint=http://h").Text(), "s3://chunks/a?endpoint=http://h");
  EXPECT_EQ(Read("s3://chunks").Text(), "s3://chunks");
}

TEST_F(S3PlaceTest, WhatCannotBeIsRefusedWithTheRemedy) {
  EXPECT_THAT(Refused("s3://AKID:secret@chunks"), HasSubstr("AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(Refused("s3://AKID:secret@chunks"), Not(HasSubstr("secret@")));
  EXPECT_THAT(Refused("s3://a"), HasSubstr("name of a bucket"));
  EXPECT_THAT(Refused("s3://a b c"), HasSubstr("name of a bucket"));
  EXPECT_THAT(Refused("s3://chunks/a/../b"), HasSubstr("/../"));
  EXPECT_THAT(Refused("s3://chunks/a//b"), HasSubstr("//"));
  EXPECT_THAT(Refused("s3://chunks?endpoint=minio:9000"), HasSubstr("http://HOST:PORT"));
  EXPECT_THAT(Refused("s3://chunks?endpoint=http://h?x"), HasSubstr("endpoint"));
  EXPECT_THAT(Refused("s3://chunks?region=a/b"), HasSubstr("region"));
  EXPECT_THAT(Refused("s3://chunks?addressing=dns"), HasSubstr("path or virtual"));
  EXPECT_THAT(Refused("s3://chunks?endpoint=http://h&tls-ca=f"), HasSubstr("https://"));
  EXPECT_THAT(Refused("s3://chunks?prefix=x"), HasSubstr("no option 'prefix'"));
}

}  // namespace
}  // namespace kvcake
