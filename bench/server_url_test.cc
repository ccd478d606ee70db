#include "bench/server_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake::bench {
namespace {

using testing::HasSubstr;

TEST(ServerUrl, KnowsHostPortAndPath) {
  struct Case {
    const char *url, *host, *port, *path, *header;
  };
  const Case cases[] = {
      {"http://localhost:8000", "localhost", "8000", "", "localhost:8000"},
      {"http://a.example", "a.example", "80", "", "a.example:80"},
      {"http://10.0.0.1:1/v1/", "10.0.0.1", "1", "", "10.0.0.1:1"},
      {"http://a:1/llm/v1", "a", "1", "/llm", "a:1"},
      {"http://a:1/llm/", "a", "1", "/llm", "a:1"},
      {"http://[::1]:8000", "::1", "8000", "", "[::1]:8000"},
      {"http://[fe80::2]/x", "fe80::2", "80", "/x", "[fe80::2]:80"},
  };
  for (const Case& c : cases) {
    const auto url = ServerUrl::Parse(c.url);
    ASSERT_TRUE(url) << url.error().message;
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->port, c.port);
    EXPECT_EQ(url->path, c.path);
    EXPECT_EQ(url->HostHeader(), c.header);
  }
}

TEST(ServerUrl, RefusesTheRest) {
  for (const char* bad :
       {"", "localhost:8000", "ftp://a", "http://", "http://:8000", "http://a:b",
        "http://a:", "http://a:123456", "http://a/?x=1", "http://u:p@a", "http://[::1"}) {
    const auto url = ServerUrl::Parse(bad);
    ASSERT_FALSE(url) << bad;
    EXPECT_THAT(url.error().message, HasSubstr("http://localhost:8000"));
  }
  const auto tls = ServerUrl::Parse("https://api.example");
  EXPECT_EQ(tls.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(tls.error().message, HasSubstr("proxy"));
}

}  // namespace
}  // namespace kvcake::bench
