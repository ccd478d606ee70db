// What every Comm promises, as programs that each rank runs: in threads of one process, or in
// processes of their own (tests/mpi_comm_test.cc). Between 2 and 4 ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/comm.h"
#include "comm/wait.h"

namespace kvcake::testing_util {

using Bytes = std::vector<std::byte>;

inline Bytes Pattern(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

inline TimePoint Patience() { return Clock::Real().Now() + Seconds(120); }

inline Status SendAndWait(Comm& comm, int to, int tag, std::span<const std::byte> data) {
  TransferWait wait;
  comm.Send(to, tag, data, wait.Add(to));
  return wait.Wait(Patience(), "send");
}

inline Status ReceiveAndWait(Comm& comm, int from, int tag, std::span<std::byte> into) {
  TransferWait wait;
  comm.Receive(from, tag, into, wait.Add(from));
  return wait.Wait(Patience(), "receive");
}

inline void ExpectOk(const Status& status) {
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
}

inline void ExpectCode(const Status& status, ErrorCode code) {
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, code) << status.error().message;
}

// Every rank to every other one: two tags, of which the receiver wants the later one first.
inline void KeepsTheOrderWithinATag(Comm& comm) {
  constexpr int kMessages = 50;
  TransferWait sent;
  std::deque<Bytes> messages;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int tag : {7, 8}) {
      for (int i = 0; i < kMessages; ++i) {
        messages.push_back(Pattern(1000 * comm.rank() + 100 * tag + i, 100));
        comm.Send(peer, tag, messages.back(), sent.Add(peer));
      }
    }
  }
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int tag : {8, 7}) {
      for (int i = 0; i < kMessages; ++i) {
        Bytes into(100);
        ExpectOk(ReceiveAndWait(comm, peer, tag, into));
        ASSERT_EQ(into, Pattern(1000 * peer + 100 * tag + i, 100)) << tag << " " << i;
      }
    }
  }
  ExpectOk(sent.Wait(Patience(), "sends"));
}

inline void ReceivesMayComeBeforeOrAfter(Comm& comm) {
  if (comm.rank() > 1) return;
  const Bytes message = Pattern(1, 3000), note(1);
  if (comm.rank() == 0) {
    Bytes ready(1);
    ExpectOk(ReceiveAndWait(comm, 1, 2, ready));
    ExpectOk(SendAndWait(comm, 1, 1, message));
    TransferWait sent;
    comm.Send(1, 3, message, sent.Add(1));
    comm.Send(1, 4, note, sent.Add(1));
    ExpectOk(sent.Wait(Patience(), "sends"));
  } else {
    Bytes before(message.size()), after(message.size()), noted(1);
    TransferWait received;
    comm.Receive(0, 1, before, received.Add(0));
    ExpectOk(SendAndWait(comm, 0, 2, note));
    ExpectOk(received.Wait(Patience(), "receive"));
    ExpectOk(ReceiveAndWait(comm, 0, 4, noted));
    ExpectOk(ReceiveAndWait(comm, 0, 3, after));
    EXPECT_EQ(before, message);
    EXPECT_EQ(after, message);
  }
}

// Around a ring, all at once; and what is sent is counted.
inline void CarriesEverySize(Comm& comm) {
  const size_t sizes[] = {0, 1, 4095, 64 << 10, (64 << 10) + 1, 8 << 20};
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const uint64_t before = comm.sent_bytes();
  uint64_t total = 0;
  TransferWait all;
  std::deque<Bytes> out, in;
  for (size_t size : sizes) {
    out.push_back(Pattern(size + comm.rank(), size));
    in.emplace_back(size);
    total += size;
    comm.Receive(previous, static_cast<int>(size), in.back(), all.Add(previous));
    comm.Send(next, static_cast<int>(size), out.back(), all.Add(next));
  }
  ExpectOk(all.Wait(Patience(), "all sizes"));
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(in[i] == Pattern(sizes[i] + previous, sizes[i])) << sizes[i];
  }
  EXPECT_EQ(comm.sent_bytes() - before, total);
}

// A message of another size is used up, and those after it come as if nothing had been.
inline void AnotherSizeIsCorrupt(Comm& comm) {
  struct Case {
    size_t sent, expected;
  };
  const Case cases[] = {{100, 50},      {50, 100},      {0, 1},         {1, 0},
                        {70000, 60000}, {60000, 70000}, {5 << 20, 100}, {300, 300}};
  if (comm.rank() == 0) {
    TransferWait sent;
    std::deque<Bytes> messages;
    for (const Case& c : cases) {
      messages.push_back(Pattern(c.sent, c.sent));
      comm.Send(1, 5, messages.back(), sent.Add(1));
    }
    ExpectOk(sent.Wait(Patience(), "sends"));
  } else if (comm.rank() == 1) {
    for (const Case& c : cases) {
      Bytes into(c.expected);
      const Status status = ReceiveAndWait(comm, 0, 5, into);
      if (c.sent == c.expected) {
        ExpectOk(status);
        EXPECT_EQ(into, Pattern(c.sent, c.sent));
      } else {
        ExpectCode(status, ErrorCode::kCorrupt);
      }
    }
  }
}

// What rank `from` sends to `to`: the sizes of the messages of each tag.
inline std::map<int, std::vector<size_t>> RandomPlan(int from, int to) {
  std::mt19937_64 random(100 * from + to);
  std::map<int, std::vector<size_t>> plan;
  for (int i = 0; i < 120; ++i) {
    const size_t size_max = random() % 4 == 0 ? 100'000 : 2000;
    plan[static_cast<int>(random() % 12)].push_back(random() % size_max);
  }
  return plan;
}

// The tags of a plan that one of two threads has, each as often as it has messages, shuffled.
inline std::vector<int> ShuffledTags(const std::map<int, std::vector<size_t>>& plan, int half,
                                     uint64_t seed) {
  std::vector<int> tags;
  for (const auto& [tag, sizes] : plan) {
    if (tag % 2 == half) tags.insert(tags.end(), sizes.size(), tag);
  }
  std::shuffle(tags.begin(), tags.end(), std::mt19937_64(seed));
  return tags;
}

inline uint64_t SeedOf(int from, int to, int tag, size_t index) {
  return ((from * 10 + to) * 100 + tag) * 1000 + index;
}

// Between all pairs, two threads for each direction at each end, tags in an order of their own.
inline void ManyTagsFromManyThreads(Comm& comm) {
  TransferWait all;
  struct Lane {
    int peer, half;
    std::deque<Bytes> out, in;
    std::vector<std::pair<int, size_t>> received;  // tag and index, as `in`
  };
  std::deque<Lane> lanes;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    for (int half : {0, 1}) lanes.push_back({peer, half, {}, {}, {}});
  }
  std::vector<std::thread> threads;
  for (Lane& lane : lanes) {
    threads.emplace_back([&comm, &all, &lane] {
      const auto plan = RandomPlan(comm.rank(), lane.peer);
      std::map<int, size_t> next;
      for (int tag : ShuffledTags(plan, lane.half, 1)) {
        const size_t i = next[tag]++;
        lane.out.push_back(Pattern(SeedOf(comm.rank(), lane.peer, tag, i), plan.at(tag)[i]));
        comm.Send(lane.peer, tag, lane.out.back(), all.Add(lane.peer));
      }
    });
    threads.emplace_back([&comm, &all, &lane] {
      const auto plan = RandomPlan(lane.peer, comm.rank());
      std::map<int, size_t> next;
      for (int tag : ShuffledTags(plan, lane.half, 2)) {
        const size_t i = next[tag]++;
        lane.in.emplace_back(plan.at(tag)[i]);
        lane.received.emplace_back(tag, i);
        comm.Receive(lane.peer, tag, lane.in.back(), all.Add(lane.peer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectOk(all.Wait(Patience(), "all messages"));
  for (const Lane& lane : lanes) {
    for (size_t i = 0; i < lane.in.size(); ++i) {
      const auto& [tag, index] = lane.received[i];
      const Bytes expected = Pattern(SeedOf(lane.peer, comm.rank(), tag, index), lane.in[i].size());
      ASSERT_TRUE(lane.in[i] == expected) << lane.peer << " " << tag << " " << index;
    }
  }
}

// A ball goes round and round the ring, passed on by the `done` that caught it.
inline void CallbacksMaySendAndReceive(Comm& comm) {
  constexpr int kRounds = 100;
  struct Ball {
    Comm& comm;
    TransferWait wait = {};
    Comm::Done finished = wait.Add(next());
    Bytes value = Bytes(8);
    int rounds = 0;

    int next() const { return (comm.rank() + 1) % comm.size(); }
    int previous() const { return (comm.rank() + comm.size() - 1) % comm.size(); }
    // The ball may be gone before `finished` has returned: it is called on a copy.
    void Catch() {
      comm.Receive(previous(), 6, value, [this, end = finished](Status status) {
        if (!status || (comm.rank() == 0 && ++rounds == kRounds)) return end(status);
        Throw();
      });
    }
    void Throw() {
      value[0] = static_cast<std::byte>(static_cast<int>(value[0]) + 1);
      comm.Send(next(), 6, value, [this, end = finished](Status status) {
        if (!status || (comm.rank() != 0 && ++rounds == kRounds)) return end(status);
        Catch();
      });
    }
  };
  Ball ball{.comm = comm};
  if (comm.rank() == 0) {
    ball.Throw();
  } else {
    ball.Catch();
  }
  ExpectOk(ball.wait.Wait(Patience(), "the ball"));
  if (comm.rank() == 0) {
    EXPECT_EQ(ball.value[0], static_cast<std::byte>(kRounds * comm.size()));
  }
}

inline void RefusesPeersThatAreNone(Comm& comm) {
  Bytes bytes(1);
  for (int peer : {-1, comm.rank(), comm.size()}) {
    ExpectCode(SendAndWait(comm, peer, 1, bytes), ErrorCode::kInvalidArgument);
    ExpectCode(ReceiveAndWait(comm, peer, 1, bytes), ErrorCode::kInvalidArgument);
  }
  const int peer = (comm.rank() + 1) % comm.size();
  ExpectCode(SendAndWait(comm, peer, -1, bytes), ErrorCode::kInvalidArgument);
}

struct Scenario {
  const char* name;
  void (*run)(Comm&);
};

inline constexpr std::array kScenarios = {
    Scenario{"KeepsTheOrderWithinATag", KeepsTheOrderWithinATag},
    Scenario{"ReceivesMayComeBeforeOrAfter", ReceivesMayComeBeforeOrAfter},
    Scenario{"CarriesEverySize", CarriesEverySize},
    Scenario{"AnotherSizeIsCorrupt", AnotherSizeIsCorrupt},
    Scenario{"ManyTagsFromManyThreads", ManyTagsFromManyThreads},
    Scenario{"CallbacksMaySendAndReceive", CallbacksMaySendAndReceive},
    Scenario{"RefusesPeersThatAreNone", RefusesPeersThatAreNone},
};

}  // namespace kvcake::testing_util
