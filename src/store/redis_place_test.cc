#include "store/redis_place.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "store/open_store.h"

namespace kvcake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Variables that name a user and a password, until it goes.
class Environment {
 public:
  Environment(const char* user, const char* password) {
    setenv("KVCAKE_REDIS_USER", user, 1);
    setenv("KVCAKE_REDIS_PASSWORD", password, 1);
  }
  ~Environment() {
    unsetenv("KVCAKE_REDIS_USER");
    unsetenv("KVCAKE_REDIS_PASSWORD");
  }
};

RedisPlace PlaceAt(const std::string& url) {
  const auto store = ReadStoreUrl(url);
  EXPECT_TRUE(store) << url << ": " << store.error().message;
  return store && store->redis ? *store->redis : RedisPlace();
}

std::string RefusedUrl(const std::string& url) {
  const auto store = ReadStoreUrl(url);
  EXPECT_FALSE(store) << url;
  return store ? "" : store.error().message;
}

TEST(RedisPlace, IsWhatTheUrlSays) {
  const RedisPlace plain = PlaceAt("redis://host");
  EXPECT_EQ(plain.seeds, (std::vector<RedisAddress>{{"host", 6379}}));
  EXPECT_FALSE(plain.is_cluster || plain.is_tls);
  EXPECT_EQ(plain.database, 0);
  EXPECT_EQ(plain.prefix, "kvcake");
  EXPECT_EQ(plain.login.password, "");
  const RedisPlace all = PlaceAt(
      "rediss://me:a%3Ab%40c@10.0.0.1:7000/3?prefix=kv:a&tls-ca=/ca.pem"
      "&tls-cert=/me.pem&tls-key=/me.key&codec=int8");
  EXPECT_EQ(all.seeds, (std::vector<RedisAddress>{{"10.0.0.1", 7000}}));
  EXPECT_TRUE(all.is_tls);
  EXPECT_EQ(all.database, 3);
  EXPECT_EQ(all.login.user, "me");
  EXPECT_EQ(all.login.password, "a:b@c");
  EXPECT_EQ(all.prefix, "kv:a");
  EXPECT_EQ(all.tls_files.ca, "/ca.pem");
  EXPECT_EQ(all.tls_files.certificate, "/me.pem");
  EXPECT_EQ(all.tls_files.key, "/me.key");
  EXPECT_EQ(PlaceAt("redis://:word@host/").login.password, "word");
  const RedisPlace at = PlaceAt("redis://:a@b@host");
  EXPECT_EQ(at.login.password, "a@b");
  EXPECT_EQ(at.seeds[0].host, "host");
  EXPECT_EQ(PlaceAt("redis://[::1]:7").seeds, (std::vector<RedisAddress>{{"::1", 7}}));
  const RedisPlace cluster = PlaceAt("rediss+cluster://a,b:7001,[::1]");
  EXPECT_TRUE(cluster.is_cluster && cluster.is_tls);
  EXPECT_EQ(cluster.seeds, (std::vector<RedisAddress>{{"a", 6379}, {"b", 7001}, {"::1", 6379}}));
}

TEST(RedisPlace, IsSaidWithoutItsSecrets) {
  EXPECT_EQ(PlaceAt("redis://me:secret@host:7/2?prefix=p&codec=int8").Text(),
            "redis://host:7/2?prefix=p");
  EXPECT_EQ(PlaceAt("rediss+cluster://:secret@a,[::1]:7").Text(),
            "rediss+cluster://a:6379,[::1]:7");
  EXPECT_EQ(ReadStoreUrl("redis://:secret@host")->Place(), "redis://host:6379");
}

TEST(RedisPlace, ThePasswordCanBeInTheEnvironment) {
  const Environment environment("them", "word");
  EXPECT_EQ(PlaceAt("redis://host").login.user, "them");
  EXPECT_EQ(PlaceAt("redis://host").login.password, "word");
  EXPECT_EQ(PlaceAt("redis://me@host").login.user, "me");
  EXPECT_EQ(PlaceAt("redis://me@host").login.password, "word");
  EXPECT_EQ(PlaceAt("redis://me:mine@host").login.password, "mine");
}

TEST(RedisPlace, WhatIsWrongIsNamedWithWhatIsRight) {
  for (const char* url : {"redis://host:0", "redis://host:65536", "redis://host:7x",
                          "redis://host:", "redis://[::1]7"}) {
    EXPECT_THAT(RefusedUrl(url), AllOf(HasSubstr("bad port"), HasSubstr("from 1 to 65535"))) << url;
  }
  EXPECT_THAT(RefusedUrl("redis://:7"), HasSubstr("names no host"));
  EXPECT_THAT(RefusedUrl("redis://[::1"), HasSubstr("']'"));
  EXPECT_THAT(RefusedUrl("redis+cluster://a,,b"), HasSubstr("names no host"));
  EXPECT_THAT(RefusedUrl("redis://a,b"), HasSubstr("redis+cluster://"));
  EXPECT_THAT(RefusedUrl("redis://host/x"), HasSubstr("HOST:PORT/0"));
  EXPECT_THAT(RefusedUrl("redis://host/-1"), HasSubstr("no number of a database"));
  EXPECT_THAT(RefusedUrl("redis+cluster://host/1"), HasSubstr("no numbered databases"));
  EXPECT_THAT(RefusedUrl("redis://me@host"), HasSubstr("KVCAKE_REDIS_PASSWORD"));
  EXPECT_THAT(RefusedUrl("redis://host?tls-ca=x"), HasSubstr("rediss://"));
  EXPECT_THAT(RefusedUrl("redis+cluster://host?tls-ca=x"), HasSubstr("rediss+cluster://"));
  EXPECT_THAT(RefusedUrl("rediss://host?tls-cert=x"), HasSubstr("go together"));
  EXPECT_THAT(RefusedUrl("redis://host?prefix=a%7Bb"), HasSubstr("letters, digits"));
  EXPECT_THAT(RefusedUrl("redis://host?prefix=" + std::string(65, 'a')), HasSubstr("1 to 64"));
  EXPECT_THAT(RefusedUrl("redis://host?codec=zip"), HasSubstr("'zip'"));
  EXPECT_THAT(RefusedUrl("redis://host?colour=red"),
              AllOf(HasSubstr("'colour'"),
                    HasSubstr("key-file, writes, prefix, tls-ca, tls-cert and tls-key")));
}

TEST(RedisPlace, NoErrorTellsThePassword) {
  for (const char* rest : {"%zz@host", "@host:0", "@host/x", "@host?colour=red", "@host?prefix=%7B",
                           "@host?codec=zip", "@a,b", "@host?tls-ca=x"}) {
    EXPECT_THAT(RefusedUrl(std::string("redis://me:secret") + rest),
                AllOf(Not(HasSubstr("secret")), HasSubstr("redis://***@")));
  }
}

TEST(RedisPlace, OnePlaceIsNamedOnce) {
  const auto distinct = [](std::vector<std::string> urls) {
    std::vector<StoreOptions> stores;
    for (const std::string& url : urls) stores.push_back(ReadStoreUrl(url).value());
    const Status status = CheckDistinct(stores);
    return status ? "" : status.error().message;
  };
  EXPECT_EQ(distinct({"kv", "redis://host", "redis://host/1", "redis://host?prefix=b"}), "");
  EXPECT_EQ(distinct({"redis://:a@host", "redis://:b@host:6379"}),
            "--store redis://host:6379 is given twice: name it once");
  EXPECT_THAT(distinct({"/kv", "redis://host", "/./kv"}), HasSubstr("the same directory"));
}

}  // namespace
}  // namespace kvcake
