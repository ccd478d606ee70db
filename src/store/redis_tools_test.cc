#include "store/redis_tools.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "store/redis_server_testing.h"
#include "store/redis_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class RedisToolsTest : public testing::Test {
 protected:
  // Keeps chunks of a root.
  void Keep(const RedisPlace& place, const ChunkKey& root, std::span<const ChunkKey> chain) {
    RedisTierOptions options;
    options.client = ClientOptions(place).value();
    options.layout = layout_;
    options.root = root;
    const auto tier = OpenRedisTier(std::move(options)).value();
    for (size_t i = 0; i < chain.size(); ++i) {
      ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], i > 0 ? chain[i - 1] : root));
    }
  }
  std::string NameOf(const ChunkKey& root, const ChunkKey& key) {
    return fmt::format("kvcake:v1:{}:{}", root.Hex(), key.Hex());
  }
  static std::unique_ptr<RemoteListing> Listing(const RedisPlace& place) {
    return OpenRedisListing(place).value();
  }
  RedisPlace PlaceOf(const RedisServer& server) {
    return {.seeds = {{"127.0.0.1", server.port()}}};
  }

  const KvLayout layout_ = SmallLayout();
  const ChunkKey other_ = KvIdentity().Add("model", "other").Root();
};

TEST_F(RedisToolsTest, WhatIsKeptIsToldByRootAndNoUseOfIt) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  EXPECT_TRUE(ListRemote(*Listing(place))->empty());
  const auto chain = Chain(1000);
  Keep(place, Root(), chain);
  Keep(place, other_, std::span(chain).first(3));
  server.Cli({"SET", "kvcake:v1:other:name", "x"});
  server.Cli({"SET", "theirs:v1:" + Root().Hex() + ":" + chain[0].Hex(), "x"});
  const auto roots = ListRemote(*Listing(place)).value();
  ASSERT_EQ(roots.size(), 2u);
  const StoreRoot& first = roots[0].root == Root() ? roots[0] : roots[1];
  const StoreRoot& second = roots[0].root == Root() ? roots[1] : roots[0];
  EXPECT_EQ(first.chunks, 1000u);
  EXPECT_GE(first.bytes, 1000 * layout_.page_bytes());
  EXPECT_EQ(second.root, other_);
  EXPECT_EQ(second.chunks, 3u);
  EXPECT_LE(std::abs(UnixSeconds() - first.newest_use_s), 600);
  server.Cli({"CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"});
  EXPECT_EQ(ListRemote(*Listing(place))->at(0).newest_use_s, 0);
  EXPECT_EQ(MemoryOfRedis(place)->policy, "allkeys-lfu");
  EXPECT_GT(MemoryOfRedis(place)->used_bytes, 1000 * layout_.page_bytes());
  EXPECT_EQ(MemoryOfRedis(place)->max_bytes, 0u);
}

TEST_F(RedisToolsTest, WhatIsBadIsNamedAndLeft) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  const auto chain = Chain(4);
  Keep(place, Root(), chain);
  server.Cli({"SETRANGE", NameOf(Root(), chain[1]), "5000", "!!!!"});
  server.Cli({"COPY", NameOf(Root(), chain[0]), NameOf(other_, chain[0])});
  server.Cli({"SET", NameOf(Root(), chain[2]), "short"});
  const VerifiedStore verified = VerifyRemote(*Listing(place)).value();
  EXPECT_EQ(verified.chunks, 2u);
  EXPECT_EQ(verified.codecs.at("raw"), 2u);
  std::string reasons;
  for (const BadFile& bad : verified.bad) reasons += bad.reason + "\n";
  EXPECT_EQ(verified.bad.size(), 3u);
  EXPECT_THAT(reasons, HasSubstr("checksum"));
  EXPECT_THAT(reasons, HasSubstr("another chunk"));
  EXPECT_THAT(reasons, HasSubstr("fewer than a header"));
  EXPECT_THAT(server.Cli({"DBSIZE"}), HasSubstr("5"));
}

TEST_F(RedisToolsTest, EvictionRemovesWhatTheRuleSays) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  const auto chain = Chain(10);
  Keep(place, Root(), chain);
  Keep(place, other_, std::span(chain).first(3));
  EXPECT_EQ(EvictRemote(*Listing(place), {.roots = std::vector{other_}})->files, 3u);
  EXPECT_EQ(EvictRemote(*Listing(place), {.used_before_s = UnixSeconds() - 3600})->files, 0u);
  const uint64_t bytes = ListRemote(*Listing(place))->at(0).bytes;
  const ClearedStore cleared = EvictRemote(*Listing(place), {.to_bytes = bytes / 2}).value();
  EXPECT_EQ(cleared.files, 5u);
  EXPECT_EQ(cleared.bytes, bytes / 2);
  EXPECT_EQ(EvictRemote(*Listing(place), {.used_before_s = UnixSeconds() + 60})->files, 5u);
  Keep(place, Root(), chain);
  server.Cli({"CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"});
  EXPECT_EQ(EvictRemote(*Listing(place), {.to_bytes = 0}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(EvictRemote(*Listing(place), {.roots = std::vector{Root()}})->files, 10u);
}

// A listing as a server's that rehashes: SCAN may give a name more than once.
class RepeatingListing : public RemoteListing {
 public:
  explicit RepeatingListing(std::unique_ptr<RemoteListing> inner) : inner_(std::move(inner)) {}
  Status ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) override {
    return inner_->ForEachPage([&](std::span<const FoundValue> found) -> Status {
      RETURN_IF_ERROR(visit(found));
      return visit(found);
    });
  }
  Result<std::vector<std::byte>> Read(const FoundValue& value) override {
    return inner_->Read(value);
  }
  size_t remove_max() const override { return 3; }
  Result<RemovedValues> Remove(std::span<const std::string> names) override {
    EXPECT_LE(names.size(), remove_max());
    return inner_->Remove(names);
  }
  std::string why_no_times() const override { return inner_->why_no_times(); }

 private:
  const std::unique_ptr<RemoteListing> inner_;
};

TEST_F(RedisToolsTest, WhatIsFoundAgainCountsOnce) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  const auto chain = Chain(10);
  Keep(place, Root(), chain);
  server.Cli({"SET", NameOf(Root(), chain[0]), "short"});
  RepeatingListing listing(Listing(place));
  EXPECT_EQ(ListRemote(listing)->at(0).chunks, 10u);
  EXPECT_EQ(ListRemote(listing)->at(0).bytes, ListRemote(*Listing(place))->at(0).bytes);
  const VerifiedStore verified = VerifyRemote(listing).value();
  EXPECT_EQ(verified.chunks, 9u);
  EXPECT_EQ(verified.bad.size(), 1u);
  const ClearedStore cleared = EvictRemote(listing, {.to_bytes = 0}).value();
  EXPECT_EQ(cleared.files, 10u);
  EXPECT_TRUE(ListRemote(listing)->empty());
}

TEST_F(RedisToolsTest, AClusterIsWalkedServerByServer) {
  RedisMasters masters;
  RedisPlace place = PlaceOf(masters[0]);
  place.is_cluster = true;
  place.seeds.insert(place.seeds.begin(), {"127.0.0.1", 1});  // nobody: the next is asked
  Keep(place, Root(), Chain(60));
  masters[1].Cli({"SET", "theirs", "x"});
  const auto list = ListRemote(*Listing(place));
  ASSERT_TRUE(list) << list.error().message;
  EXPECT_EQ(list->at(0).chunks, 60u);
  EXPECT_EQ(VerifyRemote(*Listing(place))->chunks, 60u);
  const ClearedStore cleared = ClearRemote(*Listing(place)).value();
  EXPECT_EQ(cleared.files, 60u);
  EXPECT_TRUE(ListRemote(*Listing(place))->empty());
}

TEST_F(RedisToolsTest, TheMemoryOfAClusterIsThatOfItsServersTogether) {
  RedisMasters masters;
  RedisPlace place = PlaceOf(masters[0]);
  place.is_cluster = true;
  uint64_t used = 0;
  for (int i = 0; i < masters.size(); ++i) {
    masters[i].Cli({"CONFIG", "SET", "maxmemory", "50mb"});
    used += MemoryOfRedis(PlaceOf(masters[i]))->used_bytes;
  }
  EXPECT_EQ(MemoryOfRedis(place)->max_bytes, 150u << 20);
  EXPECT_GT(MemoryOfRedis(place)->used_bytes, used / 2) << "more than one of the three has";
  masters[1].Cli({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(MemoryOfRedis(place)->max_bytes, 0u) << "one has no bound";
}

TEST_F(RedisToolsTest, ClearingLeavesWhatIsOthers) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  Keep(place, Root(), Chain(5));
  server.Cli({"SET", NameOf(Root(), Chain(1)[0]) + ":claim", "me"});
  server.Cli({"SET", "theirs", "x"});
  EXPECT_EQ(ClearRemote(*Listing(place))->files, 5u);
  EXPECT_EQ(server.Cli({"KEYS", "*"}), "theirs\n");
}

// What the server does not let its user see is not taken for nothing: a store that looks empty
// would be all in order, too.
TEST_F(RedisToolsTest, AUserWhoMayNotLookIsTold) {
  for (const char* const forbidden : {"memory", "object"}) {
    RedisServer server;
    RedisPlace place = PlaceOf(server);
    Keep(place, Root(), Chain(3));
    server.Cli(
        {"ACL", "SETUSER", "tools", "on", ">secret", "~*", "+@all", fmt::format("-{}", forbidden)});
    place.login = {"tools", "secret"};
    const auto listing = Listing(place);
    const auto list = ListRemote(*listing);
    ASSERT_FALSE(list) << forbidden;
    EXPECT_EQ(list.error().code, ErrorCode::kIo);
    EXPECT_THAT(list.error().message, HasSubstr(place.seeds[0].Text()));
    EXPECT_THAT(list.error().message, HasSubstr("NOPERM"));
    EXPECT_FALSE(VerifyRemote(*listing)) << forbidden;
    EXPECT_FALSE(EvictRemote(*listing, {.to_bytes = 0})) << forbidden;
  }
}

// Answers every command of a connection with the same.
class ParrotServer {
 public:
  explicit ParrotServer(std::string reply) : thread_([this, reply] { Serve(reply); }) {}
  ~ParrotServer() { thread_.join(); }  // when the client has gone
  RedisPlace Place() const { return {.seeds = {{"127.0.0.1", acceptor_.local_endpoint().port()}}}; }

 private:
  using tcp = boost::asio::ip::tcp;

  void Serve(const std::string& reply) {
    tcp::socket socket = acceptor_.accept();
    boost::system::error_code error;
    std::array<char, 4096> bytes;
    while (!error) {
      const size_t read = socket.read_some(boost::asio::buffer(bytes), error);
      const std::string_view some(bytes.data(), read);
      for (size_t i = 0; i < some.size() && !error; ++i) {
        if (some[i] != '*' || (i > 0 && some[i - 1] != '\n')) continue;  // begins no command
        boost::asio::write(socket, boost::asio::buffer(reply), error);
      }
    }
  }

  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, {boost::asio::ip::address_v4::loopback(), 0}};
  std::thread thread_;
};

TEST_F(RedisToolsTest, PagesInACircleEnd) {
  ParrotServer server("*2\r\n$2\r\n17\r\n*0\r\n");
  RedisPlace place = server.Place();
  const auto list = ListRemote(*Listing(place));
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message, HasSubstr("lists the same page again"));
  EXPECT_THAT(list.error().message, HasSubstr(place.Text()));
}

// It would go into messages, and so to a terminal.
TEST_F(RedisToolsTest, AHostOfAClusterThatIsNoneIsNotAsked) {
  ParrotServer server("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\nx\033[31m\r\ny\r\n:6379\r\n");
  RedisPlace place = server.Place();
  place.is_cluster = true;
  const auto list = ListRemote(*Listing(place));
  ASSERT_FALSE(list);
  EXPECT_THAT(list.error().message, HasSubstr("has no slots"));
}

TEST_F(RedisToolsTest, AServerThatIsNotThereIsNamed) {
  RedisServer server;
  const RedisPlace place = PlaceOf(server);
  server.Kill();
  const auto list = ListRemote(*Listing(place));
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ErrorCode::kIo);
  EXPECT_THAT(list.error().message, HasSubstr(place.seeds[0].Text()));
}

}  // namespace
}  // namespace kvcake
