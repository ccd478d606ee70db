// Any bytes as tokenizer.json: refused, or a tokenizer that encodes, and that streams what it
// decodes.
#include "base/check.h"
#include "base/utf8.h"
#include "model/fuzz_dir_testing.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvcake;
  const auto tokenizer = Tokenizer::Load(FuzzDir("tokenizer.json", data, size));
  if (!tokenizer) {
    CHECK(tokenizer.error().message.find("tokenizer.json") != std::string::npos);
    return 0;
  }
  auto ids = tokenizer->Encode("  The quick brown▁fox, 12345 <s> \xf0\x9f\x8d\xb0 \xff e\u0301.\n");
  if (!ids) return 0;
  for (const int32_t id : *ids) CHECK(tokenizer->HasToken(id));
  for (size_t i = 0; i < 64 && i < size; ++i) ids->push_back(data[i] * 3 - 9);
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(*tokenizer, skip);
    std::string text;
    for (const int32_t id : *ids) {
      const std::string piece = detokenizer.Append(id);
      CHECK(IsValidUtf8(piece));
      text += piece;
    }
    text += detokenizer.Finish();
    const std::string decoded = tokenizer->Decode(*ids, skip);
    // A run of byte tokens that is no UTF-8 may differ.
    CHECK(text == decoded || decoded.find("\ufffd") != std::string::npos);
  }
  return 0;
}
