#include "store/redis_store.h"

#include <gmock/gmock.h>

#include "base/log_testing.h"
#include "store/chunk_format.h"
#include "store/encoded_testing.h"
#include "store/redis_server_testing.h"
#include "store/scripted_redis_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class RedisStoreTest : public testing::Test {
 protected:
  std::unique_ptr<RemoteTier> Open(RedisTierOptions options = {}) {
    options.client.seeds = {{"127.0.0.1", server_.port()}};
    options.client.retry_min = Seconds(0.01);
    // What is sent meanwhile may keep a busy machine's thread from hearing that it is connected.
    options.client.connection.connect_timeout = Seconds(60);
    options.layout = layout_;
    options.root = Root();
    auto tier = OpenRedisTier(std::move(options));
    CHECK(tier.has_value());
    return std::move(*tier);
  }
  std::string NameOf(const ChunkKey& key) {
    return fmt::format("kvcake:v1:{}:{}", Root().Hex(), key.Hex());
  }

  RedisServer server_;
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(4);
};

TEST_F(RedisStoreTest, AnotherProcessFindsWhatWasPutWhenItLooks) {
  const auto one = Open(), other = Open();
  ASSERT_TRUE(PutChunk(*one, layout_, chain_[0], Root()));
  EXPECT_EQ(other->Residency(chain_), std::vector<bool>(4));
  EXPECT_EQ(Held(*other, chain_), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(other->Residency(chain_), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(ReadBack(*other, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(other->Stats().looks.calls, 1u);
}

// More of them than commands may wait for a server's answers.
TEST_F(RedisStoreTest, ALongPromptIsLookedForToItsEnd) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_THAT(Held(*Open(), std::vector(40'000, chain_[0])), testing::Each(true));
}

TEST_F(RedisStoreTest, TheValueIsAChunkFile) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  std::string value = server_.Cli({"GET", NameOf(chain_[1])});
  value.pop_back();  // redis-cli's newline
  const auto chunk = DecodeChunk(std::as_bytes(std::span(value)));
  ASSERT_TRUE(chunk) << chunk.error().message;
  EXPECT_EQ(chunk->key, chain_[1]);
  EXPECT_EQ(chunk->parent, chain_[0]);
}

// Else each request would find out about the few chunks that it reads, and none of the others would
// be looked for or written anew.
TEST_F(RedisStoreTest, AMissWhereAChunkWasKnownForgetsAllThatWas) {
  const auto tier = Open();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[i], i == 0 ? Root() : chain_[i - 1]));
  }
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[3], chain_[2]), ErrorCode::kNotFound);
  EXPECT_TRUE(tier->Residency(chain_)[0]) << "that one was not known";
  server_.Cli({"FLUSHALL"});
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[1], chain_[0]), ErrorCode::kNotFound);
  EXPECT_THAT(tier->Residency(chain_), testing::Each(false));
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[2], chain_[1]));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[2], chain_[1]), std::nullopt);
}

TEST_F(RedisStoreTest, WhatALookFindsGoneIsNotKnownAnyMore) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.Cli({"DEL", NameOf(chain_[0])});
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
  EXPECT_EQ(tier->Residency(chain_), std::vector<bool>(4));
}

TEST_F(RedisStoreTest, WhatIsNoChunkIsNeverServedAndRemoved) {
  const auto tier = Open();
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
    const size_t at = random() % layout_.page_bytes();
    const std::string byte =
        server_.Cli({"GETRANGE", NameOf(chain_[0]), std::to_string(at), std::to_string(at)});
    const std::string other(1, static_cast<char>('a' + (byte[0] == 'a')));
    server_.Cli({"SETRANGE", NameOf(chain_[0]), std::to_string(at), other});
    ASSERT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt) << at;
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
    EXPECT_FALSE(tier->Residency(chain_)[0]);
  }
  EXPECT_EQ(tier->Stats().quarantined, 40u);
  for (const size_t bytes : {size_t{1}, size_t{4095}, layout_.page_bytes() - 1}) {
    server_.Cli({"SET", NameOf(chain_[0]), std::string(bytes, 'x')});
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt) << bytes;
  }
  server_.Cli({"LPUSH", NameOf(chain_[0]), "x"});
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt) << "it is a list";
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
}

// Only its header tells how long an encoded value is, so any length up to a slot's lands.
TEST_F(RedisStoreTest, WhatIsNoEncodedChunkIsNeverServedAndRemoved) {
  RedisTierOptions raw;
  raw.client.seeds = {{"127.0.0.1", server_.port()}};
  raw.layout = layout_;
  raw.root = Root();
  const StoreCodec codec = NaturalCodec(Codec::kLossless, layout_);
  const RedisTierOptions options = EncodedOptions(raw, codec);
  const auto tier = OverFiles(OpenRedisTier(options).value(), options, codec);
  const std::string name = fmt::format("kvcake:v1:{}:{}", options.root.Hex(), chain_[0].Hex());
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  const auto bytes = static_cast<size_t>(std::stoi(server_.Cli({"STRLEN", name})));
  const auto damage = [&](const std::string& what, const std::vector<std::string>& command) {
    SCOPED_TRACE(what);
    ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
    server_.Cli(command);
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt);
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
  };
  for (const size_t more : {1, 64, 4096}) {
    damage(fmt::format("{} bytes more", more), {"APPEND", name, std::string(more, 'x')});
  }
  damage("a block of zeros more",
         {"EVAL", "redis.call('APPEND', KEYS[1], string.rep('\\0', 4096))", "1", name});
  for (const size_t less : {size_t{1}, size_t{4096}, bytes - 1}) {
    damage(
        fmt::format("{} bytes less", less),
        {"EVAL", "redis.call('SET', KEYS[1], string.sub(redis.call('GET', KEYS[1]), 1, ARGV[1]))",
         "1", name, std::to_string(bytes - less)});
  }
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const size_t at = random() % bytes;
    damage(fmt::format("byte {}", at),
           {"EVAL",
            "local b = string.byte(redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1])) "
            "redis.call('SETRANGE', KEYS[1], ARGV[1], string.char((b + 1) % 256))",
            "1", name, std::to_string(at)});
  }
}

TEST_F(RedisStoreTest, WhatTheServerEvictsIsAMiss) {
  server_.Cli({"CONFIG", "SET", "maxmemory", "3mb"});
  server_.Cli({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  const auto tier = Open();
  const auto chain = Chain(200);
  for (size_t i = 0; i < chain.size(); ++i) {
    ASSERT_TRUE(PutChunk(*tier, layout_, chain[i], ParentOf(chain, i)));
  }
  size_t missing = 0;  // any of them: all were used in the same second, as Redis tells time
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto failed = ReadBack(*tier, layout_, chain[i], ParentOf(chain, i));
    EXPECT_EQ(failed.value_or(ErrorCode::kNotFound), ErrorCode::kNotFound);
    missing += failed.has_value();
  }
  EXPECT_GT(missing, 0u);
  EXPECT_LT(missing, chain.size());
  EXPECT_EQ(tier->Stats().reads_failed, 0u);
}

TEST_F(RedisStoreTest, AFullServerThatEvictsNothingIsNoSpace) {
  server_.Cli({"CONFIG", "SET", "maxmemory", "1mb"});
  server_.Cli({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  const auto tier = Open();
  const auto chain = Chain(200);
  std::optional<ErrorCode> refused;
  for (size_t i = 0; i < chain.size() && !refused; ++i) {
    if (const auto put = PutChunk(*tier, layout_, chain[i], ParentOf(chain, i)); !put) {
      refused = put.error().code;
    }
  }
  EXPECT_EQ(refused, ErrorCode::kNoSpace);
  EXPECT_EQ(tier->Stats().writes_failed, 1u);
}

TEST_F(RedisStoreTest, APutThatFailsEndsItsClaim) {
  const auto tier = Open(), other = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), ClaimState::kMine);
  EXPECT_EQ(ClaimKey(*other, chain_[0]), ClaimState::kTheirs);
  server_.Cli({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_FALSE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.Cli({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[0]) == ClaimState::kMine; }));
}

TEST_F(RedisStoreTest, AClaimLastsAsLongAsItWasLastAskedFor) {
  const auto tier = Open();
  const std::string name = NameOf(chain_[0]) + ":claim";
  for (const int seconds : {1000, 3000, 2000}) {
    EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(seconds)), ClaimState::kMine);
    const int left_ms = std::stoi(server_.Cli({"PTTL", name}));
    EXPECT_LE(left_ms, seconds * 1000);
    EXPECT_GT(left_ms, (seconds - 900) * 1000);
  }
}

TEST_F(RedisStoreTest, WhoseClaimHasExpiredLeavesTheNewOneAlone) {
  RedisTierOptions options;
  options.client.connections_per_node = 1;  // so that the server hears of all in order
  const auto tier = Open(options), other = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), ClaimState::kMine);
  server_.Cli({"DEL", NameOf(chain_[0]) + ":claim"});  // as when it expires
  EXPECT_EQ(ClaimKey(*other, chain_[0]), ClaimState::kMine);
  tier->Disclaim(std::span(chain_).first(1));
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), ClaimState::kTheirs);
}

TEST_F(RedisStoreTest, ARefusalSaysWhatToDo) {
  server_.Cli({"CONFIG", "SET", "requirepass", "secret"});
  const Status put = PutChunk(*Open(), layout_, chain_[0], Root());
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(put.error().message, HasSubstr("KVCAKE_REDIS_PASSWORD"));
}

TEST_F(RedisStoreTest, WhatFailsAndWorksAgainIsToldOfOnce) {
  CapturedLog log;
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.Kill();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kIo);
  }
  server_.Start();
  ASSERT_TRUE(Eventually([&] { return PutChunk(*tier, layout_, chain_[1], chain_[0]); }));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[1], chain_[0]), std::nullopt);
  for (const char* const what : {"reading chunks from remote", "writing chunks to remote"}) {
    EXPECT_EQ(log.Count(fmt::format("store: {} fails: ", what)), 1) << what;
    EXPECT_EQ(log.Count(fmt::format("store: {} works again", what)), 1) << what;
  }
}

TEST_F(RedisStoreTest, ChunksExpireUnlessTheyAreUsed) {
  RedisTierOptions options;
  options.time_to_live = Seconds(3600);
  const auto tier = Open(options);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_GT(std::stoi(server_.Cli({"PTTL", NameOf(chain_[0])})), 3'000'000);
  server_.Cli({"PEXPIRE", NameOf(chain_[0]), "100000"});
  tier->Unpin(std::span(chain_).first(1));
  ASSERT_TRUE(Eventually([&] {
    return std::stoi(server_.Cli({"PTTL", NameOf(chain_[0])})) > 3'000'000;
  }));
  const auto forever = Open();
  ASSERT_TRUE(PutChunk(*forever, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(std::stoi(server_.Cli({"PTTL", NameOf(chain_[1])})), -1);
}

TEST_F(RedisStoreTest, AServerThatDiesIsMissesAndOneThatComesBackIsUsed) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.Kill();
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kIo);
  EXPECT_FALSE(PutChunk(*tier, layout_, chain_[1], chain_[0]));
  EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(4));
  server_.Start();
  ASSERT_TRUE(Eventually([&] { return PutChunk(*tier, layout_, chain_[1], chain_[0]); }));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[1], chain_[0]), std::nullopt);
}

TEST_F(RedisStoreTest, OneThatIsDestroyedEndsReadsThatHang) {
  auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.Pause();
  Reads reads;
  reads.Start(*tier, layout_, chain_[0], Root());
  std::optional<std::vector<bool>> held;
  tier->Look({.keys = chain_, .found = [&](size_t, const std::vector<bool>& answer) {
                held = answer;
                return true;
              }});
  tier.reset();
  EXPECT_EQ(reads.Wait(0).status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(held, std::vector<bool>(4));
}

TEST_F(RedisStoreTest, ThePutOfWhatAnotherHasPutIsOk) {
  const auto one = Open(), other = Open();
  ASSERT_TRUE(PutChunk(*one, layout_, chain_[0], Root()));
  ASSERT_TRUE(PutChunk(*other, layout_, chain_[0], Root()));
  EXPECT_EQ(other->Stats().writes, 0u);
  EXPECT_EQ(other->Stats().write_bytes, 0u);
  EXPECT_TRUE(other->Residency(chain_)[0]);
}

// A server that is slow to remove a bad value: it serves other connections meanwhile.
class SlowToRemove {
 public:
  SlowToRemove() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~SlowToRemove() {
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  uint16_t port() const { return redis_.port(); }
  bool was_kept() {
    MutexLock lock(mutex_);
    return was_kept_;
  }

 private:
  std::string Answer(const ScriptedRedis::Words& words) {
    MutexLock lock(mutex_);
    if (words[0] == "GET") {
      return fmt::format("${}\r\n{}\r\n", bad_.size(), bad_);
    }
    if (words[0] == "SET") {  // NX
      put_ = true;
      was_kept_ = is_removed_;
      changed_.NotifyAll();
      return is_removed_ ? "+OK\r\n" : "$-1\r\n";
    }
    if (words[0] != "UNLINK") return ":0\r\n";
    const TimePoint until = Clock::Real().Now() + Seconds(0.3);
    while (!put_ && changed_.WaitUntil(mutex_, until)) continue;
    is_removed_ = true;
    return ":1\r\n";
  }

  const std::string bad_ = std::string(SmallLayout().page_bytes(), 'x');
  Mutex mutex_;
  CondVar changed_;
  bool put_ GUARDED_BY(mutex_) = false, is_removed_ GUARDED_BY(mutex_) = false;
  bool was_kept_ GUARDED_BY(mutex_) = false;
  boost::asio::io_context context_;
  ScriptedRedis redis_{context_,
                       [this](const ScriptedRedis::Words& words) { return Answer(words); }};
  std::vector<std::thread> threads_;
};

// Else it would find the bad one there, which goes then.
TEST(RedisDiscardTest, APutOfWhatWasBadWaitsUntilThatHasGone) {
  const KvLayout layout = SmallLayout();
  const ChunkKey key = Chain(1)[0];
  SlowToRemove server;
  RedisTierOptions options;
  options.client.seeds = {{"127.0.0.1", server.port()}};
  options.client.connection.connect_timeout = Seconds(60);
  options.layout = layout;
  options.root = Root();
  const auto tier = OpenRedisTier(std::move(options)).value();
  ASSERT_EQ(ReadBack(*tier, layout, key, Root()), ErrorCode::kCorrupt);
  ASSERT_TRUE(PutChunk(*tier, layout, key, Root()));
  EXPECT_TRUE(server.was_kept());
}

}  // namespace
}  // namespace kvcake
