#include "server/unsupported_fields.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvcake {
namespace {

using nlohmann::json;

// The field that is refused; empty: none is.
std::string Refused(Endpoint endpoint, const json& request) {
  RequestFields fields(JsonField(request, ""));
  RefuseUnsupported(endpoint, &fields);
  return fields.error() ? fields.error()->param : "";
}

// A server that ignored one would answer something else than was asked for.
TEST(UnsupportedFieldsTest, EachIsRefusedByNameWhereItAsksForSomething) {
  const std::vector<std::string> of_answers = {"best_of",
                                               "use_beam_search",
                                               "length_penalty",
                                               "logits_processors",
                                               "bad_words",
                                               "allowed_token_ids",
                                               "include_stop_str_in_output",
                                               "truncate_prompt_tokens",
                                               "prompt_logprobs",
                                               "logprob_token_ids",
                                               "prompt_embeds",
                                               "response_format",
                                               "structured_outputs",
                                               "structural_tag",
                                               "guided_json",
                                               "guided_regex",
                                               "guided_choice",
                                               "guided_grammar",
                                               "guided_decoding_backend",
                                               "guided_whitespace_pattern",
                                               "return_tokens_as_token_ids",
                                               "return_token_ids",
                                               "return_prompt_text",
                                               "priority",
                                               "request_id",
                                               "kv_transfer_params",
                                               "ec_transfer_params",
                                               "vllm_xargs",
                                               "repetition_detection",
                                               "thinking_token_budget",
                                               "watermarking"};
  for (const std::string& name : of_answers) {
    EXPECT_EQ(Refused(Endpoint::kCompletion, {{name, {7}}}), name);
    EXPECT_EQ(Refused(Endpoint::kChat, {{name, {7}}}), name);
  }
  EXPECT_EQ(Refused(Endpoint::kCompletion, {{"suffix", "x"}}), "suffix");
  for (const std::string name :
       {"functions", "function_call", "audio", "modalities", "prediction", "web_search_options",
        "verbosity", "store", "chat_template", "media_io_kwargs", "mm_processor_kwargs", "echo"}) {
    EXPECT_EQ(Refused(Endpoint::kChat, {{name, {7}}}), name);
  }
  for (const std::string name : {"return_token_strs", "chat_template", "mm_processor_kwargs"}) {
    EXPECT_EQ(Refused(Endpoint::kTokenize, {{name, true}}), name);
  }
  EXPECT_EQ(Refused(Endpoint::kChat, {{"spaces_between_special_tokens", {7}}}),
            "spaces_between_special_tokens");
}

TEST(UnsupportedFieldsTest, ValuesThatAskForNothingAreTaken) {
  for (const json& nothing : {json(), json(false), json(""), json::array(), json::object()}) {
    EXPECT_EQ(Refused(Endpoint::kCompletion, {{"guided_json", nothing}}), "") << nothing;
  }
  EXPECT_EQ(Refused(Endpoint::kChat, {{"best_of", 1},
                                      {"length_penalty", 1.0},
                                      {"priority", 0},
                                      {"thinking_token_budget", -1},
                                      {"spaces_between_special_tokens", true},
                                      {"response_format", {{"type", "text"}}},
                                      {"function_call", "none"},
                                      {"modalities", {"text"}}}),
            "");
}

}  // namespace
}  // namespace kvcake
