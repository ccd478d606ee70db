// The forward pass of every family against a textbook's, in double precision.
#include <algorithm>
#include <cmath>
#include <functional>

#include "model/transformer_testing.h"

namespace kvcake {
namespace {

using Matrix = std::vector<std::vector<double>>;

// One sequence, step by step as the papers have it; nothing is shared with the code under test.
class Textbook {
 public:
  Textbook(const ModelConfig& config, const RandomWeights& weights)
      : c_(config), weights_(weights) {}

  // The logits of every token.
  std::vector<double> Logits(const std::vector<int32_t>& tokens) {
    const std::string table = std::string(c_.names.embedding) + ".weight";
    const std::vector<float> embedding = weights_.Get(table);
    Matrix x;
    for (int32_t token : tokens) {
      const float* row = &embedding[static_cast<int64_t>(token) * c_.hidden_size];
      x.emplace_back(row, row + c_.hidden_size);
    }
    for (layer_ = 0; layer_ < c_.layers; ++layer_) x = Block(x);
    const std::string head = c_.tie_embeddings ? table : std::string(c_.names.head) + ".weight";
    const Matrix last = Norm(x, std::string(c_.names.final_norm), c_.norm);
    std::vector<double> logits;
    for (const auto& row : Multiply(last, weights_.Get(head), c_.vocab_size)) {
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

 private:
  std::string Name(std::string_view part) const { return LayerTensor(c_, layer_, part); }

  Matrix Block(const Matrix& x) const {
    const Matrix h = Norm(x, Name(c_.names.attention_norm), c_.norm);
    const Matrix attention = Attention(h);
    switch (c_.block) {
      case BlockKind::kSequential: {
        const Matrix middle = Sum(x, attention);
        const Matrix normed = Norm(middle, Name(c_.names.mlp_norm), c_.norm);
        return Sum(middle, c_.experts.count > 0 ? Experts(normed) : Mlp(normed));
      }
      case BlockKind::kParallel:
        return Sum(x, Sum(attention, Mlp(h)));
      case BlockKind::kParallelTwoNorms:
        return Sum(x, Sum(attention, Mlp(Norm(x, Name(c_.names.mlp_norm), c_.norm))));
    }
    return x;
  }

  // Queries, keys and values, one matrix of heads each.
  void Project(const Matrix& h, Matrix* q, Matrix* k, Matrix* v) const {
    const int dim = c_.head_dim;
    if (c_.qkv == QkvKind::kSeparate) {
      *q = Linear(h, Name(c_.names.q), c_.heads * dim, c_.qkv_bias);
      *k = Linear(h, Name(c_.names.k), c_.kv_heads * dim, c_.qkv_bias);
      *v = Linear(h, Name(c_.names.v), c_.kv_heads * dim, c_.qkv_bias);
      return;
    }
    const Matrix all =
        Linear(h, Name(c_.names.qkv), (c_.heads + 2 * c_.kv_heads) * dim, c_.qkv_bias);
    const int group = c_.heads / c_.kv_heads;
    for (const auto& row : all) {
      for (Matrix* m : {q, k, v}) m->emplace_back();
      for (int head = 0; head < c_.heads + 2 * c_.kv_heads; ++head) {
        const int place = head % (group + 2);
        auto& to = (place < group ? q : place == group ? k : v)->back();
        to.insert(to.end(), row.begin() + head * dim, row.begin() + (head + 1) * dim);
      }
    }
  }

  Matrix Attention(const Matrix& h) const {
    const int64_t n = static_cast<int64_t>(h.size());
    Matrix q, k, v;
    Project(h, &q, &k, &v);
    if (c_.qk_norm) {
      NormHeads(Name(c_.names.q_norm), &q);
      NormHeads(Name(c_.names.k_norm), &k);
    }
    if (c_.position == PositionKind::kRope) {
      Rotate(&q);
      Rotate(&k);
    }
    Matrix out(n, std::vector<double>(c_.heads * c_.head_dim));
    for (int64_t t = 0; t < n; ++t) {
      for (int head = 0; head < c_.heads; ++head) {
        const int qo = head * c_.head_dim, ko = head / (c_.heads / c_.kv_heads) * c_.head_dim;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s) {
          for (int i = 0; i < c_.head_dim; ++i) p[s] += q[t][qo + i] * k[s][ko + i];
          if (c_.position == PositionKind::kAlibi) p[s] -= Slope(head) * static_cast<double>(t - s);
          sum += p[s] = std::exp(p[s] / std::sqrt(c_.head_dim));
        }
        for (int64_t s = 0; s <= t; ++s) {
          for (int i = 0; i < c_.head_dim; ++i) out[t][qo + i] += p[s] / sum * v[s][ko + i];
        }
      }
    }
    return Linear(out, Name(c_.names.o), c_.hidden_size, c_.o_bias);
  }

  // The six heads of the tiny models: 2^-2, 2^-4, 2^-6, 2^-8, then 2^-1 and 2^-3.
  static double Slope(int head) { return std::exp2(head < 4 ? -2 * (head + 1) : -(2 * head - 7)); }

  // Every expert of every token, of which the likeliest count.
  Matrix Experts(const Matrix& h) const {
    const Matrix logits = Linear(h, Name(c_.names.router), c_.experts.count, false);
    Matrix out(h.size(), std::vector<double>(c_.hidden_size));
    for (int expert = 0; expert < c_.experts.count; ++expert) {
      const Matrix made = Mlp(h, expert);
      for (size_t t = 0; t < h.size(); ++t) {
        double sum = 0, likelier = 0, sum_of_likeliest = 0;
        std::vector<double> shares;
        for (const double logit : logits[t]) sum += shares.emplace_back(std::exp(logit));
        for (const double share : shares) likelier += share > shares[expert];
        if (likelier >= c_.experts.per_token) continue;
        std::ranges::sort(shares, std::greater());
        for (int i = 0; i < c_.experts.per_token; ++i) sum_of_likeliest += shares[i];
        const double weight =
            std::exp(logits[t][expert]) / (c_.experts.normalized ? sum_of_likeliest : sum);
        for (int i = 0; i < c_.hidden_size; ++i) out[t][i] += weight * made[t][i];
      }
    }
    return out;
  }

  Matrix Mlp(const Matrix& h, int expert = 0) const {
    const auto name = [&](std::string_view part) { return MlpTensor(c_, layer_, expert, part); };
    Matrix up = Linear(h, name(c_.names.up), c_.intermediate_size, c_.mlp_bias);
    if (c_.mlp == MlpKind::kSwiGlu) {
      const Matrix gate = Linear(h, name(c_.names.gate), c_.intermediate_size, c_.mlp_bias);
      for (size_t t = 0; t < up.size(); ++t) {
        for (size_t i = 0; i < up[t].size(); ++i) {
          up[t][i] *= gate[t][i] / (1 + std::exp(-gate[t][i]));
        }
      }
    } else {
      for (auto& row : up) {
        for (double& value : row) value *= 0.5 * (1 + std::erf(value / std::sqrt(2.0)));
      }
    }
    return Linear(up, name(c_.names.down), c_.hidden_size, c_.mlp_bias);
  }

  void Rotate(Matrix* x) const {
    const int half = c_.head_dim / 2;
    for (size_t t = 0; t < x->size(); ++t) {
      std::vector<double>& row = (*x)[t];
      for (size_t h = 0; h < row.size(); h += c_.head_dim) {
        for (int i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t) * std::pow(c_.rope.theta, -2.0 * i / c_.head_dim);
          const double a = row[h + i], b = row[h + half + i];
          row[h + i] = a * std::cos(angle) - b * std::sin(angle);
          row[h + half + i] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  }

  void NormHeads(const std::string& name, Matrix* x) const {
    for (auto& row : *x) {
      for (auto head = row.begin(); head != row.end(); head += c_.head_dim) {
        const Matrix one = {{head, head + c_.head_dim}};
        std::copy_n(Norm(one, name, NormKind::kRms)[0].begin(), c_.head_dim, head);
      }
    }
  }

  Matrix Norm(Matrix x, const std::string& name, NormKind kind) const {
    const std::vector<float> weight = weights_.Get(name + ".weight");
    const bool layer = kind == NormKind::kLayer;
    const std::vector<float> bias =
        layer ? weights_.Get(name + ".bias") : std::vector<float>(weight.size());
    for (auto& row : x) {
      double mean = 0, squares = 0;
      for (double value : row) mean += layer ? value / static_cast<double>(row.size()) : 0;
      for (double value : row) squares += (value - mean) * (value - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(row.size()) + c_.norm_eps);
      for (size_t i = 0; i < row.size(); ++i)
        row[i] = (row[i] - mean) * scale * weight[i] + bias[i];
    }
    return x;
  }

  Matrix Linear(const Matrix& x, const std::string& name, int64_t out, bool bias) const {
    Matrix y = Multiply(x, weights_.Get(name + ".weight"), out);
    if (!bias) return y;
    const std::vector<float> values = weights_.Get(name + ".bias");
    for (auto& row : y) {
      for (size_t i = 0; i < row.size(); ++i) row[i] += values[i];
    }
    return y;
  }

  static Matrix Multiply(const Matrix& x, const std::vector<float>& w, int64_t out) {
    Matrix y(x.size(), std::vector<double>(out));
    const int64_t k = static_cast<int64_t>(x[0].size());
    for (size_t r = 0; r < x.size(); ++r) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < k; ++i) y[r][o] += x[r][i] * w[o * k + i];
      }
    }
    return y;
  }

  static Matrix Sum(Matrix a, const Matrix& b) {
    for (size_t r = 0; r < a.size(); ++r) {
      for (size_t i = 0; i < a[r].size(); ++i) a[r][i] += b[r][i];
    }
    return a;
  }

  const ModelConfig& c_;
  const RandomWeights& weights_;
  int layer_ = 0;
};

using TransformerReferenceTest = PathTest;
KVCAKE_EVERY_PATH_AND_CUDA(TransformerReferenceTest);

TEST_P(TransformerReferenceTest, EveryFamilyAgreesWithTheTextbook) {
  for (const auto& [name, config] : TinyZooOn(GetParam())) {
    Rig rig(config, GetParam(), 2);
    const auto tokens = Prompt(1, 90);
    const PageTable table = rig.Draw(90);
    const auto got = RunAll(rig, tokens, IdsOf(table));
    const auto want = Textbook(config, rig.weights).Logits(tokens);
    ASSERT_EQ(got.size(), want.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    // KV is bf16 on every path.
    EXPECT_LT(std::sqrt(error / norm), Bf16Products(GetParam()) ? 0.02 : 0.006) << name;
  }
}

}  // namespace
}  // namespace kvcake
