#include "server/connection_table.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

TEST(ConnectionTableTest, TheOneThatHasWaitedLongestGivesItsPlace) {
  ConnectionTable table({.total = 3, .per_client = 3});
  const auto a = table.Admit("a").id, b = table.Admit("b").id, c = table.Admit("c").id;
  table.SetWaiting(a, false);  // it has a request,
  table.SetWaiting(a, true);   // and waits anew
  EXPECT_EQ(table.Admit("d").evicted, b);
  EXPECT_EQ(table.Admit("d").evicted, c);
  EXPECT_EQ(table.Admit("d").evicted, a);
  EXPECT_EQ(table.stats().open, 3u);
  EXPECT_EQ(table.stats().evicted, 3u);
}

TEST(ConnectionTableTest, WhoHasARequestStays) {
  ConnectionTable table({.total = 2, .per_client = 2});
  const auto a = table.Admit("a").id, b = table.Admit("b").id;
  table.SetWaiting(a, false);
  table.SetWaiting(b, false);
  const auto refused = table.Admit("c");
  EXPECT_EQ(refused.id, 0u);
  EXPECT_EQ(refused.evicted, 0u);
  EXPECT_EQ(refused.refusal, ConnectionTable::Refusal::kFull);
  EXPECT_EQ(table.stats().refused_full, 1u);
  table.Remove(a);
  EXPECT_NE(table.Admit("c").id, 0u);
}

TEST(ConnectionTableTest, AClientWithTooManyLosesItsOwn) {
  ConnectionTable table({.total = 10, .per_client = 2});
  table.Admit("b");
  const auto a1 = table.Admit("a").id, a2 = table.Admit("a").id;
  EXPECT_EQ(table.Admit("a").evicted, a1);
  table.SetWaiting(a2, false);
  const auto a4 = table.Admit("a");  // a3, which waits, goes
  EXPECT_NE(a4.evicted, 0u);
  table.SetWaiting(a4.id, false);
  const auto refused = table.Admit("a");
  EXPECT_EQ(refused.id, 0u);
  EXPECT_EQ(refused.refusal, ConnectionTable::Refusal::kClientFull);
  EXPECT_EQ(table.stats().refused_client, 1u);
  EXPECT_NE(table.Admit("b").id, 0u);
  table.Remove(a2);
  EXPECT_NE(table.Admit("a").id, 0u);
}

TEST(ConnectionTableTest, WhoIsGoneIsNotCounted) {
  ConnectionTable table({.total = 1, .per_client = 1});
  const auto a = table.Admit("a").id;
  const auto b = table.Admit("b");
  EXPECT_EQ(b.evicted, a);
  table.SetWaiting(a, true);  // its coroutine hears of it later
  table.Remove(a);
  EXPECT_EQ(table.stats().open, 1u);
  EXPECT_EQ(table.stats().waiting, 1u);
  table.Remove(b.id);
  EXPECT_EQ(table.stats().open, 0u);
  EXPECT_EQ(table.stats().waiting, 0u);
}

}  // namespace
}  // namespace kvcake
