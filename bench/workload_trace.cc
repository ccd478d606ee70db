#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_file.h"
#include "bench/workload.h"

namespace kvcake::bench {
namespace {

using nlohmann::json;

constexpr int kBlockTokens = 512;
constexpr int kLengthMax = 1 << 28;
constexpr double kTimestampMax = 1e15;

std::optional<double> NumberIn(const json& line, const char* name, double least, double most) {
  const auto at = line.find(name);
  if (at == line.end() || !at->is_number()) return std::nullopt;
  const auto value = at->get<double>();
  if (!(value >= least && value <= most)) return std::nullopt;
  return value;
}

int Scaled(int tokens, double scale) {
  return std::max(1, static_cast<int>(std::lround(tokens * scale)));
}

struct TraceLine {
  double timestamp_ms = 0;
  int input_tokens = 0, output_tokens = 0;
  std::vector<uint64_t> hash_ids;
};

// What is wrong with the line, where something is.
std::string ReadLine(const json& line, TraceLine* out) {
  if (!line.is_object()) return "is not a JSON object";
  const auto timestamp = NumberIn(line, "timestamp", 0, kTimestampMax);
  if (!timestamp) return "timestamp must be milliseconds from 0 on";
  const auto input = NumberIn(line, "input_length", 1, kLengthMax);
  if (!input) return "input_length must be a number of tokens from 1 on";
  const auto output = NumberIn(line, "output_length", 0, kLengthMax);
  if (!output) return "output_length must be a number of tokens";
  const auto ids = line.find("hash_ids");
  if (ids == line.end() || !ids->is_array() ||
      !std::all_of(ids->begin(), ids->end(),
                   [](const json& id) { return id.is_number_unsigned(); })) {
    return "hash_ids must be an array of numbers from 0 on";
  }
  *out = {*timestamp, static_cast<int>(*input), static_cast<int>(*output),
          ids->get<std::vector<uint64_t>>()};
  const int blocks = (out->input_tokens + kBlockTokens - 1) / kBlockTokens;
  if (out->hash_ids.size() == static_cast<size_t>(blocks)) return {};
  return fmt::format("has {} hash_ids: an input_length of {} has {}, one for each {} tokens",
                     out->hash_ids.size(), out->input_tokens, blocks, kBlockTokens);
}

}  // namespace

Result<std::vector<WorkloadRequest>> ParseTrace(std::string_view text, const std::string& source,
                                                const WorkloadOptions& options) {
  std::vector<WorkloadRequest> requests;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string place = fmt::format("{}, line {}", source, ++number);
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ASSIGN_OR_RETURN(const json parsed, ParseJson(content, place));
    TraceLine line;
    if (const std::string wrong = ReadLine(parsed, &line); !wrong.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "{}: {}", place, wrong);
    }
    WorkloadRequest request{.at_s = 1e-3 * options.time_scale * line.timestamp_ms,
                            .conversation = static_cast<int>(requests.size()),
                            .text = {},
                            .max_tokens = Scaled(line.output_tokens, options.length_scale)};
    for (size_t i = 0; i < line.hash_ids.size(); ++i) {
      const int left = line.input_tokens - static_cast<int>(i) * kBlockTokens;
      request.text.push_back({fmt::format("Block {}", line.hash_ids[i]),
                              Scaled(std::min(left, kBlockTokens), options.length_scale)});
    }
    requests.push_back(std::move(request));
    if (options.num_prompts > 0 && requests.size() == static_cast<size_t>(options.num_prompts)) {
      break;
    }
  }
  if (requests.empty()) return Fail(ErrorCode::kInvalidArgument, "{} has no requests", source);
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  const double first_s = requests[0].at_s;
  for (WorkloadRequest& request : requests) request.at_s -= first_s;
  return requests;
}

}  // namespace kvcake::bench
