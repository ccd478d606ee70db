// What a rank does whose leader falls silent.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/memory_comm.h"
#include "model/transformer_testing.h"
#include "runahead/chain.h"
#include "runahead/job_message.h"

namespace kvcake {
namespace {

constexpr std::byte kUntouched{0x5a};

// Looks, when it is closed, at the memory that messages are still to come into.
class LookingComm : public Comm {
 public:
  explicit LookingComm(Comm& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void Send(int to, int tag, std::span<const std::byte> data, Done done) override {
    inner_.Send(to, tag, data, std::move(done));
  }
  void Receive(int from, int tag, std::span<std::byte> into, Done done) override {
    std::ranges::fill(into, kUntouched);
    newest_ = into;
    inner_.Receive(from, tag, into, std::move(done));
  }
  void Close(Error why) override {
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    if (!is_closed_) is_there_ = std::ranges::all_of(newest_, is_untouched);
    is_closed_ = true;
    inner_.Close(std::move(why));
  }
  uint64_t sent_bytes() const override { return inner_.sent_bytes(); }
  // Whether the newest message had a place when this was closed.
  bool is_there() const { return is_there_; }

 private:
  Comm& inner_;
  std::span<std::byte> newest_;
  bool is_closed_ = false, is_there_ = false;
};

// What comes late would be written to memory that is somebody else's by then.
TEST(ChainWorkerTest, NothingCanComeAnyMoreWhenItsPlaceGoes) {
  const auto comms = NewMemoryComms(2);
  LookingComm comm(*comms[0]);
  constexpr int kTokens = 100;
  Rig rig(TinyConfig(), NumericPath::kF32, 1, 32);
  const JobHeader header =
      HeaderOf({.salt = "", .tokens = Prompt(1, kTokens), .partition = EvenPartition(kTokens, 2)});
  TransferWait sent;
  comms[1]->Send(0, 0, std::as_bytes(std::span(&header, 1)), sent.Add(0));  // and no more
  const Status ended = WorkForChain(comm, {.model = *rig.model,
                                           .pool = *rig.pages,
                                           .restore_prefix = {},
                                           .options = {.timeout = Seconds(0.05)}});
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kDeadline);
  EXPECT_TRUE(comm.is_there());
}

}  // namespace
}  // namespace kvcake
