#include "runahead/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "runahead/job_testing.h"

namespace kvcake {
namespace {

RankJob JobOf(RankMethod method, int parts, std::mt19937& random) {
  RankJob job{.method = method};
  job.partition.bounds = {0};
  for (int i = 0; i < parts; ++i) {
    job.partition.bounds.push_back(job.partition.bounds.back() + 1 +
                                   static_cast<int>(random() % 50));
  }
  job.tokens.resize(job.partition.tokens());
  return job;
}

// Where each piece of the prompt goes, hop by hop, must be where it is expected from, and it must
// come exactly once to who needs it.
TEST(RoutesTest, EveryPieceComesOnceToWhoNeedsIt) {
  constexpr int kChunk = 16, kFirst = 3;
  std::mt19937 random(1);
  for (const RankMethod method : {RankMethod::kChain, RankMethod::kTsp, RankMethod::kZigzag}) {
    for (int places = 1; places <= 5; ++places) {
      const int parts = method == RankMethod::kZigzag ? 2 * places : places;
      const RankJob job = JobOf(method, parts, random);
      std::map<int, std::map<int, KvRoute>> by_piece;  // and place
      for (int place = 0; place < places; ++place) {
        for (const KvRoute& route : RoutesOf(job, place, kFirst, kChunk)) {
          EXPECT_TRUE(by_piece[route.number].emplace(place, route).second);
        }
      }
      int tokens = 0;
      for (const auto& [number, routes] : by_piece) {
        SCOPED_TRACE(testing::Message()
                     << RankMethodName(method) << " of " << places << ", piece " << number);
        int at = -1;
        for (const auto& [place, route] : routes) {
          if (route.from < 0) at = place;
        }
        ASSERT_GE(at, 0) << "nobody computes it";
        tokens += routes.at(at).piece.end - routes.at(at).piece.begin;
        size_t here = 1;
        const size_t needed = method == RankMethod::kChain ? places - at : places;
        while (routes.at(at).to >= 0) {
          const int next = routes.at(at).to - kFirst;
          EXPECT_EQ(next, (at + 1) % places) << "from neighbour to neighbour";
          ASSERT_TRUE(routes.contains(next));
          EXPECT_EQ(routes.at(next).from, kFirst + at);
          EXPECT_EQ(routes.at(next).piece, routes.at(at).piece);
          at = next;
          ASSERT_LE(++here, needed) << "it goes on for ever";
        }
        EXPECT_EQ(here, needed);
        EXPECT_EQ(routes.size(), needed);
      }
      EXPECT_EQ(tokens, job.partition.tokens());
    }
  }
}

// What a rank sends to the next one, that one expects in this order.
TEST(RoutesTest, PiecesComeInTheOrderInWhichTheyAreSent) {
  std::mt19937 random(3);
  for (const RankMethod method : {RankMethod::kChain, RankMethod::kTsp, RankMethod::kZigzag}) {
    for (int places = 2; places <= 5; ++places) {
      const RankJob job =
          JobOf(method, method == RankMethod::kZigzag ? 2 * places : places, random);
      for (int place = 0; place < places; ++place) {
        std::vector<int> sent, expected;
        for (const KvRoute& route : RoutesOf(job, place, 0, 16)) {
          if (route.to >= 0) sent.push_back(route.number);
        }
        for (const KvRoute& route : RoutesOf(job, (place + 1) % places, 0, 16)) {
          if (route.from >= 0) expected.push_back(route.number);
        }
        EXPECT_EQ(sent, expected) << RankMethodName(method) << ", place " << place;
      }
    }
  }
}

// What waits for nobody is sent first, then what has the shortest way here.
TEST(RoutesTest, InAChainARanksOwnPiecesGoFirst) {
  std::mt19937 random(4);
  for (int places = 2; places <= 5; ++places) {
    const RankJob job = JobOf(RankMethod::kChain, places, random);
    for (int place = 0; place < places; ++place) {
      std::vector<int> behind;  // by how many places each piece's rank is
      for (const KvRoute& route : RoutesOf(job, place, 0, 16)) {
        const int begin = route.piece.chunk * 16 + route.piece.begin;
        int part = 0;
        while (begin >= job.partition.bounds[part + 1]) ++part;
        behind.push_back(place - part);
        EXPECT_EQ(route.from < 0, part == place);
      }
      ASSERT_FALSE(behind.empty());
      EXPECT_EQ(behind.front(), 0);
      EXPECT_TRUE(std::ranges::is_sorted(behind));
    }
  }
}

TEST(SlicesTest, DenseOnesReachToTheEndOfTheRanksPages) {
  std::mt19937 random(5);
  for (const RankMethod method : {RankMethod::kChain, RankMethod::kTsp, RankMethod::kZigzag}) {
    RankJob job = JobOf(method, 6, random);
    for (const bool dense : {false, true}) {
      job.dense = dense;
      for (int place = 0; place < job.places(); ++place) {
        const auto slices = SlicesOf(job, place, {}, nullptr);
        ASSERT_EQ(slices.size(), method == RankMethod::kZigzag ? 2u : 1u);
        for (const Slice& slice : slices) {
          EXPECT_EQ(slice.dense_keys, dense ? PagedTokens(job, place) : 0);
        }
      }
    }
  }
}

TEST(RoutesTest, NothingIsSentWithoutExchange) {
  std::mt19937 random(2);
  RankJob job = JobOf(RankMethod::kTsp, 3, random);
  job.exchange = false;
  EXPECT_TRUE(RoutesOf(job, 1, 0, 16).empty());
}

}  // namespace
}  // namespace kvcake
