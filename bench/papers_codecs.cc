#include "bench/papers_codecs.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_file.h"
#include "bench/harness.h"
#include "bench/simulate_scenario.h"

namespace kvcake::bench {
namespace {

constexpr const char* kMachine = "LongAlpaca-13B on A100";
constexpr double kLinksGbit[] = {2, 5, 10};
constexpr int kSettingTokens = 16384, kSettingChunkTokens = 128;

struct MeasuredCodec {
  std::string name;
  double bits = 16;               // a value
  double decode_bytes_per_s = 0;  // of bf16, by one core; 0: nothing is decoded
};

// The first shape's, each by the instructions that decode it fastest, in the file's order.
Result<std::vector<MeasuredCodec>> ReadCodecs(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json rows, ReadJsonFile(path));
  const auto wrong = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                "{} is not what kvcake bench codecs --json writes: make it anew", path);
  };
  std::vector<MeasuredCodec> codecs = {{.name = "raw"}};
  if (!rows.is_array() || rows.empty()) return wrong();
  try {
    const std::string shape = rows[0].at("shape");
    for (const auto& row : rows) {
      const std::string name = row.at("codec");
      if (row.at("shape") != shape || name == "memcpy" || name.starts_with("zstd")) continue;
      MeasuredCodec codec{name, row.at("bits_per_value"), row.at("decode_bytes_per_s")};
      const auto known = std::find_if(codecs.begin(), codecs.end(),
                                      [&](const MeasuredCodec& c) { return c.name == name; });
      if (known == codecs.end()) {
        codecs.push_back(codec);
      } else if (codec.decode_bytes_per_s > known->decode_bytes_per_s) {
        *known = codec;
      }
    }
  } catch (const nlohmann::json::exception&) {
    return wrong();
  }
  return codecs;
}

ScenarioResult RunSetting(const EmulatedProfile& profile, const MeasuredCodec& codec,
                          double link_bytes_per_s, int decode_cores) {
  Scenario s;
  s.profile = &profile;
  s.slice_tokens = 512;
  s.chunk_tokens = kSettingChunkTokens;
  s.chunks = kSettingTokens / kSettingChunkTokens;
  const double chunk_bytes = kSettingChunkTokens * static_cast<double>(profile.kv_bytes_per_token);
  ScenarioTier tier;
  tier.chunk_s = chunk_bytes * codec.bits / 16 / link_bytes_per_s;
  if (codec.decode_bytes_per_s > 0) {
    // Chunks are decoded beside the link: the slower of the two is the tier's rate.
    const double decode_s = chunk_bytes / codec.decode_bytes_per_s;
    tier.chunk_s = std::max(tier.chunk_s, decode_s / decode_cores);
    tier.latency_s = decode_s;
  }
  tier.held.assign(s.chunks, true);
  s.tiers.push_back(std::move(tier));
  return RunScenario(s);
}

}  // namespace

Status PrintCodecsSetting(const PapersOptions& options,
                          const std::map<std::string, EmulatedProfile>& profiles,
                          nlohmann::ordered_json* json) {
  const auto profile = profiles.find(kMachine);
  if (profile == profiles.end()) {
    return Fail(ErrorCode::kNotFound, "no profile of {}: see --profiles", kMachine);
  }
  ASSIGN_OR_RETURN(const std::vector<MeasuredCodec> codecs, ReadCodecs(options.codecs));
  fmt::print(
      "\n{}, {} tokens; codecs as {} has them, decoded by {} cores\n"
      "{:>6} {:<19} {:>6} {:>10} {:>10} {:>8} {:>10} {:>11}\n",
      kMachine, kSettingTokens, options.codecs, options.decode_cores, "Gbit/s", "codec", "bits",
      "compute s", "load s", "cake s", "of better", "bound/cake");
  for (const double gbit : kLinksGbit) {
    for (const MeasuredCodec& codec : codecs) {
      const ScenarioResult result =
          RunSetting(profile->second, codec, gbit * 1e9 / 8, options.decode_cores);
      fmt::print("{:>6g} {:<19} {:>6.2f} {:>10.2f} {:>10.2f} {:>8.2f} {:>9.2f}x {:>11.3f}\n", gbit,
                 codec.name, codec.bits, result.compute_s, result.load_s, result.cake_s,
                 result.against_better(), result.efficiency());
      json->push_back({{"machine", kMachine},
                       {"tokens", kSettingTokens},
                       {"gbps", gbit},
                       {"codec", codec.name},
                       {"bits_per_value", codec.bits},
                       {"decode_cores", options.decode_cores},
                       {"compute_s", result.compute_s},
                       {"load_s", result.load_s},
                       {"cake_s", result.cake_s},
                       {"bound_s", result.bound_s}});
    }
  }
  return {};
}

}  // namespace kvcake::bench
