// Replies of a Redis server (RESP2), read as they come, with no copy of a large one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct RespReply {
  enum class Kind : uint8_t { kText, kError, kInteger, kBulk, kNil, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text = {};    // of kText, kError, and of a bulk that has no landing
  uint64_t bulk_bytes = 0;  // of a bulk, wherever it went
  bool landed = false;      // a bulk whose landing has all of it
  std::vector<RespReply> items = {};

  bool IsText(std::string_view expected) const { return kind == Kind::kText && text == expected; }
  // "MOVED" of "-MOVED 3999 127.0.0.1:6381"; empty for what is no error.
  std::string_view ErrorWord() const;
};

// Who asked, and gets the replies in the order of its questions.
class RespSink {
 public:
  virtual ~RespSink() = default;

  // Called when the reply at hand is a bulk of so many bytes. What has as many gets them; of a
  // longer or shorter one nothing is kept. Where it is empty, the bulk becomes the reply's text.
  virtual std::span<std::byte> LandingFor(uint64_t bytes) = 0;
  virtual void OnReply(RespReply reply) = 0;
};

// The most that a server may send beside bulks with a landing.
struct RespLimits {
  uint64_t text_bytes = 16 << 20;  // of one reply, with all its items
  uint64_t items = 1 << 18;        // of one reply, with those of its items
  size_t depth = 8;
};

// Reads one connection. Not thread-safe.
class RespReader {
 public:
  // `sink` outlives it.
  explicit RespReader(RespSink& sink, RespLimits limits = {}) : sink_(sink), limits_(limits) {}

  // Where the next bytes of the connection belong: the landing itself, where it is known.
  std::span<std::byte> Prepare();
  // So many bytes are there; calls the sink with what they complete. kCorrupt once they are no
  // RESP2, or too much: nothing can be read any more.
  Status Commit(size_t bytes);

 private:
  static constexpr size_t kBufferBytes = 16384;
  enum class State : uint8_t { kLine, kLanding, kText, kSkipped, kBulkEnd };
  // An array whose items are still coming.
  struct Open {
    RespReply reply;
    uint64_t left;
  };

  // Takes what it can from the buffer; false where it wants more bytes.
  Result<bool> Step();
  Result<bool> ReadLine();
  Status ReadHeader(std::string_view line);
  Status BeginBulk(int64_t bytes);
  Status BeginArray(int64_t items);
  Status CheckText(uint64_t bytes);
  void Finish(RespReply reply);
  std::span<std::byte> Buffered() { return std::span(buffer_).subspan(begin_, end_ - begin_); }

  RespSink& sink_;
  const RespLimits limits_;
  std::array<std::byte, kBufferBytes> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is buffered
  State state_ = State::kLine;
  RespReply bulk_;                // at hand
  std::span<std::byte> landing_;  // what is still to come of it
  uint64_t left_ = 0;             // to come of the bulk
  std::vector<Open> open_;
  uint64_t text_bytes_ = 0, items_ = 0;  // of the reply at hand
};

}  // namespace kvcake
