#include "server/request_preparer.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>

#include "server/demo_runtime_testing.h"

namespace kvcake {
namespace {

class RequestPreparerTest : public testing::Test {
 protected:
  PreparedRequest Prepared(const std::string& body, const std::string& tool_parser = "hermes") {
    const RequestPreparer preparer(*runtime_,
                                   ChatTemplate::FromText("{{ messages[0].content }}", {}),
                                   {.model_names = {"m"},
                                    .model_len_max = 4096,
                                    .auto_tool_choice = true,
                                    .tool_parser = tool_parser});
    auto prepared = preparer.Prepare(body, RequestPreparer::Ask::kChat, "ann");
    EXPECT_TRUE(prepared) << prepared.error().message;
    return prepared ? *std::move(prepared) : PreparedRequest();
  }

  const std::unique_ptr<Runtime> runtime_ = testing_util::DemoRuntime();
};

// The words that calls stand between are special tokens of these families' models.
TEST_F(RequestPreparerTest, CallsAreReadWithTheSpecialTokensThatTheyAreWrittenWith) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "x"}])";
  const std::string tools = chat + R"(, "tools": [{"function": {"name": "f"}}])";
  EXPECT_FALSE(Prepared(tools + "}", "hermes").asked.skip_special);
  EXPECT_FALSE(Prepared(tools + "}", "mistral").asked.skip_special);
  EXPECT_TRUE(Prepared(tools + "}", "llama3_json").asked.skip_special);
  EXPECT_TRUE(Prepared(tools + R"(, "tool_choice": "none"})", "hermes").asked.skip_special);
  EXPECT_TRUE(Prepared(chat + "}", "hermes").asked.skip_special);
}

// A model has no row for one more.
TEST_F(RequestPreparerTest, IdsEndWithTheVocabulary) {
  const RequestPreparer preparer(*runtime_, ChatTemplate::FromText("", {}),
                                 {.model_names = {"m"}, .model_len_max = 4096});
  const int vocab = runtime_->model().vocab_size();
  const auto refused = [&](int id) {
    const auto prepared = preparer.Prepare(fmt::format(R"({{"prompt": [{}]}})", id),
                                           RequestPreparer::Ask::kCompletion, "ann");
    return prepared ? "" : prepared.error().param;
  };
  EXPECT_EQ(refused(vocab - 1), "");
  EXPECT_EQ(refused(vocab), "prompt");
}

// As vLLM has it: in a row from the one that is asked for, or any.
TEST_F(RequestPreparerTest, AnswersHaveSeedsOfTheirOwn) {
  const auto seeds = [&](const char* fields) {
    std::set<uint64_t> all;
    for (int i = 0; i < 2; ++i) {
      const auto prepared = Prepared(
          fmt::format(R"({{"messages": [{{"role": "user", "content": "x"}}], "n": 3{}}})", fields));
      for (const Request& request : prepared.requests) all.insert(request.sampling.seed);
    }
    return all;
  };
  EXPECT_EQ(seeds(R"(, "seed": 7)"), (std::set<uint64_t>{7, 8, 9}));
  EXPECT_EQ(seeds("").size(), 6u);
}

}  // namespace
}  // namespace kvcake
