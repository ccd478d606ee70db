// Any bytes as tokenizer.json: refused, or a tokenizer that encodes and decodes.
#include "base/check.h"
#include "model/fuzz_dir.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer = kvcake::Tokenizer::Load(kvcake::FuzzDir("tokenizer.json", data, size));
  if (!tokenizer) return 0;
  const auto ids = tokenizer->Encode("The quick brown fox, 12345 \xf0\x9f\x8d\xb0 \xff.\n");
  if (ids) {
    for (int32_t id : *ids) CHECK(id >= 0 && id < tokenizer->vocab_size());
    tokenizer->Decode(*ids);
  }
  return 0;
}
