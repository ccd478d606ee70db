#include "server/generation_config.h"

#include <limits>

#include "base/json_field.h"
#include "base/json_file.h"

namespace kvcake {

Result<RequestDefaults> LoadRequestDefaults(const std::string& dir, bool must_exist) {
  RequestDefaults defaults;
  const std::string path = dir + "/generation_config.json";
  const auto json = ReadJsonFile(path);
  if (!json) {
    if (json.error().code == ErrorCode::kNotFound && !must_exist) return defaults;
    return tl::unexpected<Error>(json.error());
  }
  constexpr int kIntMax = std::numeric_limits<int>::max();
  constexpr double kDoubleMax = std::numeric_limits<double>::max();
  const JsonField file(*json, path);
  RETURN_IF_ERROR(file.CheckObject());
  SamplingParams& sampling = defaults.sampling;
  ASSIGN_OR_RETURN(sampling.temperature,
                   file["temperature"].Number(0, kDoubleMax, sampling.temperature));
  ASSIGN_OR_RETURN(sampling.top_k, file["top_k"].Int(-1, kIntMax, sampling.top_k));
  if (sampling.top_k == -1) sampling.top_k = 0;  // as vLLM says "all"
  ASSIGN_OR_RETURN(sampling.top_p, file["top_p"].Number(0, 1, sampling.top_p));
  ASSIGN_OR_RETURN(sampling.min_p, file["min_p"].Number(0, 1, sampling.min_p));
  ASSIGN_OR_RETURN(sampling.repetition_penalty,
                   file["repetition_penalty"].Number(0, kDoubleMax, sampling.repetition_penalty));
  if (const Status valid = Validate(sampling); !valid) {
    return Fail(ErrorCode::kInvalidArgument, "{}: {}", path, valid.error().message);
  }
  if (!file["max_new_tokens"].null()) {
    ASSIGN_OR_RETURN(defaults.max_tokens, file["max_new_tokens"].Int(1, kIntMax));
  }
  return defaults;
}

}  // namespace kvcake
