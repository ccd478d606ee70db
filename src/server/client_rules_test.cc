#include "server/client_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(HostRuleTest, AtLoopbackOnlyItsNamesAreAnswered) {
  const HostRule rule("127.0.0.1", {"Box.example"});
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:8000", "127.9.9.9", "[::1]:80",
        "[::1]", "[::ffff:127.0.0.1]", "box.example:1", "box.example."}) {
    EXPECT_FALSE(rule.Check(host)) << host;
  }
  for (const char* host : {"evil.example",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "evil.example:127.0.0.1",
                           "localhost:x",
                           "localhost:123456",
                           "localhost:80@evil",
                           "localhost evil",
                           "128.0.0.1",
                           "0.0.0.0",
                           "[::2]",
                           "[::1",
                           "[::1]x",
                           "",
                           "[::ffff:10.0.0.1]",
                           ":80",
                           ".",
                           "127.1",
                           "xlocalhost",
                           "evil.example.box.example"}) {
    const auto error = rule.Check(host);
    ASSERT_TRUE(error) << host;
    EXPECT_EQ(error->status, 403);
    EXPECT_THAT(error->message, HasSubstr("--allowed-hosts"));
  }
}

TEST(HostRuleTest, AllowedNamesThatNoClientSendsAreTold) {
  for (const char* name : {"*", "kv.example.org", "KV.example.org", "192.0.2.7", "[2001:db8::7]"}) {
    EXPECT_THAT(CheckAllowedHost(name), IsEmpty()) << name;
  }
  for (const char* name : {"", "kv.example.org:443", "https://kv.example.org", "kv.example.org.",
                           "kv.example.org/", "*.example.org", "2001:db8::7", "a b", "u@h"}) {
    EXPECT_THAT(CheckAllowedHost(name), HasSubstr("'" + std::string(name) + "' is no name"));
  }
}

TEST(OriginRuleTest, AllowedOriginsThatNoBrowserSendsAreTold) {
  for (const char* origin : {"*", "loopback", "null", "https://chat.example.org",
                             "http://[2001:db8::7]:3000", "chrome-extension://abc"}) {
    EXPECT_THAT(CheckAllowedOrigin(origin), IsEmpty()) << origin;
  }
  for (const char* origin :
       {"", "chat.example.org", "https://chat.example.org/", "://x", "https://",
        "https://chat.example.org/a", "https://*.example.org", "https://a b"}) {
    EXPECT_THAT(CheckAllowedOrigin(origin),
                HasSubstr("'" + std::string(origin) + "' is no origin"));
  }
}

TEST(HostRuleTest, ElsewhereAnyNameUnlessSomeAreGiven) {
  EXPECT_FALSE(HostRule("0.0.0.0", {}).Check("evil.example"));
  EXPECT_FALSE(HostRule("127.0.0.1", {"*"}).Check("evil.example"));
  const HostRule some("192.0.2.7", {"kv.example"});
  EXPECT_FALSE(some.Check("kv.example"));
  EXPECT_FALSE(some.Check("192.0.2.7:8000"));
  EXPECT_FALSE(some.Check("localhost"));
  EXPECT_TRUE(some.Check("evil.example"));
  EXPECT_FALSE(HostRule("::1", {}).Check("[::1]:8000"));
  EXPECT_TRUE(HostRule("::1", {}).Check("evil.example"));
  // The address that it listens at needs no naming, in brackets where clients write it so.
  const HostRule v6("2001:DB8::7", {"kv.example"});
  EXPECT_FALSE(v6.Check("[2001:db8::7]:8000"));
  EXPECT_TRUE(v6.Check("[2001:db8::8]:8000"));
}

TEST(HostRuleTest, AStrangersNameIsClipped) {
  const auto error = HostRule("localhost", {}).Check(std::string(10000, 'x'));
  ASSERT_TRUE(error);
  EXPECT_LT(error->message.size(), 300u);
}

TEST(OriginRuleTest, PagesOfThisMachineOrOfAList) {
  const OriginRule loopback({"loopback"});
  for (const char* origin :
       {"http://localhost:3000", "https://localhost", "http://127.0.0.1:80", "http://[::1]:8080"}) {
    EXPECT_EQ(loopback.Answer(origin), origin);
  }
  for (const char* origin :
       {"http://evil.example", "null", "", "http://localhost.evil.example", "file://localhost",
        "http://localhost:3000@evil.example", "localhost"}) {
    EXPECT_EQ(loopback.Answer(origin), "") << origin;
  }
  const OriginRule some({"https://Page.example"});
  EXPECT_EQ(some.Answer("https://page.example"), "https://page.example");
  EXPECT_EQ(some.Answer("https://PAGE.example"), "https://PAGE.example");  // as it was asked
  EXPECT_EQ(some.Answer("http://page.example"), "");
  EXPECT_EQ(some.Answer("https://page.example:8443"), "");
  EXPECT_EQ(some.Answer("http://localhost"), "");
  EXPECT_TRUE(some.varies());
  EXPECT_EQ(OriginRule({"*"}).Answer("http://evil.example"), "*");
  EXPECT_FALSE(OriginRule({"*"}).varies());
  EXPECT_EQ(OriginRule({}).Answer("http://localhost"), "");
}

TEST(ContentTypeTest, FormsAreNoJson) {
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8",
                           "application/json;charset=utf-8", "application/problem+json"}) {
    EXPECT_FALSE(CheckJsonType(type)) << type;
  }
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json", "text/plain; application/json",
        "text/json", "text/x+json", "application/jsonx", "text/plain, application/json"}) {
    const auto error = CheckJsonType(type);
    ASSERT_TRUE(error) << type;
    EXPECT_EQ(error->status, 415);
    EXPECT_THAT(error->message, HasSubstr("header Content-Type: application/json"));
    EXPECT_THAT(error->message, HasSubstr("with or without a body"));
  }
}

TEST(ContentCodingTest, BodiesAreTakenAsTheyAre) {
  for (const char* coding : {"", "identity", " Identity "}) EXPECT_FALSE(CheckUncoded(coding));
  for (const std::string coding : {"gzip", "br", "identity, gzip", "identityx"}) {
    const auto error = CheckUncoded(coding);
    ASSERT_TRUE(error) << coding;
    EXPECT_EQ(error->status, 415);
    EXPECT_THAT(error->message, HasSubstr("header Content-Encoding"));
    EXPECT_THAT(error->message, HasSubstr("\"" + coding + "\""));
  }
  EXPECT_LT(CheckUncoded(std::string(10000, 'x')).value().message.size(), 300u);
}

TEST(SplitListTest, AsPeopleAndVllmWriteThem) {
  EXPECT_THAT(SplitList("a, b,,c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(SplitList(R"(["http://a", "http://[::1]:80"])"),
              ElementsAre("http://a", "http://[::1]:80"));
  EXPECT_THAT(SplitList("http://[::1]:80"), ElementsAre("http://[::1]:80"));
  EXPECT_THAT(SplitList("*"), ElementsAre("*"));
  EXPECT_THAT(SplitList(""), IsEmpty());
  EXPECT_THAT(SplitList("[]"), IsEmpty());
}

}  // namespace
}  // namespace kvcake
