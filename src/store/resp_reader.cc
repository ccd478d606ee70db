#include "store/resp_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/printable.h"

namespace kvcake {
namespace {

using Kind = RespReply::Kind;

// An integer, and nothing else.
Result<int64_t> ReadInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(ErrorCode::kCorrupt, "a Redis server sent \"{}\" for a number",
                PrintableAscii(text.substr(0, 40)));
  }
  return value;
}

}  // namespace

std::string_view RespReply::ErrorWord() const {
  if (kind != Kind::kError) return {};
  return std::string_view(text).substr(0, text.find(' '));
}

std::span<std::byte> RespReader::Prepare() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (state_ == State::kLanding && begin_ == end_) return landing_;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), &buffer_[begin_], end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return std::span(buffer_).subspan(end_);
}

Status RespReader::Commit(size_t bytes) {
  if (state_ == State::kLanding && begin_ == end_) {
    CHECK(bytes <= landing_.size());
    landing_ = landing_.subspan(bytes);
    left_ -= bytes;
    if (left_ == 0) state_ = State::kBulkEnd;
    return {};
  }
  CHECK(bytes <= buffer_.size() - end_);
  end_ += bytes;
  while (begin_ < end_) {
    ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) break;
  }
  return {};
}

Result<bool> RespReader::Step() {
  if (state_ == State::kLine) return ReadLine();
  if (state_ == State::kBulkEnd) {
    if (Buffered().size() < 2) return false;
    if (buffer_[begin_] != std::byte{'\r'} || buffer_[begin_ + 1] != std::byte{'\n'}) {
      return Fail(ErrorCode::kCorrupt, "a Redis server sent more than it said");
    }
    begin_ += 2;
    state_ = State::kLine;
    Finish(std::exchange(bulk_, {}));
    return true;
  }
  const std::span<std::byte> some = Buffered().first(std::min<uint64_t>(left_, Buffered().size()));
  if (state_ == State::kLanding) {
    std::memcpy(landing_.data(), some.data(), some.size());
    landing_ = landing_.subspan(some.size());
  } else if (state_ == State::kText) {
    bulk_.text.append(reinterpret_cast<const char*>(some.data()), some.size());
  }
  begin_ += some.size();
  left_ -= some.size();
  if (left_ == 0) state_ = State::kBulkEnd;
  return true;
}

Result<bool> RespReader::ReadLine() {
  const std::span<std::byte> bytes = Buffered();
  const auto end = std::find(bytes.begin(), bytes.end(), std::byte{'\n'});
  if (end == bytes.end()) {
    if (bytes.size() < kBufferBytes) return false;
    return Fail(ErrorCode::kCorrupt, "a Redis server sent a line of over {} bytes", kBufferBytes);
  }
  const size_t length = end - bytes.begin();
  if (length < 2 || bytes[length - 1] != std::byte{'\r'}) {
    return Fail(ErrorCode::kCorrupt, "what answers is no Redis server");
  }
  const std::string line(reinterpret_cast<const char*>(bytes.data()), length - 1);
  begin_ += length + 1;
  RETURN_IF_ERROR(ReadHeader(line));
  return true;
}

Status RespReader::ReadHeader(std::string_view line) {
  const std::string_view rest = line.substr(1);
  if (line[0] == '+' || line[0] == '-') {
    RETURN_IF_ERROR(CheckText(rest.size()));
    Finish({.kind = line[0] == '+' ? Kind::kText : Kind::kError, .text = std::string(rest)});
    return {};
  }
  if (line[0] != ':' && line[0] != '$' && line[0] != '*') {
    return Fail(ErrorCode::kCorrupt, "what answers is no Redis server: \"{}\"",
                PrintableAscii(line.substr(0, 40)));
  }
  ASSIGN_OR_RETURN(const int64_t number, ReadInteger(rest));
  if (line[0] == '$') return BeginBulk(number);
  if (line[0] == '*') return BeginArray(number);
  Finish({.kind = Kind::kInteger, .integer = number});
  return {};
}

Status RespReader::BeginBulk(int64_t bytes) {
  if (bytes == -1) {
    Finish({});
    return {};
  }
  constexpr int64_t kBytesMax = int64_t{1} << 40;
  if (bytes < 0 || bytes > kBytesMax) {
    return Fail(ErrorCode::kCorrupt, "a Redis server sent a value of {} bytes", bytes);
  }
  bulk_ = {.kind = Kind::kBulk, .bulk_bytes = static_cast<uint64_t>(bytes)};
  left_ = bytes;
  landing_ = open_.empty() ? sink_.LandingFor(left_) : std::span<std::byte>();
  if (landing_.empty()) {
    RETURN_IF_ERROR(CheckText(left_));
    state_ = State::kText;
  } else {
    bulk_.landed = landing_.size() == left_;
    state_ = bulk_.landed ? State::kLanding : State::kSkipped;
  }
  if (left_ == 0) state_ = State::kBulkEnd;
  return {};
}

Status RespReader::BeginArray(int64_t items) {
  if (items == -1) {
    Finish({});
    return {};
  }
  if (items < 0 || static_cast<uint64_t>(items) > limits_.items - items_ ||
      open_.size() >= limits_.depth) {
    return Fail(ErrorCode::kCorrupt, "a Redis server sent an array of {} in {}: too much", items,
                open_.size());
  }
  items_ += items;
  RespReply array{.kind = Kind::kArray};
  if (items == 0) {
    Finish(std::move(array));
  } else {
    open_.push_back({std::move(array), static_cast<uint64_t>(items)});
  }
  return {};
}

Status RespReader::CheckText(uint64_t bytes) {
  if (bytes > limits_.text_bytes - text_bytes_) {
    return Fail(ErrorCode::kCorrupt, "a Redis server sent a reply of over {} bytes",
                limits_.text_bytes);
  }
  text_bytes_ += bytes;
  return {};
}

// Adds a reply to the array that it is an item of, and that to its own, as far as they are full.
void RespReader::Finish(RespReply reply) {
  while (!open_.empty()) {
    Open& array = open_.back();
    array.reply.items.push_back(std::move(reply));
    if (--array.left > 0) return;
    reply = std::move(array.reply);
    open_.pop_back();
  }
  text_bytes_ = items_ = 0;
  sink_.OnReply(std::move(reply));
}

}  // namespace kvcake
