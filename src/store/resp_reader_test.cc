#include "store/resp_reader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace kvcake {
namespace {

using testing::HasSubstr;
using Kind = RespReply::Kind;

// Keeps the replies; bulks of as many bytes as its landing land there.
struct Replies : RespSink {
  std::span<std::byte> LandingFor(uint64_t bytes) override {
    asked.push_back(bytes);
    return landing;
  }
  void OnReply(RespReply reply) override { all.push_back(std::move(reply)); }

  std::vector<std::byte> landing;
  std::vector<uint64_t> asked;
  std::vector<RespReply> all;
};

// Feeds the reader `text` in pieces of at most `piece()` bytes.
template <typename Piece>
Status Feed(RespReader& reader, std::string_view text, Piece piece) {
  while (!text.empty()) {
    const std::span<std::byte> into = reader.Prepare();
    EXPECT_FALSE(into.empty());
    const size_t bytes = std::min({into.size(), text.size(), static_cast<size_t>(piece())});
    std::memcpy(into.data(), text.data(), bytes);
    RETURN_IF_ERROR(reader.Commit(bytes));
    text.remove_prefix(bytes);
  }
  return {};
}

Status FeedAll(RespReader& reader, std::string_view text) {
  return Feed(reader, text, [&] { return text.size(); });
}

std::string Show(const RespReply& reply) {
  std::string shown;
  switch (reply.kind) {
    case Kind::kText:
      return "+" + reply.text;
    case Kind::kError:
      return "-" + reply.text;
    case Kind::kInteger:
      return ":" + std::to_string(reply.integer);
    case Kind::kBulk:
      return fmt::format("${}{}{}", reply.bulk_bytes, reply.landed ? " landed" : " ", reply.text);
    case Kind::kNil:
      return "nil";
    case Kind::kArray:
      for (const RespReply& item : reply.items) shown += Show(item) + ", ";
      return "[" + shown + "]";
  }
  return "?";
}

std::string ShowAll(const Replies& replies) {
  std::string shown;
  for (const RespReply& reply : replies.all) shown += Show(reply) + "\n";
  return shown;
}

TEST(RespReaderTest, RepliesOfEveryKind) {
  Replies replies;
  RespReader reader(replies);
  ASSERT_TRUE(FeedAll(reader,
                      "+OK\r\n-ERR no\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n$0\r\n\r\n*-1\r\n*0\r\n"
                      "*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+y\r\n"));
  EXPECT_EQ(ShowAll(replies),
            "+OK\n-ERR no\n:-7\n$5 a\r\nbc\nnil\n$0 \nnil\n[]\n[:1, [$1 x, nil, ], +y, ]\n");
  EXPECT_EQ(replies.all[1].ErrorWord(), "ERR");
  EXPECT_EQ(replies.all[0].ErrorWord(), "");
  EXPECT_EQ(replies.asked, (std::vector<uint64_t>{5, 0})) << "items of arrays are text";
}

std::string Bulk(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 256);
  return "$" + std::to_string(bytes) + "\r\n" + text + "\r\n";
}

TEST(RespReaderTest, ABulkLandsInHoweverManyPiecesItComes) {
  std::mt19937 random(3);
  const std::string bulk = Bulk(100'000);
  for (int run = 0; run < 50; ++run) {
    Replies replies;
    replies.landing.resize(100'000);
    RespReader reader(replies);
    const size_t most = size_t{1} << (random() % 18);
    ASSERT_TRUE(Feed(reader, "+first\r\n" + bulk + ":2\r\n", [&] { return 1 + random() % most; }));
    EXPECT_EQ(ShowAll(replies), "+first\n$100000 landed\n:2\n");
    EXPECT_EQ(std::memcmp(replies.landing.data(), &bulk[9], 100'000), 0);
  }
}

TEST(RespReaderTest, MostOfALargeBulkIsReadIntoItsLandingDirectly) {
  Replies replies;
  replies.landing.resize(100'000);
  RespReader reader(replies);
  ASSERT_TRUE(FeedAll(reader, "$100000\r\n"));
  EXPECT_EQ(reader.Prepare().data(), replies.landing.data());
  EXPECT_EQ(reader.Prepare().size(), 100'000u);
  ASSERT_TRUE(reader.Commit(60'000));
  EXPECT_EQ(reader.Prepare().data(), replies.landing.data() + 60'000);
}

TEST(RespReaderTest, ABulkOfAnotherLengthIsSkipped) {
  for (const size_t bytes : {999u, 1001u, 50'000u}) {
    Replies replies;
    replies.landing.resize(1000, std::byte{7});
    RespReader reader(replies);
    ASSERT_TRUE(FeedAll(reader, Bulk(bytes) + ":2\r\n"));
    EXPECT_EQ(ShowAll(replies), fmt::format("${} \n:2\n", bytes));
    EXPECT_EQ(replies.landing, std::vector<std::byte>(1000, std::byte{7}));
  }
}

TEST(RespReaderTest, WhatIsNoRespIsCorrupt) {
  for (const char* text : {"HTTP/1.1 400 Bad Request\r\n", "\r\n", "+a\n", "\n", ":\r\n", ":1x\r\n",
                           ":+1\r\n", ":99999999999999999999\r\n", "$-2\r\n", "$9999999999999\r\n",
                           "*-2\r\n", "%1\r\n", "$1\r\nabc", "$1\r\na\nb", "*1\r\n=x\r\n"}) {
    Replies replies;
    RespReader reader(replies);
    const Status fed = FeedAll(reader, text);
    ASSERT_FALSE(fed) << text;
    EXPECT_EQ(fed.error().code, ErrorCode::kCorrupt) << text;
    EXPECT_THAT(fed.error().message, HasSubstr("Redis server"));
    EXPECT_TRUE(replies.all.empty());
  }
}

TEST(RespReaderTest, RepliesAreBounded) {
  const RespLimits limits = {.text_bytes = 100, .items = 10, .depth = 2};
  const auto feed = [&](const std::string& text) {
    Replies replies;
    RespReader reader(replies, limits);
    return FeedAll(reader, text).has_value();
  };
  EXPECT_TRUE(feed("$100\r\n"));
  EXPECT_FALSE(feed("$101\r\n"));
  EXPECT_FALSE(feed("*2\r\n$60\r\n" + std::string(60, 'x') + "\r\n$60\r\n"));
  EXPECT_TRUE(feed("$60\r\n" + std::string(60, 'x') + "\r\n$60\r\n")) << "of one reply";
  EXPECT_TRUE(feed("*10\r\n"));
  EXPECT_FALSE(feed("*11\r\n"));
  EXPECT_FALSE(feed("*6\r\n*5\r\n"));
  EXPECT_TRUE(feed("*1\r\n*1\r\n"));
  EXPECT_FALSE(feed("*1\r\n*1\r\n*1\r\n"));
  EXPECT_FALSE(feed("+" + std::string(101, 'x') + "\r\n"));
  EXPECT_FALSE(feed(std::string(20'000, '+')));
}

}  // namespace
}  // namespace kvcake
