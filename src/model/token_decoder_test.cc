#include "model/token_decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;

Result<TokenDecoder> Read(const std::vector<json>& steps) {
  const json decoder = {{"type", "Sequence"}, {"decoders", steps}};
  return TokenDecoder::Read(JsonField(decoder, "test"));
}
TokenDecoder Decoder(const std::vector<json>& steps) { return Read(steps).value(); }

json Strips(int start, int stop) {
  return {{"type", "Strip"}, {"content", "▁"}, {"start", start}, {"stop", stop}};
}

TEST(TokenDecoderTest, StripTakesItsCharacterFromTheEndsOfEachToken) {
  const auto text = [](int start, int stop, const char* token) {
    return Decoder({Strips(start, stop)}).Text(token, 100).value();
  };
  EXPECT_EQ(text(2, 1, "▁▁▁a▁b▁▁"), "▁a▁b▁");
  EXPECT_EQ(text(9, 9, "▁▁▁a▁b▁▁"), "a▁b");
  EXPECT_EQ(text(0, 0, "▁a▁"), "▁a▁");
  EXPECT_EQ(text(1, 1, "a"), "a");
  EXPECT_EQ(text(2, 2, "▁▁▁"), "");
}

TEST(TokenDecoderTest, AFallbackByteHasTwoHexadecimalDigits) {
  const TokenDecoder decoder = Decoder({{{"type", "ByteFallback"}}});
  EXPECT_EQ(decoder.FallbackByte("<0x0A>"), '\n');
  EXPECT_EQ(decoder.FallbackByte("<0x9f>"), '\x9f');
  EXPECT_EQ(decoder.FallbackByte("<0xFa>"), '\xfa');
  for (const char* text : {"<0x0G>", "<0xG0>", "<0x 1>", "<0x0A", "0x0A>", "<0x0AB>", "<0x0A)"}) {
    EXPECT_FALSE(decoder.FallbackByte(text)) << text;
  }
  EXPECT_FALSE(Decoder({{{"type", "Fuse"}}}).FallbackByte("<0x0A>"));
}

// Its replacement would be looked for in what the other made of it.
TEST(TokenDecoderTest, NothingOfATokenComesAfterMetaspace) {
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", " "}};
  for (const char* scheme : {"always", "never"}) {
    const json metaspace = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}};
    EXPECT_TRUE(Read({metaspace, {{"type", "Fuse"}}}));
    for (const json& later : {replace, json{{"type", "ByteFallback"}}, metaspace}) {
      EXPECT_EQ(Read({metaspace, later}).error().code, ErrorCode::kUnsupported) << later;
    }
  }
}

}  // namespace
}  // namespace kvcake
