// Any bytes as the replies of a Redis server: the same, in whatever pieces they come.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "store/resp_reader.h"

using namespace kvcake;

namespace {

struct Replies : RespSink {
  explicit Replies(size_t bytes) : landing(bytes) {}
  std::span<std::byte> LandingFor(uint64_t bytes) override {
    return std::span(landing).first(bytes % 3 == 0 ? 0 : landing.size());
  }
  void OnReply(RespReply reply) override {
    seen += std::to_string(static_cast<int>(reply.kind)) + reply.text;
    if (reply.landed) {
      seen.append(reinterpret_cast<const char*>(landing.data()), landing.size());
    }
    for (RespReply& item : reply.items) OnReply(std::move(item));
  }

  std::vector<std::byte> landing;
  std::string seen;
};

std::string Read(size_t landing, const uint8_t* data, size_t size, size_t piece) {
  Replies replies(landing);
  RespReader reader(replies, {.text_bytes = 4096, .items = 64, .depth = 4});
  while (size > 0) {
    const auto into = reader.Prepare();
    CHECK(!into.empty());
    const size_t bytes = std::min({into.size(), size, piece});
    std::memcpy(into.data(), data, bytes);
    if (!reader.Commit(bytes)) return replies.seen + " corrupt";
    data += bytes;
    size -= bytes;
  }
  return replies.seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string whole = Read(data[0], data + 2, size - 2, size);
  CHECK(Read(data[0], data + 2, size - 2, 1 + data[1] % 32) == whole);
  return 0;
}
