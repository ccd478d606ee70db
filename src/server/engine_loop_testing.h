// Sinks for answers, as tests of the EngineLoop hand them in.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "server/engine_loop.h"

namespace kvcake::testing_util {

// What one request was told. Checks the order: accepted, tokens, done once.
class Record : public AnswerSink {
 public:
  explicit Record(int tokens_max = 1 << 20) : tokens_max_(tokens_max) {}
  void OnAccepted() override {
    EXPECT_FALSE(accepted || done);
    accepted = true;
  }
  bool OnToken(const TokenEvent& event) override {
    EXPECT_TRUE(accepted);
    EXPECT_FALSE(done);
    tokens.push_back(event.token);
    return static_cast<int>(tokens.size()) < tokens_max_;
  }
  void OnDone(Result<Completion> completion) override {
    EXPECT_FALSE(done);
    result = std::move(completion);
    done = true;
  }

  std::atomic<bool> accepted{false};
  std::atomic<bool> done{false};
  std::vector<int32_t> tokens;
  Result<Completion> result = Completion{};

 private:
  const int tokens_max_;
};

// Keeps the engine thread until it is let go.
class HeldRecord : public Record {
 public:
  void OnAccepted() override {
    Record::OnAccepted();
    let_go.get_future().wait();
  }
  std::promise<void> let_go;
};

// Runs what it is given when its first token comes.
class FirstTokenRecord : public Record {
 public:
  explicit FirstTokenRecord(std::function<void()> first) : first_(std::move(first)) {}
  bool OnToken(const TokenEvent& event) override {
    if (tokens.empty()) first_();
    return Record::OnToken(event);
  }

 private:
  const std::function<void()> first_;
};

}  // namespace kvcake::testing_util
