#include "store/redis_client.h"

#include <gmock/gmock.h>

#include "store/redis_server_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

// Redis Cluster's specification: CRC16 of "123456789" is 31C3; redis-cli CLUSTER KEYSLOT says the
// rest.
TEST(RedisSlotTest, IsThatOfTheServer) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31C3);
  EXPECT_EQ(RedisSlot("foo"), 12182);
  EXPECT_EQ(RedisSlot("{user1000}.following"), RedisSlot("user1000"));
  EXPECT_EQ(RedisSlot("foo{}{bar}"), 8363);
  EXPECT_EQ(RedisSlot("foo{{bar}}zap"), RedisSlot("{bar"));
  EXPECT_EQ(RedisSlot(""), 0);
}

class RedisClientTest : public testing::Test {
 protected:
  ~RedisClientTest() override { Close(); }

  void Open(RedisClientOptions options) { client_.emplace(context_, std::move(options)); }
  void Close() {
    if (!client_) return;
    bool closed = false;
    client_->Close([&] { closed = true; });
    while (!closed) context_.run_one();
    client_.reset();
  }
  Result<RespReply> Ask(const std::string& key, std::vector<std::string> words) {
    std::optional<Result<RespReply>> answer;
    client_->Send(key, {.words = std::move(words),
                        .done = [&](Result<RespReply> reply) { answer = std::move(reply); }});
    EXPECT_FALSE(answer) << "never from within Send";
    while (!answer) context_.run_one();
    return *answer;
  }
  Result<RespReply> Set(const std::string& key) { return Ask(key, {"SET", key, "value"}); }
  std::string Get(const std::string& key) {
    const auto reply = Ask(key, {"GET", key});
    return reply ? reply->text : reply.error().message;
  }

  boost::asio::io_context context_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      context_.get_executor()};
  std::optional<RedisClient> client_;
};

TEST_F(RedisClientTest, OneServerHasAllKeys) {
  RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}}});
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(Set(key));
  EXPECT_THAT(server.Cli({"DBSIZE"}), HasSubstr("3"));
  EXPECT_EQ(Get("b"), "value");
}

// What is asked for behind a value would wait until that has been taken.
TEST_F(RedisClientTest, ACommandGoesByTheConnectionThatHasTheLeastBytesUnderWay) {
  const RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}}, .connections_per_node = 2});
  const std::string large(1 << 20, 'v');
  std::vector<int64_t> connections;
  int left = 3;
  client_->Send("a", {.words = {"SET", "a"},
                      .value = {std::as_bytes(std::span(large))},
                      .done = [&](Result<RespReply>) { --left; }});
  for (int i = 0; i < 2; ++i) {
    client_->Send("a", {.words = {"CLIENT", "ID"}, .done = [&](Result<RespReply> reply) {
                          --left;
                          connections.push_back(reply ? reply->integer : -1);
                        }});
  }
  while (left > 0) context_.run_one();
  EXPECT_EQ(connections[0], connections[1]);
}

TEST_F(RedisClientTest, AServerThatComesBackIsFoundAgain) {
  RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}}, .retry_min = Seconds(0.01)});
  ASSERT_TRUE(Set("a"));
  server.Kill();
  auto failed = Set("a");
  while (failed) failed = Set("a");
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  server.Start();
  while (!Set("a")) {
  }
  EXPECT_EQ(Get("a"), "value");
}

TEST_F(RedisClientTest, ADeadServerIsNotTriedForEachCommand) {
  RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}},
        .retry_min = Seconds(3600),
        .retry_max = Seconds(3600)});
  server.Kill();
  EXPECT_FALSE(Set("a"));
  server.Start();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Set("a"));
  EXPECT_THAT(server.Cli({"INFO", "stats"}), HasSubstr("total_connections_received:1\r"));
}

// After a failover its name is another server's, while it goes on to serve who is connected.
TEST_F(RedisClientTest, AServerThatHasBecomeReadOnlyIsConnectedToAnew) {
  RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}}, .connections_per_node = 1});
  const auto connection = [&] { return Ask("a", {"CLIENT", "ID"})->integer; };
  ASSERT_TRUE(Set("a"));
  const int64_t first = connection();
  server.Cli({"REPLICAOF", "127.0.0.1", "1"});
  std::vector<std::string> replies;
  const auto note = [&](Result<RespReply> reply) {
    replies.push_back(reply ? reply->text : "none: " + reply.error().message);
  };
  client_->Send("a", {.words = {"SET", "a", "other"}, .done = note});
  client_->Send("a", {.words = {"GET", "a"}, .done = note});
  while (replies.size() < 2) context_.run_one();
  EXPECT_THAT(replies[0], HasSubstr("READONLY"));
  EXPECT_EQ(replies[1], "value") << "what is under way is waited for";
  const int64_t second = connection();
  EXPECT_NE(second, first);
  EXPECT_EQ(Set("a")->ErrorWord(), "READONLY");
  EXPECT_EQ(connection(), second) << "not for each command";
  EXPECT_TRUE(testing_util::Eventually([&] {
    const std::string id = "id=" + std::to_string(first) + " ";
    return server.Cli({"CLIENT", "LIST"}).find(id) == std::string::npos;
  })) << "it is closed once all is answered";
}

TEST_F(RedisClientTest, AClusterIsFoundFromAnySeedAndKeysGoWhereTheyBelong) {
  RedisMasters masters;
  uint16_t dead = 0;
  {
    const RedisServer gone;
    dead = gone.port();
  }
  Open({.seeds = {{"127.0.0.1", dead}, {"127.0.0.1", masters[2].port()}}, .is_cluster = true});
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(Set("key" + std::to_string(i))->IsText("OK"));
  int keys = 0;
  for (int i = 0; i < masters.size(); ++i) {
    const int here = std::stoi(masters[i].Cli({"DBSIZE"}));
    EXPECT_GT(here, 5);
    keys += here;
  }
  EXPECT_EQ(keys, 60);
}

TEST_F(RedisClientTest, FollowsSlotsThatMoveAndThatAreMoving) {
  RedisMasters masters;
  Open({.seeds = {{"127.0.0.1", masters[0].port()}}, .is_cluster = true});
  const std::string key = "foo", slot = std::to_string(RedisSlot(key));  // the last master's
  ASSERT_TRUE(Set("bar"));                                               // the slots are known
  const auto set_slot = [&](int master, std::vector<std::string> words) {
    words.insert(words.begin(), {"CLUSTER", "SETSLOT", slot});
    ASSERT_THAT(masters[master].Cli(words), HasSubstr("OK"));
  };
  set_slot(0, {"IMPORTING", masters.Id(2)});
  set_slot(2, {"MIGRATING", masters.Id(0)});
  ASSERT_TRUE(Set(key)->IsText("OK"));
  EXPECT_THAT(masters[2].Cli({"GET", key}), HasSubstr("ASK"));
  EXPECT_EQ(Get(key), "value");
  set_slot(0, {"NODE", masters.Id(0)});
  set_slot(2, {"NODE", masters.Id(0)});
  EXPECT_EQ(Get(key), "value");
  EXPECT_THAT(masters[2].Cli({"GET", key}), HasSubstr("MOVED"));
  EXPECT_EQ(Get(key), "value");
}

TEST_F(RedisClientTest, AServerThatIsNoClusterIsSaidToBeNone) {
  const RedisServer server;
  Open({.seeds = {{"127.0.0.1", server.port()}}, .is_cluster = true});
  const auto reply = Set("a");
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message, HasSubstr("is no node of a Redis cluster"));
}

// Whether it is a server that does not answer, or a cluster of which nothing is known yet.
TEST_F(RedisClientTest, NoMoreIsKeptForAServerThatHangsThanItCouldAnswer) {
  for (const bool is_cluster : {false, true}) {
    RedisServer server;
    server.Pause();
    Open({.seeds = {{"127.0.0.1", server.port()}},
          .is_cluster = is_cluster,
          .connections_per_node = 1});
    constexpr int kMost = 16384;
    std::optional<std::string> refused;
    int answered = 0;
    for (int i = 0; i <= kMost; ++i) {
      client_->Send("a", {.words = {"GET", "a"}, .done = [&](Result<RespReply> reply) {
                            ++answered;
                            if (!refused) refused = reply ? "" : reply.error().message;
                          }});
    }
    EXPECT_EQ(answered, 0);
    while (!refused) context_.run_one();
    EXPECT_THAT(*refused, HasSubstr("has 16384 commands to answer already"));
    EXPECT_EQ(answered, 1);
    Close();
    EXPECT_EQ(answered, kMost + 1);
  }
}

TEST_F(RedisClientTest, ANodeThatIsGoneCostsItsOwnKeysOnly) {
  RedisMasters masters;
  Open({.seeds = {{"127.0.0.1", masters[0].port()}}, .is_cluster = true});
  ASSERT_TRUE(Set("foo"));  // the last master's
  ASSERT_TRUE(Set("bar"));  // the first's
  masters[2].Kill();
  auto lost = Ask("foo", {"GET", "foo"});
  EXPECT_FALSE(lost && lost->kind == RespReply::Kind::kBulk);
  // Until the others notice, they answer for what they have.
  EXPECT_EQ(Get("bar"), "value");
}

}  // namespace
}  // namespace kvcake
