#include "store/redis_claims.h"

#include <gtest/gtest.h>

#include <future>

#include "store/redis_server_testing.h"
#include "store/redis_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// A store that ends while a claim is being asked for. It has one already, whose end the servers
// have to hear of; by its one connection they hear of all in order.
class RedisClaimsTest : public testing::Test {
 protected:
  RedisClaimsTest() {
    RedisStoreOptions options;
    options.client.seeds = {{"127.0.0.1", server_.port()}};
    options.client.connections_per_node = 1;
    options.root = Root();
    options.goodbye = kPatience;
    store_ = std::make_unique<RedisStore>(options);
    std::promise<ClaimState> state;
    Claim(chain_[0], [&](const auto& states) { state.set_value(states[0]); });
    EXPECT_EQ(state.get_future().get(), ClaimState::kMine);
  }
  void Claim(const ChunkKey& key, std::function<void(const std::vector<ClaimState>&)> done) {
    store_->Claim({.keys = {key}, .lasts = kPatience, .done = std::move(done)});
  }
  // Returns once it has begun to close.
  void BeginToClose() {
    std::promise<void> begun;
    store_->Post([&] {
      store_->Close([this] { closed_.set_value(); });
      begun.set_value();
    });
    begun.get_future().wait();
  }
  void WaitUntilClosed() {
    closed_.get_future().wait();
    store_.reset();
  }

  RedisServer server_;
  const std::vector<ChunkKey> chain_ = Chain(2);
  std::unique_ptr<RedisStore> store_;
  std::promise<void> closed_;
  int answers_ = 0;
};

TEST_F(RedisClaimsTest, WhatWasLookedForWhenItEndsIsNotTaken) {
  server_.Pause();
  Claim(chain_[1], [&](const auto&) { ++answers_; });
  BeginToClose();
  server_.Resume();
  WaitUntilClosed();
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(server_.Cli({"KEYS", "*"}), "\n");
}

TEST_F(RedisClaimsTest, WhatIsBeingTakenWhenItEndsEndsToo) {
  server_.Cli({"CLIENT", "PAUSE", "1000000", "WRITE"});
  Claim(chain_[1], [&](const auto&) { ++answers_; });
  ASSERT_TRUE(Eventually([&] {
    return server_.Cli({"CLIENT", "LIST"}).find("flags=b") != std::string::npos;
  })) << "its SET waits";
  BeginToClose();
  server_.Cli({"CLIENT", "UNPAUSE"});
  WaitUntilClosed();
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(server_.Cli({"KEYS", "*"}), "\n");
}

}  // namespace
}  // namespace kvcake
