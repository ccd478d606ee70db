#include "server/generation.h"

#include <gtest/gtest.h>

#include "base/source_dir_testing.h"
#include "model/tokenizer.h"
#include "server/server_metrics.h"

namespace kvcake {
namespace {

TEST(GenerationTest, TokensAreCountedFromTheBeginning) {
  const Tokenizer tokenizer = Tokenizer::Load(SourceDir() + "/models/demo").value();
  ServerMetrics metrics("ram", {});
  Generation generation(Detokenizer(tokenizer, /*skip_special=*/true, {}), {}, metrics,
                        [](bool) {});
  generation.OnAccepted();
  EXPECT_EQ(generation.Take().generated, 0);
  for (int i = 0; i < 2; ++i) generation.OnToken({.token = 70});
  EXPECT_EQ(generation.Take().generated, 2);
  generation.OnToken({.token = 71});
  EXPECT_EQ(generation.Take().generated, 3);
  generation.OnDone(Completion{.tokens = {70, 70, 71}});
  EXPECT_EQ(generation.Take().generated, 3) << "none is new";
}

}  // namespace
}  // namespace kvcake
