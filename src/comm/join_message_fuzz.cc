// Any bytes as what a leader says to a worker and the reverse: with a key nothing of it is
// believed, and no line is taken for what it is not.
#include <string_view>

#include "base/check.h"
#include "comm/join_message.h"

using namespace kvcake;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ClusterKey key = *ClusterKey::Of("a secret of this cluster's", "fuzz");
  static const ClusterKey none;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  WorkerTalk worker(key), open_worker(none);
  LeaderTalk leader(key);
  leader.Greeting();
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    worker.HearGreeting(line);
    open_worker.HearGreeting(line);
    leader.HearGreeting(line);
    for (WorkerTalk* talk : {&worker, &open_worker}) {
      bool proved = false;
      const auto call = talk->HearCall(line, &proved);
      CHECK(!proved || (call && talk == &open_worker));
      CHECK(!talk->HearGo(line) || talk == &open_worker);
      if (!call) continue;
      CHECK(call->rank >= 0 && call->rank < static_cast<int>(call->roster.addresses.size()));
      CHECK(call->roster.addresses.size() < kRanksMax);
      for (const std::string& address : call->roster.addresses) CHECK(!address.empty());
      CHECK(call->roster.digest() != Digest{});
    }
    CHECK(leader.HearAnswer(line) != LeaderTalk::Answer::kReady);
    for (const char c : leader.why()) CHECK(c >= ' ' && c <= '~');
  }
  return 0;
}
