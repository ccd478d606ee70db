#include "store/store_url.h"

#include <gmock/gmock.h>

#include "store/open_store.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Options = std::vector<std::pair<std::string, std::string>>;

StoreUrl Parsed(std::string_view text) {
  auto url = ParseStoreUrl(text);
  EXPECT_TRUE(url) << text << ": " << url.error().message;
  return url ? *url : StoreUrl{};
}

std::string Refused(std::string_view text) {
  const auto url = ParseStoreUrl(text);
  EXPECT_FALSE(url) << text;
  if (url) return {};
  EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(url.error().message, HasSubstr("'" + std::string(text) + "'"));
  return url.error().message;
}

TEST(StoreUrl, WithoutOptionsIsTheDirectoryAsItIsSpelled) {
  for (const char* dir :
       {"kv", "/var/lib/kv", "../a b", "a%20b", "100%", "a=b&c", "C:/kv", "://x", "a:b", "kv/"}) {
    EXPECT_EQ(Parsed(dir), (StoreUrl{.scheme = "", .place = dir, .options = {}}));
  }
}

TEST(StoreUrl, OptionsFollowTheQuestionMarkInTheirOrder) {
  EXPECT_EQ(Parsed("kv?codec=int8").options, (Options{{"codec", "int8"}}));
  EXPECT_EQ(Parsed("/a b/kv?z=1&a=&b=x=y?").options,
            (Options{{"z", "1"}, {"a", ""}, {"b", "x=y?"}}));
  EXPECT_EQ(Parsed("/a b/kv?z=1").place, "/a b/kv");
}

TEST(StoreUrl, BytesCanBeWrittenInHexadecimal) {
  EXPECT_EQ(Parsed("kv?key-file=a%26b%3Dc%25%c3%A9").options, (Options{{"key-file", "a&b=c%é"}}));
  EXPECT_EQ(Parsed("what%3Fnow%3f?a=b").place, "what?now?");
  EXPECT_EQ(Parsed("%3").place, "%3");
}

TEST(StoreUrl, SchemesAreNamedBeforeTheirPlace) {
  EXPECT_EQ(Parsed("redis://host:6379/0?codec=int8"),
            (StoreUrl{.scheme = "redis", .place = "host:6379/0", .options = {{"codec", "int8"}}}));
  EXPECT_EQ(Parsed("s3://bucket/a%3Fb").place, "bucket/a%3Fb");
  EXPECT_EQ(Parsed("kv?url=s3://x").scheme, "");
}

TEST(StoreUrl, WhatIsNoUrlIsRefusedWithTheTextAndTheRemedy) {
  EXPECT_THAT(Refused(""), HasSubstr("names no place"));
  EXPECT_THAT(Refused("?codec=int8"), HasSubstr("names no place"));
  EXPECT_THAT(Refused("redis://"), HasSubstr("names no place"));
  for (const char* text : {"kv?", "kv?codec", "kv?=int8", "kv?a=b&", "kv?a=b&&c=d", "kv?a=1&c"}) {
    EXPECT_THAT(Refused(text), HasSubstr("is written %3F"));
  }
  for (const char* text : {"kv?a=%", "kv?a=%4", "kv?a=%4g", "kv?%zz=1", "kv?a=%00"}) {
    EXPECT_THAT(Refused(text), HasSubstr("is written %25"));
  }
  EXPECT_THAT(Refused("kv?a=1&b=2&a=1"), HasSubstr("'a' is given twice"));
}

TEST(StoreUrl, SecretsOfPlacesElsewhereAreNotSaid) {
  EXPECT_EQ(WithoutSecrets("redis://me:secret@host:1/2?codec=int8"),
            "redis://***@host:1/2?codec=int8");
  EXPECT_EQ(WithoutSecrets("redis://host"), "redis://host");
  EXPECT_EQ(WithoutSecrets("kv@home?codec=int8"), "kv@home?codec=int8");
  for (const char* text :
       {"redis://me:secret@host?codec", "redis://me:secret@host?a=%", "redis://me:secr/et@host",
        "redis://me:secr?et@host", "redis://me:se#cret@host?a=b", "redis://me:?secret=1@host"}) {
    const auto refused = ParseStoreUrl(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_THAT(refused.error().message, HasSubstr("redis://***@host"));
    EXPECT_THAT(refused.error().message, Not(HasSubstr("secr")));
  }
  // As a message tells to write an '@' elsewhere, and some do before the host.
  for (const char* text : {"redis://me:secret%40host", "redis://me:secret%40host:1",
                           "rediss+cluster://me:secret%40host,other", "redis://us@me:secret%40host",
                           "s3://b123?endpoint=http://me:secret%40host"}) {
    const auto refused = ReadStoreUrl(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_THAT(refused.error().message, HasSubstr("://***%40host")) << text;
    EXPECT_THAT(refused.error().message, Not(HasSubstr("secr"))) << text;
  }
}

TEST(StoreUrl, SchemesAreWrittenInAnyCase) {
  EXPECT_EQ(ParseStoreUrl("RedisS://me:secret@host")->scheme, "rediss");
  EXPECT_EQ(WithoutSecrets("Redis://me:secret@host"), "Redis://***@host");
}

TEST(StoreUrl, UnknownOptionsOfAStoreAreRefusedByName) {
  EXPECT_EQ(ReadStoreUrl("a%3Fb")->dir, "a?b");
  const auto refused = ReadStoreUrl("kv?colour=red");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'colour'"));
  EXPECT_FALSE(ReadStoreUrl("kv?"));
  EXPECT_THAT(refused.error().message, HasSubstr("codec, tables, key-file and writes"));
}

TEST(StoreUrl, AKindThatThereIsNotIsRefusedWithThoseThatThereAre) {
  const auto refused = ReadStoreUrl("gs://me:secret@bucket");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "store 'gs://***@bucket': there are no stores of the kind gs://, only directories, "
            "redis://, rediss://, redis+cluster://, rediss+cluster:// and s3://");
}

TEST(StoreUrl, AStoreSaysHowItKeepsChunks) {
  EXPECT_EQ(ReadStoreUrl("kv")->codec, std::nullopt);
  const StoreOptions store = ReadStoreUrl("kv?codec=cachegen&tables=a%26b").value();
  EXPECT_EQ(store.dir, "kv");
  EXPECT_EQ(store.codec, Codec::kCacheGen);
  EXPECT_EQ(store.codec_tables, "a&b");
  EXPECT_EQ(ReadStoreUrl("kv?codec=raw")->codec, Codec::kRaw);
  const auto refused = ReadStoreUrl("kv?codec=zip");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'zip', but raw, lossless, int8"));
}

// The same for the same codecs, whatever order their stores are in.
TEST(StoreUrl, LossyCodecsMakeALineage) {
  const auto lineage = [](std::vector<std::string> urls) {
    std::vector<StoreOptions> stores;
    for (const std::string& url : urls) {
      stores.push_back(ReadStoreUrl(url).value());
      LoadStoreCodec(stores.back());
    }
    return LossyLineage(stores);
  };
  EXPECT_EQ(lineage({}), "");
  EXPECT_EQ(lineage({"a", "b?codec=lossless"}), "");
  EXPECT_EQ(lineage({"a", "b?codec=int8", "c?codec=int8"}), "int8");
  const std::string without = std::string("cachegen:") + std::string(64, '0');
  EXPECT_EQ(lineage({"/nowhere?codec=cachegen"}), without);
  EXPECT_EQ(lineage({"b?codec=int8", "/nowhere?codec=cachegen"}), without + ",int8");
}

}  // namespace
}  // namespace kvcake
