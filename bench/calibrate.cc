#include "bench/calibrate.h"

#include <algorithm>
#include <random>
#include <utility>

namespace kvcake::bench {
namespace {

constexpr int kSamples = 4;  // the first for a guess, the others to correct it once
constexpr int kSampleTokens = 1024;
constexpr int kStretchTokens = 256;
constexpr double kGuess = 4;

int Tokens(const WorkloadRequest& request) {
  int tokens = 0;
  for (const TextPiece& piece : request.text) tokens += piece.tokens;
  return tokens;
}

// Stretches of pieces of the whole workload, of longer ones more often; together no longer than its
// longest prompt.
class Sampler {
 public:
  explicit Sampler(const Workload& workload) : rng_(workload.seed) {
    int longest = 0;
    for (const WorkloadRequest& request : workload.requests) {
      longest = std::max(longest, Tokens(request));
      for (const TextPiece& piece : request.text) {
        pieces_.push_back(&piece);
        ends_.push_back((ends_.empty() ? 0 : ends_.back()) + static_cast<uint64_t>(piece.tokens));
      }
    }
    wanted_ = std::min(kSampleTokens, longest);
  }

  WorkloadRequest Next() {
    WorkloadRequest sample{.text = {}, .max_tokens = 1};
    for (int left = wanted_; left > 0; left -= sample.text.back().tokens) {
      const auto at = std::upper_bound(ends_.begin(), ends_.end(), rng_() % ends_.back());
      const TextPiece& piece = *pieces_[static_cast<size_t>(at - ends_.begin())];
      sample.text.push_back({piece.label, std::min({piece.tokens, kStretchTokens, left})});
    }
    return sample;
  }

 private:
  std::mt19937_64 rng_;
  std::vector<const TextPiece*> pieces_;
  std::vector<uint64_t> ends_;  // in the tokens of the whole workload
  int wanted_ = 0;
};

}  // namespace

boost::asio::awaitable<Result<double>> Calibrate(ServerClient& client, const TextSource& source,
                                                 const Workload& workload,
                                                 PromptWriter::Options options,
                                                 nlohmann::json apart) {
  Sampler sampler(workload);
  const std::string salt = apart.value("cache_salt", "");
  double guess = kGuess;
  int64_t asked = 0, counted = 0;
  for (int i = 0; i < kSamples; ++i) {
    const WorkloadRequest sample = sampler.Next();
    const std::vector<Turn> turns = {{.request = &sample, .answer = nullptr}};
    const Workload other{.name = {},
                         .seed = ~(workload.seed + static_cast<uint64_t>(i)),
                         .system = {},
                         .requests = {}};
    options.characters_per_token = guess;
    const PromptWriter writer(source, other, options);
    apart["cache_salt"] = fmt::format("{} {}", salt, i);
    const Answer answer =
        co_await client.Ask(writer.path(), writer.Body(turns, apart), Clock::Real().Now());
    if (!answer.ok()) {
      co_return Fail(ErrorCode::kIo,
                     "the server does not answer a prompt of about {} tokens: {}: {}",
                     Tokens(sample), answer.error_kind, answer.error);
    }
    const int prompt_tokens = answer.prompt_tokens.value_or(0);
    if (prompt_tokens < 1) {
      co_return Fail(ErrorCode::kUnsupported,
                     "the server does not say how many tokens a prompt has (usage.prompt_tokens): "
                     "--chars-per-token says how long one is");
    }
    if (i == 0) {
      guess *= static_cast<double>(Tokens(sample)) / prompt_tokens;
    } else {
      asked += Tokens(sample);
      counted += prompt_tokens;
    }
  }
  co_return guess* static_cast<double>(asked) / static_cast<double>(counted);
}

}  // namespace kvcake::bench
