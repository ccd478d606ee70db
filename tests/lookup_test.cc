// The demo model reads its answers from the KV cache: a wrong chunk gives a wrong answer.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "base/temp_dir_testing.h"
#include "bench/lookups.h"

namespace kvcake::bench {
namespace {

constexpr const char* kModel = KVCAKE_SOURCE_DIR "/models/demo";

std::string HeldOutText() {
  std::ostringstream text;
  text << std::ifstream(std::string(kModel) + "/held_out/fonts-conf.txt").rdbuf();
  return text.str();
}

class LookupTest : public testing::Test {
 protected:
  void SetUp() override {
    runtime_ = Runtime::Create({.model_dir = kModel, .stores = {{.dir = store_}}}).value();
  }

  std::string Answer(const std::vector<int32_t>& document, const std::string& name, bool store) {
    runtime_->pool().DropCached();
    const Completion done =
        runtime_->engine()
            .Answer({.prompt = Ask(runtime_->tokenizer(), document, name).value(),
                     .max_tokens = 6,
                     .store = store,
                     .policy = Policy::kLoad})
            .value();
    runtime_->engine().FlushStore();
    loaded_ = done.report.loaded();
    return AnswerIn(runtime_->tokenizer().Decode(done.tokens));
  }
  std::vector<ChunkKey> Keys(const std::vector<int32_t>& document) const {
    return ChunkKeys(runtime_->model().identity().Root(), document,
                     runtime_->options().chunk_tokens);
  }

  // Keeps, under `document`'s key of this chunk, what `other` has there.
  void SwapChunk(const std::vector<int32_t>& document, const std::vector<int32_t>& other,
                 size_t chunk) {
    const std::vector<ChunkKey> keys = Keys(document), others = Keys(other);
    PagePool& pool = runtime_->pool();
    const std::optional<PageHandle> page = pool.Lookup(others[chunk]);
    ASSERT_TRUE(page);
    ASSERT_TRUE(runtime_->stores()[0]->Evict(keys[chunk]));
    ASSERT_TRUE(runtime_->stores()[0]->Put(
        {.key = keys[chunk],
         .parent = chunk == 0 ? runtime_->model().identity().Root() : keys[chunk - 1],
         .numeric_path = runtime_->model().numeric_path(),
         .page = {pool.Data(page->id()), pool.layout().page_bytes()}}));
  }

  const TempDir temp_;
  const std::string store_ = temp_.path();
  std::unique_ptr<Runtime> runtime_;
  int loaded_ = 0;
};

// The documents differ in the code alone, so every chunk but the one with the code says the same.
TEST_F(LookupTest, TheAnswerComesFromTheChunkThatHoldsTheFact) {
  const std::string text = HeldOutText();
  const std::vector<std::string> names = {"hidden village", "golden tower", "ancient lantern",
                                          "muddy forest", "windy fox"};
  std::mt19937 rng(3);
  for (size_t i = 0; i < names.size(); ++i) {
    SCOPED_TRACE(names[i]);
    const std::string code = std::to_string(1000 + rng() % 4500);
    const std::string other_code = std::to_string(5500 + rng() % 4500);
    std::vector<Fact> facts = {{names[i], code, 0.15 + 0.15 * i},
                               {names[(i + 1) % names.size()], "7777", 0.9 - 0.15 * i}};
    const auto document = PlantFacts(runtime_->tokenizer(), text, facts, 2048).value();
    facts[0].code = other_code;
    const auto other = PlantFacts(runtime_->tokenizer(), text, facts, 2048).value();

    EXPECT_EQ(Answer(document, names[i], /*store=*/true), code);
    EXPECT_EQ(Answer(document, names[i], /*store=*/false), code);
    EXPECT_EQ(loaded_, 2048);
    // Last, so that its pages are in memory.
    EXPECT_EQ(Answer(other, names[i], /*store=*/true), other_code);

    const auto differs = std::mismatch(document.begin(), document.end(), other.begin());
    ASSERT_NE(differs.first, document.end());
    const size_t chunk = (differs.first - document.begin()) / runtime_->options().chunk_tokens;
    ASSERT_EQ(Keys(document)[0], Keys(other)[0]) << "the text before the fact is the same";
    SwapChunk(document, other, chunk);
    EXPECT_EQ(Answer(document, names[i], /*store=*/false), other_code);
    EXPECT_EQ(loaded_, 2048) << "the swapped chunk is as valid as any";
  }
}

// What no lookup can answer is not answered by chance.
TEST_F(LookupTest, WithoutItsChunkTheFactIsNotKnown) {
  const std::string text = HeldOutText();
  const std::vector<Fact> facts = {{"golden tower", "6048", 0.5}};
  const auto document = PlantFacts(runtime_->tokenizer(), text, facts, 2048).value();
  const auto empty = PlantFacts(runtime_->tokenizer(), text, {{"windy fox", "1350", 0.5}}, 2048);
  EXPECT_EQ(Answer(document, "golden tower", /*store=*/true), "6048");
  EXPECT_NE(Answer(empty.value(), "golden tower", /*store=*/true), "6048");
  const auto differs = std::mismatch(document.begin(), document.end(), empty->begin());
  const size_t chunk = (differs.first - document.begin()) / runtime_->options().chunk_tokens;
  SwapChunk(document, *empty, chunk);
  EXPECT_NE(Answer(document, "golden tower", /*store=*/false), "6048");
  EXPECT_EQ(loaded_, 2048);
}

}  // namespace
}  // namespace kvcake::bench
