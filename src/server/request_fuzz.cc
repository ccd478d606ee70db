// Any bytes as the body of a request: refused with a field or a reason, or a request that makes
// sense. The first byte says of which endpoint.
#include "base/check.h"
#include "server/openai_request.h"

namespace {

template <typename T>
void CheckError(const kvcake::ApiResult<T>& result) {
  if (!result) CHECK(result.error().status == 400 && !kvcake::ErrorBody(result.error()).empty());
}

void CheckRequest(const kvcake::ApiResult<kvcake::GenerateRequest>& request) {
  CheckError(request);
  if (!request) return;
  CHECK(kvcake::Validate(request->sampling));
  CHECK(!request->max_tokens || *request->max_tokens >= (request->echo ? 0 : 1));
  CHECK(request->top_logprobs >= 0 && request->top_logprobs <= 20);
  CHECK(!request->prompts.empty());
  CHECK(request->n >= 1 && request->prompts.size() * request->n <= 128);
  for (const kvcake::Prompt& prompt : request->prompts) {
    if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
      CHECK(!tokens->empty() && tokens->front() >= 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto body =
      kvcake::ParseBody(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  CheckError(body);
  if (!body) return 0;
  switch (data[0] % 4) {
    case 0:
      CheckRequest(kvcake::ParseCompletion(*body));
      break;
    case 1:
      CheckRequest(kvcake::ParseChat(*body));
      break;
    case 2:
      CheckError(kvcake::ParseTokenize(*body));
      break;
    default:
      CheckError(kvcake::ParseDetokenize(*body));
  }
  return 0;
}
