#include "ops/sample.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/paths_testing.h"
#include "ops/sample_inl.h"

namespace kvcake {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kAlmostOne = 1 - 0x1p-53;

// The rows' tokens by the path; more than the vocabulary would be chosen, were it looked at.
std::vector<int32_t> Tokens(NumericPath path, const std::vector<std::vector<float>>& rows,
                            const std::vector<RowSampling>& sampling) {
  const int64_t vocab = std::ssize(rows[0]), stride = vocab + 3;
  std::vector<float> logits;
  for (const auto& row : rows) {
    logits.insert(logits.end(), row.begin(), row.end());
    logits.resize(logits.size() + 3, kInf);
  }
  ThreadPool pool(2);
  const Compute compute(pool, path);
  const Buffer of_rows = ToKernels(path, logits), how = ToKernels(path, sampling);
  const Buffer tokens(rows.size() * sizeof(int32_t), MemoryOf(path));
  SampleTokens(compute, {.data = of_rows.as<float>(), .vocab = vocab, .stride = stride},
               {how.as<RowSampling>(), sampling.size()}, tokens.as<int32_t>());
  return FromKernels(path, tokens.as<int32_t>(), std::ssize(rows));
}

// What is promised, said plainly: everything sorted, nothing clever.
int32_t Reference(std::span<const float> logits, const RowSampling& sampling) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) tokens.push_back(static_cast<int32_t>(i));
  }
  if (tokens.empty()) return 0;
  std::ranges::stable_sort(tokens, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const double best = logits[tokens[0]];
  if (sampling.temperature == 0 || std::isinf(best)) return tokens[0];
  const auto weight = [&](int32_t token) {
    return std::exp((logits[token] - best) / sampling.temperature);
  };
  const auto total = [&] {
    double sum = 0;
    for (const int32_t token : tokens) sum += weight(token);
    return sum;
  };
  const double least = std::max(sampling.min_p, 0x1p-39);
  std::erase_if(tokens, [&](int32_t token) { return weight(token) < least; });
  if (sampling.top_k > 0 && sampling.top_k < std::ssize(tokens)) tokens.resize(sampling.top_k);
  if (sampling.top_p < 1) {
    const double enough = sampling.top_p * total();
    double sum = 0;
    size_t kept = 0;
    while (kept == 0 || sum < enough) sum += weight(tokens[kept++]);
    tokens.resize(kept);
  }
  std::ranges::sort(tokens);
  double left = sampling.uniform * total();
  for (const int32_t token : tokens) {
    left -= weight(token);
    if (left < 0) return token;
  }
  return tokens.back();
}

class RandomRows {
 public:
  explicit RandomRows(uint32_t seed) : rng_(seed) {}

  int Below(int n) { return static_cast<int>(rng_() % n); }

  // Logits of a random scale, some with many ties, with holes, or with infinities.
  std::vector<float> Row(int64_t vocab) {
    auto row = RandomFloats(rng_, vocab, std::pow(10.0f, static_cast<float>(Below(5) - 2)));
    const int kind = Below(6);
    for (float& logit : row) {
      if (kind == 1) logit = std::round(4 * logit) / 4;
      if (kind == 2 && Below(3) == 0) logit = kNan;
      if (kind == 3 && Below(2)) logit = -kInf;
      if (kind == 4 && Below(50) == 0) logit = Below(2) ? 0.0f : -0.0f;
    }
    if (kind == 5) row[Below(static_cast<int>(vocab))] = kInf;
    return row;
  }

  RowSampling Sampling(int64_t vocab) {
    RowSampling sampling{.temperature = Below(8) ? 0.1 + Below(30) / 10.0 : 0};
    if (Below(8) == 0) sampling.temperature = std::pow(10.0, Below(600) - 300);
    if (Below(3) == 0) sampling.min_p = Below(1000) / 3000.0;
    if (Below(2)) sampling.top_k = Below(Below(2) ? 60 : 2 * static_cast<int>(vocab));
    if (Below(2)) sampling.top_p = (1 + Below(997)) / 1000.0;
    const double uniforms[] = {0, 0x1p-53, kAlmostOne, (rng_() >> 1) * 0x1p-31,
                               (rng_() >> 1) * 0x1p-31};
    sampling.uniform = uniforms[Below(5)];
    return sampling;
  }

 private:
  std::mt19937 rng_;
};

TEST(WeigherTest, WeighsAsTheExponentialFunctionDoes) {
  for (const double temperature : {0.25, 1.0, 3.0}) {
    const Weigher weigh(1.5f, {.temperature = temperature});
    for (int i = 0; i <= 2700; ++i) {
      const auto logit = static_cast<float>(1.5 - 0.01 * i * temperature);
      const double weight = 0x1p39 * std::exp((logit - 1.5) / temperature);
      EXPECT_NEAR(static_cast<double>(weigh(logit)), weight, 1 + 0x1p-41 * weight) << logit;
    }
    EXPECT_EQ(weigh(static_cast<float>(1.5 - 28 * temperature)), 0u) << "less than a unit";
  }
}

TEST(SampleTokenTest, DoesWhatAPlainReferenceDoes) {
  RandomRows random(7);
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(round);
    const int64_t vocab = 1 + random.Below(random.Below(10) ? 300 : 6000);
    const auto row = random.Row(vocab);
    const RowSampling sampling = random.Sampling(vocab);
    ASSERT_EQ(SampleToken(row, sampling), Reference(row, sampling))
        << vocab << " T " << sampling.temperature << " min_p " << sampling.min_p << " top_k "
        << sampling.top_k << " top_p " << sampling.top_p << " u " << sampling.uniform;
  }
}

class SampleTest : public PathTest {
 protected:
  static int32_t Token(const std::vector<float>& row, const RowSampling& sampling) {
    return Tokens(GetParam(), {row}, {sampling})[0];
  }
  // Those between which `uniform` chooses: the first, and the last.
  using Ends = std::pair<int32_t, int32_t>;
  static Ends EndsOf(const std::vector<float>& row, RowSampling sampling) {
    RowSampling last = sampling;
    last.uniform = kAlmostOne;
    const auto tokens = Tokens(GetParam(), {row, row}, {sampling, last});
    return {tokens[0], tokens[1]};
  }
};
KVCAKE_EVERY_PATH_AND_CUDA(SampleTest);

TEST_P(SampleTest, EveryRowIsTheOneRowFunctions) {
  RandomRows random(3);
  for (const int64_t vocab : {1, 2, 31, 1000, 1025, 32003, 151937}) {
    SCOPED_TRACE(vocab);
    std::vector<std::vector<float>> rows;
    std::vector<RowSampling> sampling;
    std::vector<int32_t> want;
    for (int i = 0; i < 33; ++i) {
      rows.push_back(random.Row(vocab));
      sampling.push_back(random.Sampling(vocab));
      want.push_back(SampleToken(rows.back(), sampling.back()));
    }
    EXPECT_EQ(Tokens(GetParam(), rows, sampling), want);
  }
}

TEST_P(SampleTest, TheLowestIdIsTheLikeliestOfEquals) {
  EXPECT_EQ(Token({1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(Token({-1, -0.0f, 0.0f, -2}, {}), 1);
  EXPECT_EQ(Token({-1, 0.0f, -0.0f, -2}, {.temperature = 1, .uniform = 0.9, .top_k = 1}), 1);
  std::vector<float> many(40000, 2.0f);
  EXPECT_EQ(Token(many, {}), 0);
  many[31234] = many[12345] = many[39999] = 3.0f;
  EXPECT_EQ(Token(many, {}), 12345);
  std::vector<float> row(2000, 1.5f);
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .top_k = 700}), Ends(0, 699));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .top_p = 0.25}), Ends(0, 499));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .top_p = 0.5, .top_k = 1000}), Ends(0, 499));
  EXPECT_EQ(Token(row, {.temperature = 1, .uniform = 0.75}), 1500);
  row[3] = 1;  // the least likely
  row[1999] = 2;
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .top_k = 4}), Ends(0, 1999));
  EXPECT_EQ(Token(row, {.temperature = 1, .uniform = 0.45, .top_k = 4}), 2);
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .top_p = 1e-9}), Ends(1999, 1999));
}

TEST_P(SampleTest, NanIsNeverChosen) {
  EXPECT_EQ(Token({kNan, 1, kNan, 2}, {}), 3);
  EXPECT_EQ(Token({kNan, 1, kNan, 2}, {.temperature = 1, .uniform = 0.9, .top_k = 1}), 3);
  EXPECT_EQ(EndsOf({kNan, 1, -kNan, 2, kNan}, {.temperature = 1, .top_k = 4}), Ends(1, 3));
  EXPECT_EQ(EndsOf({kNan, 1, -kNan, 2, kNan}, {.temperature = 1e300}), Ends(1, 3));
  EXPECT_EQ(Token(std::vector<float>(77, kNan), {}), 0);
  EXPECT_EQ(Token(std::vector<float>(77, -kNan), {.temperature = 1, .uniform = 0.9}), 0);
  EXPECT_EQ(Token({kNan, -kInf, -kInf}, {.temperature = 1, .uniform = 0.9}), 1);
}

TEST_P(SampleTest, AnInfiniteLogitIsTakenOrNever) {
  EXPECT_EQ(Token({1, kInf, 2, kInf}, {.temperature = 1, .uniform = 0.9}), 1);
  EXPECT_EQ(EndsOf({-kInf, 1, 2, -kInf}, {.temperature = 1}), Ends(1, 2));
  EXPECT_EQ(EndsOf({-kInf, 1, 2, -kInf}, {.temperature = 1.7e308, .top_k = 3}), Ends(1, 2));
  EXPECT_EQ(Token(std::vector<float>(9, -kInf), {.temperature = 1, .uniform = 0.9}), 0);
}

TEST_P(SampleTest, ExtremeTemperaturesAreGreedyOrEven) {
  std::vector<float> row(5000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i % 100) / 10;
  const float next = std::nextafter(9.9f, 0.0f);
  row[7] = next;
  for (const double cold : {1e-9, 1e-300, 5e-324}) {
    EXPECT_EQ(EndsOf(row, {.temperature = cold}), Ends(99, 4999));
    EXPECT_EQ(EndsOf({next, 9.9f, next}, {.temperature = cold}), Ends(1, 1));
  }
  EXPECT_EQ(Token(row, {.temperature = 1e300, .uniform = 0.5}), 2500);
  EXPECT_EQ(EndsOf(row, {.temperature = 1.7e308}), Ends(0, 4999));
}

TEST_P(SampleTest, MinPCutsWhatIsFarBelowTheLikeliest) {
  const std::vector<float> row = {0, std::log(2.0f), std::log(4.0f), std::log(8.0f), 0};
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .min_p = 0.13}), Ends(1, 3));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .min_p = 0.12}), Ends(0, 4));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .min_p = 1}), Ends(3, 3));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .min_p = 0.13, .top_k = 2}), Ends(2, 3));
  EXPECT_EQ(EndsOf(row, {.temperature = 1, .min_p = 0.13, .top_k = 99}), Ends(1, 3));
}

}  // namespace
}  // namespace kvcake
