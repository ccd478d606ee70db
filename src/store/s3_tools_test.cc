#include "store/s3_tools.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "io/file_system.h"
#include "store/pages_seen.h"
#include "store/remote_tools.h"
#include "store/s3_server_testing.h"
#include "store/s3_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class S3ToolsTest : public testing::Test {
 protected:
  // Keeps chunks of a root.
  void Keep(const ChunkKey& root, std::span<const ChunkKey> chain) {
    S3TierOptions options;
    options.client.place = place_;
    options.layout = layout_;
    options.root = root;
    const auto tier = OpenS3Tier(options).value();
    for (size_t i = 0; i < chain.size(); ++i) {
      ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], i > 0 ? chain[i - 1] : root));
    }
  }
  std::unique_ptr<RemoteListing> Listing() const { return OpenS3Listing(place_).value(); }
  std::string NameOf(const ChunkKey& root, const ChunkKey& key) {
    return fmt::format("folder/v1/{}/{}", root.Hex(), key.Hex());
  }
  S3Place Place() const {
    S3Place place = server_.Place();
    place.prefix = "folder/";
    return place;
  }

  const ScopedEnvironment environment_{{{"AWS_ACCESS_KEY_ID", "AKIDOFTESTS"},
                                        {"AWS_SECRET_ACCESS_KEY", "a secret/of+tests"},
                                        {"AWS_SESSION_TOKEN", nullptr}}};
  S3Server server_;
  const S3Place place_ = Place();
  const KvLayout layout_ = SmallLayout();
  const ChunkKey other_ = KvIdentity().Add("model", "other").Root();
};

TEST_F(S3ToolsTest, WhatIsKeptIsToldByRoot) {
  EXPECT_TRUE(ListRemote(*Listing())->empty());
  const auto chain = Chain(1203);  // more than a page
  Keep(Root(), chain);
  Keep(other_, std::span(chain).first(3));
  server_.SetObject("folder/v1/notes.txt", "x");
  server_.SetObject("else/v1/" + Root().Hex() + "/" + chain[0].Hex(), "x");
  const auto roots = ListRemote(*Listing()).value();
  ASSERT_EQ(roots.size(), 2u);
  const StoreRoot& first = roots[0].root == Root() ? roots[0] : roots[1];
  const StoreRoot& second = roots[0].root == Root() ? roots[1] : roots[0];
  EXPECT_EQ(first.chunks, 1203u);
  EXPECT_EQ(first.bytes, 1203 * layout_.page_bytes());
  EXPECT_EQ(second.root, other_);
  EXPECT_EQ(second.chunks, 3u);
  EXPECT_LE(std::abs(UnixSeconds() - first.newest_use_s), 600);
}

TEST_F(S3ToolsTest, TheFirstAndTheLastUseAreToldInWhateverOrderTheyAreListed) {
  auto chain = Chain(3);
  std::sort(chain.begin(), chain.end());  // as they are listed
  for (const auto& [i, ahead] : {std::pair(0, 300), std::pair(1, 0), std::pair(2, 600)}) {
    server_.SetClockAhead(ahead);
    server_.SetObject(NameOf(Root(), chain[i]), "x");
  }
  const StoreRoot root = ListRemote(*Listing())->at(0);
  EXPECT_NEAR(root.newest_use_s - root.oldest_use_s, 600, 60);
}

TEST_F(S3ToolsTest, WhatIsBadIsNamedAndLeft) {
  const auto chain = Chain(4);
  Keep(Root(), chain);
  std::string bytes = server_.Object(NameOf(Root(), chain[1])).value();
  bytes[5000] ^= 1;
  server_.SetObject(NameOf(Root(), chain[1]), bytes);
  server_.SetObject(NameOf(other_, chain[0]), server_.Object(NameOf(Root(), chain[0])).value());
  server_.SetObject(NameOf(Root(), chain[2]), "short");
  server_.SetObject(NameOf(Root(), other_), "");
  const VerifiedStore verified = VerifyRemote(*Listing()).value();
  EXPECT_EQ(verified.chunks, 2u);
  EXPECT_EQ(verified.codecs.at("raw"), 2u);
  std::string reasons;
  for (const BadFile& bad : verified.bad) reasons += bad.reason + "\n";
  EXPECT_EQ(verified.bad.size(), 4u);
  EXPECT_THAT(reasons, HasSubstr("checksum"));
  EXPECT_THAT(reasons, HasSubstr("another chunk"));
  EXPECT_THAT(reasons, HasSubstr("fewer than a header"));
  EXPECT_EQ(server_.Names().size(), 6u);
}

TEST_F(S3ToolsTest, EvictionRemovesWhatTheRuleSays) {
  const auto chain = Chain(10);
  Keep(Root(), chain);
  Keep(other_, std::span(chain).first(3));
  EXPECT_EQ(EvictRemote(*Listing(), {.roots = std::vector{other_}})->files, 3u);
  EXPECT_EQ(EvictRemote(*Listing(), {.used_before_s = UnixSeconds() - 3600})->files, 0u);
  const ClearedStore cleared =
      EvictRemote(*Listing(), {.to_bytes = 5 * layout_.page_bytes()}).value();
  EXPECT_EQ(cleared.files, 5u);
  EXPECT_EQ(cleared.bytes, 5 * layout_.page_bytes());
  EXPECT_EQ(EvictRemote(*Listing(), {.used_before_s = UnixSeconds() + 60})->files, 5u);
  EXPECT_TRUE(server_.Names().empty());
}

TEST_F(S3ToolsTest, ClearingLeavesWhatIsOthers) {
  Keep(Root(), Chain(5));
  server_.SetObject("folder/v1/notes.txt", "x");
  EXPECT_EQ(ClearRemote(*Listing())->files, 5u);
  EXPECT_EQ(server_.Names(), std::vector<std::string>{"folder/v1/notes.txt"});
}

TEST_F(S3ToolsTest, WhatServersRefuseIsToldWithTheirName) {
  server_.SetFault([](const S3Seen&) { return S3Fault{.status = 403, .code = "AccessDenied"}; });
  const auto list = ListRemote(*Listing());
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(list.error().message, HasSubstr("AccessDenied"));
  EXPECT_THAT(list.error().message, HasSubstr("s3://bucket/folder"));
  EXPECT_THAT(list.error().message, HasSubstr("s3:ListBucket"));
}

TEST_F(S3ToolsTest, WhatAnErrorSaysIsNotWaitedForToItsEnd) {
  server_.SetFault([](const S3Seen&) {
    return S3Fault{
        .status = 403, .code = "AccessDenied", .code_text_bytes = 1 << 20, .hang_after = 512 << 10};
  });
  const auto list = ListRemote(*Listing());
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message, HasSubstr("403 AccessDenied"));
  server_.CutConnections();
}

TEST_F(S3ToolsTest, AnObjectThatCannotBeReadIsNamedAndTheOthersAreRead) {
  const auto chain = Chain(4);
  Keep(Root(), chain);
  const std::string archived = NameOf(Root(), chain[1]);
  server_.SetFault([&](const S3Seen& seen) {
    return seen.method == "GET" && seen.name == archived
               ? S3Fault{.status = 403, .code = "InvalidObjectState"}
               : S3Fault{};
  });
  const VerifiedStore verified = VerifyRemote(*Listing()).value();
  EXPECT_EQ(verified.chunks, 3u);
  ASSERT_EQ(verified.bad.size(), 1u);
  EXPECT_EQ(verified.bad[0].path, archived);
  EXPECT_THAT(verified.bad[0].reason, HasSubstr("it is archived"));
}

// Where none can be read it is the store that answers nothing.
TEST_F(S3ToolsTest, AStoreOfWhichNothingCanBeReadIsAnError) {
  std::atomic<int> read = 0;
  server_.SetFault([&](const S3Seen& seen) {
    if (seen.method != "GET" || seen.name.empty()) return S3Fault{};
    ++read;
    return S3Fault{.status = 403, .code = "AccessDenied"};
  });
  for (const int chunks : {3, 20}) {
    Keep(Root(), Chain(chunks));
    const auto verified = VerifyRemote(*Listing());
    ASSERT_FALSE(verified);
    EXPECT_THAT(verified.error().message, HasSubstr("AccessDenied"));
    EXPECT_EQ(read.exchange(0), std::min(chunks, 8));
  }
}

// A list is believed no more than a header.
TEST_F(S3ToolsTest, MemoryIsTakenForChunksAlone) {
  const auto chain = Chain(2);
  Keep(Root(), chain);
  const auto size = [](uint64_t bytes) { return fmt::format("<Size>{}</Size>", bytes); };
  std::string contents;
  for (const ChunkKey& key : chain) {
    contents += fmt::format("<Contents><Key>{}</Key>{}</Contents>", NameOf(Root(), key),
                            size(uint64_t{1} << 40));
  }
  std::vector<std::string> ranges;  // the server's thread's
  server_.SetFault([&](const S3Seen& seen) {
    if (seen.method != "GET") return S3Fault{};
    if (!seen.name.empty()) {
      ranges.push_back(seen.headers.count("range") > 0 ? seen.headers.at("range") : "all");
      return S3Fault{};
    }
    return S3Fault{.status = 200, .body = "<ListBucketResult>" + contents + "</ListBucketResult>"};
  });
  const VerifiedStore verified = VerifyRemote(*Listing()).value();
  EXPECT_EQ(verified.bad.size(), 2u);
  EXPECT_EQ(ranges, (std::vector<std::string>{"bytes=0-4095", "bytes=0-4095"}));
}

TEST_F(S3ToolsTest, WhatMayNotBeRemovedKeepsNothingElse) {
  const auto chain = Chain(100);
  Keep(Root(), chain);
  const std::string kept = NameOf(Root(), chain[7]);
  server_.SetFault([&](const S3Seen& seen) {
    return seen.method == "DELETE" && seen.name == kept
               ? S3Fault{.status = 403, .code = "AccessDenied"}
               : S3Fault{};
  });
  int removed = 99;
  for (const auto& cleared : {ClearRemote(*Listing()), EvictRemote(*Listing(), {.to_bytes = 0})}) {
    ASSERT_FALSE(cleared);
    EXPECT_THAT(cleared.error().message,
                HasSubstr(fmt::format("{} chunks are removed, and 1 are not; {}", removed, kept)));
    EXPECT_EQ(server_.Names(), std::vector{kept});
    removed = 0;
  }
}

TEST_F(S3ToolsTest, WhatHasGoneBeforeItIsRemovedIsNeitherCountedNorAFailure) {
  const auto chain = Chain(4);
  Keep(Root(), chain);
  server_.SetFault([gone = NameOf(Root(), chain[1])](const S3Seen& seen) {
    return seen.method == "DELETE" && seen.name == gone ? S3Fault{.status = 404} : S3Fault{};
  });
  const auto cleared = EvictRemote(*Listing(), {.to_bytes = 0});
  ASSERT_TRUE(cleared) << cleared.error().message;
  EXPECT_EQ(cleared->files, 3u);
}

TEST_F(S3ToolsTest, AServerThatHangsUpIsNamed) {
  Keep(Root(), Chain(1));
  server_.SetFault([](const S3Seen& seen) { return S3Fault{.closes = !seen.name.empty()}; });
  const auto verified = VerifyRemote(*Listing());
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.error().code, ErrorCode::kIo);
  EXPECT_THAT(verified.error().message, HasSubstr(server_.endpoint()));
}

TEST_F(S3ToolsTest, ObjectsOfNoTimeAreNotEvictedByTime) {
  server_.SetFault([name = NameOf(Root(), Chain(1)[0])](const S3Seen&) {
    return S3Fault{.status = 200,
                   .body = fmt::format("<ListBucketResult><Contents><Key>{}</Key><Size>9</Size>"
                                       "</Contents></ListBucketResult>",
                                       name)};
  });
  const auto cleared = EvictRemote(*Listing(), {.to_bytes = 0});
  ASSERT_FALSE(cleared);
  EXPECT_THAT(cleared.error().message, HasSubstr("does not say when its objects were written"));
  EXPECT_EQ(ListRemote(*Listing())->at(0).newest_use_s, 0);
}

TEST(PagesSeenTest, MorePagesThanAnyStoreHasAreNone) {
  PagesSeen pages;
  for (uint64_t i = 0; i < PagesSeen::kPagesMax; ++i) ASSERT_TRUE(pages.GoOnTo(fmt::to_string(i)));
  EXPECT_FALSE(pages.GoOnTo("last"));
}

// Each page names the next, and the last of them the third again.
TEST_F(S3ToolsTest, PagesInACircleEnd) {
  for (const int circle : {1, 2, 5}) {
    std::atomic<int> pages = 0;
    server_.SetFault([&](const S3Seen&) {
      const int page = pages++;
      const int next = page < 3 ? page : 3 + (page - 3) % circle;
      return S3Fault{.status = 200,
                     .body = fmt::format("<ListBucketResult><IsTruncated>true</IsTruncated>"
                                         "<NextContinuationToken>{}</NextContinuationToken>"
                                         "</ListBucketResult>",
                                         next)};
    });
    const auto list = ListRemote(*Listing());
    ASSERT_FALSE(list);
    EXPECT_THAT(list.error().message, HasSubstr("lists the same page again"));
    EXPECT_LT(pages, 4 * (3 + circle));
  }
}

TEST_F(S3ToolsTest, WhatIsNoListIsRefused) {
  const std::string deep = std::string("<ListBucketResult>") + [] {
    std::string all;
    for (int i = 0; i < 100000; ++i) all += "<a>";
    return all;
  }();
  for (const std::string& xml :
       {std::string(), std::string("<html>sign in</html>"), std::string("<ListBucketResult>"),
        // A part, as what knows the first version of lists alone gives.
        std::string("<ListBucketResult><IsTruncated>true</IsTruncated>"
                    "<NextMarker>x</NextMarker></ListBucketResult>"),
        std::string("{}"), deep, std::string("<ListBucketResult") + std::string(100, '<')}) {
    EXPECT_FALSE(ParseS3Page(xml)) << xml.substr(0, 40);
  }
  const auto page = ParseS3Page(
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<Contents><Key>a&amp;b</Key><Size>7</Size><LastModified>2009-10-12T17:50:30.000Z"
      "</LastModified></Contents><Contents><Key>c</Key><Size>-1</Size></Contents>"
      "<IsTruncated>true</IsTruncated><NextContinuationToken>n/=</NextContinuationToken>"
      "</ListBucketResult>");
  ASSERT_TRUE(page) << page.error().message;
  ASSERT_EQ(page->objects.size(), 2u);
  EXPECT_EQ(page->objects[0].name, "a&b");
  EXPECT_EQ(page->objects[0].bytes, 7u);
  EXPECT_EQ(page->objects[0].modified_s, 1255369830);
  EXPECT_LE(page->objects[1].bytes, 1u << 30);
  EXPECT_EQ(page->next, "n/=");
}

}  // namespace
}  // namespace kvcake
