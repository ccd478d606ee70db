#include "engine/admission_order.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcake {
namespace {

using Places = std::vector<size_t>;

std::unique_ptr<Sequence> Of(char tenant, int preemptions = 0) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request.tenant = std::string(1, tenant);
  sequence->completion.preemptions = preemptions;
  return sequence;
}

// Tenants are letters; a capital one has been preempted.
Places Order(const std::string& waiting, const std::string& running, size_t count = 100) {
  std::deque<std::unique_ptr<Sequence>> waits;
  for (const char c : waiting) waits.push_back(Of(static_cast<char>(c | 0x20), c < 'a' ? 1 : 0));
  std::vector<std::unique_ptr<Sequence>> runs;
  for (const char c : running) runs.push_back(Of(c));
  return AdmissionOrder(waits, runs, count);
}

TEST(AdmissionOrderTest, OneTenantsAreInOrderOfArrival) {
  EXPECT_EQ(Order("", "a"), Places());
  EXPECT_EQ(Order("aaaa", "aa"), (Places{0, 1, 2, 3}));
  EXPECT_EQ(Order("aaaa", "bb", 2), (Places{0, 1}));
}

TEST(AdmissionOrderTest, TenantsTakeTurns) {
  EXPECT_EQ(Order("aaaab", ""), (Places{0, 4, 1, 2, 3}));
  EXPECT_EQ(Order("aabbc", ""), (Places{0, 2, 4, 1, 3}));
  EXPECT_EQ(Order("aabbc", "", 2), (Places{0, 2}));
}

TEST(AdmissionOrderTest, WhoHasFewerRunningComesFirst) {
  EXPECT_EQ(Order("aaab", "aab"), (Places{3, 0, 1, 2}));
  EXPECT_EQ(Order("aaabbbb", "aa"), (Places{3, 4, 0, 5, 1, 6, 2}));
}

TEST(AdmissionOrderTest, WhoWasPreemptedIsPassedOverByNobody) {
  EXPECT_EQ(Order("AAab", "aaa"), (Places{0, 1, 3, 2}));
  EXPECT_EQ(Order("baA", ""), (Places{2, 0, 1}));
}

}  // namespace
}  // namespace kvcake
