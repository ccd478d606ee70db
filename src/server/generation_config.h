// generation_config.json: how a model's makers would have its tokens sampled.
#pragma once

#include <string>

#include "base/status.h"
#include "server/openai_request.h"

namespace kvcake {

// The fields that vLLM takes from DIR/generation_config.json: temperature, top_k, top_p, min_p,
// repetition_penalty, and max_new_tokens, which bounds every answer. Others are not read. Without
// the file, OpenAI's defaults, or kNotFound where it `must_exist`.
Result<RequestDefaults> LoadRequestDefaults(const std::string& dir, bool must_exist);

}  // namespace kvcake
