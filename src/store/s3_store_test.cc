#include "store/s3_store.h"

#include <gmock/gmock.h>

#include "store/chunk_format.h"
#include "store/encoded_testing.h"
#include "store/s3_server_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class S3StoreTest : public testing::Test {
 protected:
  std::unique_ptr<RemoteTier> Open(S3TierOptions options = {}) {
    options.client.place = server_.Place();
    if (!options.client.credentials) options.client.credentials = S3Server::Credentials();
    options.client.retry_min = options.client.retry_max = Seconds(1e-3);
    options.layout = layout_;
    options.root = Root();
    return OpenS3Tier(options).value();
  }
  std::string NameOf(const ChunkKey& key) {
    return fmt::format("v1/{}/{}", Root().Hex(), key.Hex());
  }
  size_t Count(const std::string& method) {
    const auto seen = server_.Requests();
    return std::count_if(seen.begin(), seen.end(),
                         [&](const S3Seen& one) { return one.method == method; });
  }

  S3Server server_;
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(4);
};

TEST_F(S3StoreTest, AnotherProcessFindsWhatWasPutWhenItLooks) {
  const auto one = Open(), other = Open();
  ASSERT_TRUE(PutChunk(*one, layout_, chain_[0], Root()));
  EXPECT_EQ(other->Residency(chain_), std::vector<bool>(4));
  EXPECT_EQ(Held(*other, chain_), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(other->Residency(chain_), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(ReadBack(*other, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(other->Stats().looks.calls, 1u);
}

TEST_F(S3StoreTest, AFewReadsAreInFlightHoweverLargeAChunkIs) {
  S3TierOptions options;
  options.max_read_bytes_in_flight = layout_.page_bytes() - 1;
  EXPECT_EQ(Open(options)->max_read_bytes_in_flight() / layout_.page_bytes(), 4u);
  options.max_reads_in_flight = 2;
  EXPECT_EQ(Open(options)->max_read_bytes_in_flight() / layout_.page_bytes(), 2u);
}

TEST_F(S3StoreTest, TheObjectIsAChunkFile) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  const std::string object = server_.Object(NameOf(chain_[1])).value();
  const auto chunk = DecodeChunk(std::as_bytes(std::span(object)));
  ASSERT_TRUE(chunk) << chunk.error().message;
  EXPECT_EQ(chunk->key, chain_[1]);
  EXPECT_EQ(chunk->parent, chain_[0]);
}

TEST_F(S3StoreTest, WhatIsNoChunkIsNeverServedAndRemoved) {
  const auto tier = Open();
  std::mt19937 random(7);
  const std::string name = NameOf(chain_[0]);
  const auto damage = [&](const std::string& what, auto change) {
    SCOPED_TRACE(what);
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
    std::string bytes = server_.Object(name).value();
    change(bytes);
    server_.SetObject(name, bytes);
    ASSERT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt);
    EXPECT_FALSE(tier->Residency(chain_)[0]);
    EXPECT_TRUE(Eventually([&] { return server_.Names().empty(); }));
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
  };
  for (int round = 0; round < 40; ++round) {
    const size_t at = random() % layout_.page_bytes();
    damage(fmt::format("byte {}", at), [&](std::string& bytes) { bytes[at] ^= 1; });
  }
  damage("a byte more", [](std::string& bytes) { bytes += 'x'; });
  damage("a byte less", [](std::string& bytes) { bytes.pop_back(); });
  damage("nothing", [](std::string& bytes) { bytes.clear(); });
  damage("less than a header", [](std::string& bytes) { bytes.resize(100); });
  EXPECT_EQ(tier->Stats().quarantined, 44u);
}

// Some layers of a chunk are ranges of its object.
TEST_F(S3StoreTest, LayersOfAnObjectThatEndsEarlyAreCorrupt) {
  const auto tier = Open();
  for (const size_t bytes : {size_t{0}, size_t{5000}, layout_.page_bytes() - 1}) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
    Reads reads;
    const size_t good = reads.Start(*tier, layout_, chain_[0], Root(), LayerRange{2, 1});
    ASSERT_TRUE(reads.Wait(good).status);
    EXPECT_TRUE(HoldsLayer(chain_[0], reads.landing(good), 2));
    std::string object = server_.Object(NameOf(chain_[0])).value();
    object.resize(bytes);
    server_.SetObject(NameOf(chain_[0]), object);
    const size_t bad = reads.Start(*tier, layout_, chain_[0], Root(), LayerRange{2, 1});
    EXPECT_EQ(reads.Wait(bad).status.error().code, ErrorCode::kCorrupt) << bytes;
  }
}

// What a server, a proxy or an attacker may answer: an error, or a miss, never wrong bytes; and the
// chunk is served again once the fault has gone.
TEST_F(S3StoreTest, FaultsCostTheReadAndNothingElse) {
  const struct {
    const char* what;
    S3Fault fault;
    std::optional<ErrorCode> code;
  } cases[] = {
      {"403", {.status = 403, .code = "AccessDenied"}, ErrorCode::kInvalidArgument},
      {"404", {.status = 404, .code = "NoSuchKey"}, ErrorCode::kNotFound},
      {"no bucket", {.status = 404, .code = "NoSuchBucket"}, ErrorCode::kInvalidArgument},
      {"500", {.status = 500, .code = "InternalError"}, ErrorCode::kIo},
      {"503", {.status = 503, .code = "SlowDown"}, ErrorCode::kIo},
      {"no xml", {.status = 502}, ErrorCode::kIo},
      {"an error without an end",
       {.status = 500, .code = "InternalError", .code_text_bytes = 9 << 20},
       ErrorCode::kIo},
      {"elsewhere",
       {.status = 301, .headers = {{"Location", "http://127.0.0.1:1/"}}},
       ErrorCode::kInvalidArgument},
      {"an early end", {.cut_after = 5000}, ErrorCode::kIo},
      {"no end", {.hang_after = 5000}, ErrorCode::kDeadline},
      {"nothing", {.hangs = true}, ErrorCode::kDeadline},
      {"a closed connection", {.closes = true}, ErrorCode::kIo},
      {"another length", {.headers = {{"Content-Length", "5000"}}}, ErrorCode::kCorrupt},
      {"a wrong ETag",
       {.headers = {{"ETag", "\"d41d8cd98f00b204e9800998ecf8427e\""}}},
       std::nullopt},
      {"an empty body", {.status = 200}, ErrorCode::kCorrupt},
  };
  for (const auto& [what, fault, code] : cases) {
    SCOPED_TRACE(what);
    S3TierOptions options;
    options.client.tries = 2;
    if (code == ErrorCode::kDeadline) options.client.stall_timeout = Seconds(1);
    ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
    const auto tier = Open(options);
    server_.SetFault(
        [&, once = fault](const S3Seen& seen) { return seen.method == "GET" ? once : S3Fault{}; });
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), code);
    server_.SetFault(nullptr);
    // A request whose connection is cut may be answered all the same, behind what is sent after it.
    if (code == ErrorCode::kCorrupt) {
      ASSERT_TRUE(Eventually([&] { return server_.Names().empty(); }));
    }
    server_.CutConnections();
    if (code == ErrorCode::kCorrupt || code == ErrorCode::kNotFound) {
      EXPECT_FALSE(tier->Residency(chain_)[0]);
      ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
    }
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  }
}

TEST_F(S3StoreTest, WhatMayPassIsTriedAgainAFewTimes) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  std::atomic<int> failures{2};
  server_.SetFault([&](const S3Seen&) {
    return failures-- > 0 ? S3Fault{.status = 503, .code = "SlowDown"} : S3Fault{};
  });
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(Count("GET"), 3u);
  failures = 1000;
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kIo);
  EXPECT_EQ(Count("GET"), 6u);
  EXPECT_FALSE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  failures = 2;
  EXPECT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[1], chain_[0]), std::nullopt);
  server_.SetFault([](const S3Seen&) { return S3Fault{.status = 403, .code = "AccessDenied"}; });
  const size_t before = Count("GET");
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Count("GET"), before + 1) << "what will not pass is not tried again";
}

// A connection that was kept may have been closed by the server meanwhile.
TEST_F(S3StoreTest, AnIdleConnectionThatHasGoneIsReplaced) {
  const auto tier = Open();
  for (size_t i = 0; i < chain_.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[i], ParentOf(chain_, i))) << i;
    server_.CutConnections();
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[i], ParentOf(chain_, i)), std::nullopt);
    server_.CutConnections();
  }
}

// libcurl sends again by itself what it sent over a connection that had been kept and was closing.
TEST_F(S3StoreTest, ABodyIsSentAgainFromItsBeginning) {
  S3TierOptions options;
  options.client.tries = 1;
  const auto tier = Open(options);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  std::atomic<int> closed{0};
  server_.SetFault([&](const S3Seen&) { return S3Fault{.closes = closed++ == 0}; });
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(closed, 2);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[1], chain_[0]), std::nullopt);
}

TEST_F(S3StoreTest, AClockThatIsWrongIsTakenIntoAccount) {
  for (const int64_t ahead : {7200, -7200}) {
    server_.SetClockAhead(ahead);
    const auto tier = Open();
    EXPECT_EQ(Held(*tier, {chain_[3]}), std::vector<bool>(1)) << "a reply to HEAD has no code";
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root())) << ahead;
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
    server_.SetClockAhead(0);
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt) << "and once it is right";
    ASSERT_TRUE(tier->Evict(chain_[0]));
  }
}

TEST_F(S3StoreTest, AllRequestsUnderWayLearnOfTheClock) {
  const auto chain = Chain(kS3Connections);
  {
    const auto tier = Open();
    for (size_t i = 0; i < chain.size(); ++i) {
      ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], ParentOf(chain, i)));
    }
  }
  server_.SetClockAhead(7200);
  EXPECT_EQ(Held(*Open(), chain), std::vector<bool>(chain.size(), true));
}

// Its chunks are as good as before: nothing of them is removed.
TEST_F(S3StoreTest, AServerThatServesNoRangesLosesNothing) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  const std::string object = server_.Object(NameOf(chain_[0])).value();
  server_.SetFault([&](const S3Seen& seen) {
    return seen.headers.contains("range") ? S3Fault{.status = 200, .body = object} : S3Fault{};
  });
  Reads reads;
  const size_t read = reads.Start(*tier, layout_, chain_[0], Root(), LayerRange{1, 1});
  const Status status = reads.Wait(read).status;
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("serves no ranges"));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(Count("DELETE"), 0u);
}

// Nor where something between it and kvcake answers with other bytes than were asked for.
TEST_F(S3StoreTest, RepliesToWhatWasNotAskedForLoseNothing) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  const std::string object = server_.Object(NameOf(chain_[0])).value();
  const S3Fault replies[] = {
      {.status = 206, .body = object, .headers = {{"Content-Range", "bytes 0-4095/*"}}},
      {.status = 206,
       .body = object.substr(0, 4096),
       .headers = {{"Content-Range", "bytes 100-4195/*"}}},
      {.status = 206,
       .body = object.substr(0, layout_.slab_bytes()),
       .headers = {{"Content-Range", "bytes 100-4195/*"}}},
      {.status = 203, .body = object},
      {.status = 204},
  };
  for (const S3Fault& fault : replies) {
    server_.SetFault([&](const S3Seen& seen) { return seen.method == "GET" ? fault : S3Fault{}; });
    Reads reads;
    const size_t read = reads.Start(*tier, layout_, chain_[0], Root(), LayerRange{1, 1});
    EXPECT_EQ(reads.Wait(read).status.error().code, ErrorCode::kIo) << fault.status;
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kIo) << fault.status;
  }
  server_.SetFault(nullptr);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(tier->Stats().quarantined, 0u);
  EXPECT_EQ(Count("DELETE"), 0u);
}

TEST_F(S3StoreTest, AnArchivedObjectMakesRoomForOneThatCanBeRead) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  server_.SetFault([](const S3Seen& seen) {
    return seen.method == "GET" ? S3Fault{.status = 403, .code = "InvalidObjectState"} : S3Fault{};
  });
  Reads reads;
  const size_t read = reads.Start(*tier, layout_, chain_[0], Root());
  EXPECT_THAT(reads.Wait(read).status.error().message, HasSubstr("it is archived"));
  server_.SetFault(nullptr);
  EXPECT_EQ(tier->Residency(chain_), (std::vector<bool>{false, true, false, false}));
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(Count("DELETE"), 1u);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(tier->Stats().writes, 3u);
}

TEST_F(S3StoreTest, ABucketsRegionIsLearned) {
  server_.SetFault([](const S3Seen& seen) {
    const bool is_right = seen.headers.at("authorization").find("/us-east-1/") != std::string::npos;
    return is_right ? S3Fault{}
                    : S3Fault{.status = 400,
                              .code = "AuthorizationHeaderMalformed",
                              .headers = {{"x-amz-bucket-region", "us-east-1"}}};
  });
  S3TierOptions options;
  options.client.place = server_.Place();
  options.client.place.region = "eu-west-1";
  options.client.credentials = S3Server::Credentials();
  options.layout = layout_;
  options.root = Root();
  const auto tier = OpenS3Tier(options).value();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(Count("PUT"), 3u);
}

TEST_F(S3StoreTest, WrongCredentialsAreAnErrorThatNamesWhatTheyNeed) {
  S3TierOptions options;
  options.client.credentials = S3Credentials{"AKIDOFTESTS", "wrong"};
  const auto tier = Open(options);
  const Status put = PutChunk(*tier, layout_, chain_[0], Root());
  ASSERT_FALSE(put);
  EXPECT_THAT(put.error().message, HasSubstr("SignatureDoesNotMatch"));
  EXPECT_THAT(put.error().message, HasSubstr("s3:PutObject"));
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
}

TEST_F(S3StoreTest, ALookThatFindsNothingIsShort) {
  const auto tier = Open();
  const auto chain = Chain(400);
  EXPECT_EQ(Held(*tier, chain), std::vector<bool>(400));
  EXPECT_LE(Count("HEAD"), 2u * kS3Connections);
  for (size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], ParentOf(chain, i)));
  }
  const auto other = Open();
  const auto held = Held(*other, chain);
  EXPECT_EQ(std::count(held.begin(), held.end(), true), 100);
  EXPECT_EQ(std::count(held.begin(), held.begin() + 100, true), 100);
}

TEST_F(S3StoreTest, AHoleDoesNotEndALook) {
  const auto tier = Open();
  const auto chain = Chain(3 * kS3Connections);
  std::vector<bool> expected(chain.size());
  for (size_t i = 0; i < chain.size(); i += 3) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], ParentOf(chain, i)));
    expected[i] = true;
  }
  EXPECT_EQ(Held(*Open(), chain), expected);
}

TEST_F(S3StoreTest, WhatWasWrittenTooLongAgoIsAMissAndGoes) {
  S3TierOptions options;
  options.time_to_live = Seconds(3600);
  const auto tier = Open(options);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  server_.SetClockAhead(3500);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  server_.SetClockAhead(3700);
  EXPECT_EQ(ReadBack(*Open(options), layout_, chain_[1], chain_[0]), ErrorCode::kNotFound);
  EXPECT_EQ(Held(*Open(options), chain_), std::vector<bool>(4));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
  EXPECT_TRUE(Eventually([&] { return server_.Names().empty(); }));
  (void)tier->Evict(chain_[0]);  // waits for its DELETE of what it has found, which may be late
  // What has expired is no reason to keep nothing.
  for (const bool looks : {false, true}) {
    server_.SetClockAhead(0);
    ASSERT_TRUE(PutChunk(*Open(options), layout_, chain_[0], Root()));
    server_.SetClockAhead(3700);
    const auto other = Open(options);
    EXPECT_EQ(ReadBack(*other, layout_, chain_[1], chain_[0]), ErrorCode::kNotFound);
    if (looks) {
      EXPECT_EQ(Held(*other, chain_), std::vector<bool>(4));
    }
    ASSERT_TRUE(PutChunk(*other, layout_, chain_[0], Root()));
    EXPECT_EQ(ReadBack(*other, layout_, chain_[0], Root()), std::nullopt) << looks;
    ASSERT_TRUE(other->Evict(chain_[0]));
  }
}

TEST_F(S3StoreTest, ThePutOfWhatAnotherHasPutIsOk) {
  const auto one = Open(), other = Open(), third = Open();
  ASSERT_TRUE(PutChunk(*one, layout_, chain_[0], Root()));
  ASSERT_TRUE(PutChunk(*other, layout_, chain_[0], Root()));
  EXPECT_EQ(other->Stats().writes, 0u);
  EXPECT_EQ(other->Stats().writes_found, 1u);
  // A server that knows no conditions.
  server_.SetFault([](const S3Seen& seen) {
    return seen.headers.contains("if-none-match") ? S3Fault{.status = 501, .code = "NotImplemented"}
                                                  : S3Fault{};
  });
  const size_t before = Count("PUT");
  ASSERT_TRUE(PutChunk(*third, layout_, chain_[0], Root()));
  EXPECT_EQ(third->Stats().writes, 1u);
  EXPECT_EQ(Count("PUT"), before + 2);
  ASSERT_TRUE(PutChunk(*third, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(Count("PUT"), before + 3) << "it is asked once";
}

// It is sent again by libcurl where its connection had been kept, else by S3Client.
TEST_F(S3StoreTest, APutWhoseReplyIsLostHasWrittenTheChunk) {
  const auto tier = Open();
  for (const size_t i : {0, 1}) {
    std::atomic<int> puts{0};
    server_.SetFault(
        [&](const S3Seen& seen) { return S3Fault{.closes = seen.method == "PUT" && puts++ == 0}; });
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[i], ParentOf(chain_, i)));
    EXPECT_EQ(puts, 2);
    EXPECT_EQ(tier->Stats().writes, i + 1) << "nobody else has";
    EXPECT_EQ(tier->Stats().writes_found, 0u);
  }
}

// In the middle of its body, too.
TEST_F(S3StoreTest, AReadThatNobodyWantsAnyMoreEnds) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  for (const S3Fault& fault : {S3Fault{.hang_after = 5000}, S3Fault{.hangs = true}}) {
    const size_t before = Count("GET");
    server_.SetFault([&](const S3Seen&) { return fault; });
    Reads reads;
    const size_t read = reads.Start(*tier, layout_, chain_[0], Root());
    ASSERT_TRUE(Eventually([&] { return Count("GET") > before; }));
    tier->Cancel(reads.id(read));
    EXPECT_EQ(reads.Wait(read).status.error().code, ErrorCode::kCancelled);
    server_.CutConnections();
  }
}

TEST_F(S3StoreTest, OneThatIsDestroyedEndsReadsThatHang) {
  auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.SetFault([](const S3Seen&) { return S3Fault{.hangs = true}; });
  Reads reads;
  reads.Start(*tier, layout_, chain_[0], Root());
  std::vector<bool> held;
  tier->Look({.keys = Chain(100), .found = [&](size_t, const std::vector<bool>& answer) {
                held.insert(held.end(), answer.begin(), answer.end());
                return true;
              }});
  tier.reset();
  EXPECT_EQ(reads.Wait(0).status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(held, std::vector<bool>(100));
}

TEST_F(S3StoreTest, APlainServerRefusesTls) {
  S3TierOptions options;
  options.layout = layout_;
  options.root = Root();
  options.client.place = server_.Place();
  options.client.place.endpoint.replace(0, 4, "https");
  options.client.credentials = S3Server::Credentials();
  options.client.connect_timeout = Seconds(0.2);  // it waits for the end of a request
  options.client.tries = 1;
  const auto tier = OpenS3Tier(options).value();
  EXPECT_FALSE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kDeadline);
  options.client.place.ca = "/nowhere/ca.pem";
  const auto without = OpenS3Tier(options);
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message, HasSubstr("/nowhere/ca.pem"));
}

TEST_F(S3StoreTest, AServerThatIsNotThereIsMisses) {
  S3TierOptions options;
  options.layout = layout_;
  options.root = Root();
  options.client.place = server_.Place();
  options.client.place.endpoint = "http://127.0.0.1:1";
  options.client.credentials = S3Server::Credentials();
  options.client.retry_max = Seconds(1e-3);
  const auto tier = OpenS3Tier(options).value();
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kIo);
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
  EXPECT_FALSE(PutChunk(*tier, layout_, chain_[0], Root()));
}

}  // namespace
}  // namespace kvcake
