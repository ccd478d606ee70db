#include "model/emulated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <tuple>

#include "base/source_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

EmulatedProfile SmallProfile() {
  return {.name = "small",
          .layers = 3,
          .kv_bytes_per_token = 3 * 4 * 4 * kEmulatedScale,
          .max_positions = 4096,
          .attention = EmulatedProfile::Attention::kDense,
          .c0 = 0.5,
          .b = 0.01,
          .a = 1e-4,
          .floor = 2};
}

class EmulatedModelTest : public testing::Test {
 protected:
  EmulatedModelTest()
      : pool_(PagePool::Create(EmulatedModel::LayoutFor(SmallProfile(), 16), 1 << 20).value()),
        model_(SmallProfile(), *pool_, 512, EmulatedModel::kVocab, clock_,
               [this](TimePoint t) { clock_.AdvanceTo(t); }) {
    for (int i = 0; i < 8; ++i) {
      handles_.push_back(std::move(*pool_->Draw()));
      pages_.push_back(handles_.back().id());
    }
    std::mt19937 rng(1);
    for (int i = 0; i < 100; ++i) tokens_.push_back(static_cast<int32_t>(rng() % 1000));
  }

  Slice Of(int start, int end) const {
    return {.tokens = std::span(tokens_).subspan(start, end - start),
            .start = start,
            .pages = pages_,
            .logits = Slice::Logits::kLast};
  }
  int64_t Best(const Slice& slice) {
    const auto logits = model_.Forward(std::span(&slice, 1)).value();
    EXPECT_EQ(logits.size(), size_t{EmulatedModel::kVocab});
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_;
  EmulatedModel model_;
  std::vector<PageHandle> handles_;
  std::vector<PageId> pages_;
  std::vector<int32_t> tokens_;
};

TEST_F(EmulatedModelTest, TakesTheTimeOfTheProfile) {
  const auto took = [&](std::vector<Slice> batch) {
    const TimePoint began = clock_.Now();
    EXPECT_TRUE(model_.Forward(batch));
    return (clock_.Now() - began).count();
  };
  EXPECT_DOUBLE_EQ(took({Of(0, 10)}), 2) << "the floor";
  EXPECT_DOUBLE_EQ(took({Of(0, 100)}), 0.5 + 1 + 1);
  EXPECT_DOUBLE_EQ(took({Of(50, 100)}), 2);
  EXPECT_NEAR(took({Of(0, 100), Of(50, 100)}), 0.5 + (1 + 1) + (0.5 + 0.5), 1e-9) << "c0 once";
}

TEST_F(EmulatedModelTest, CausalAttentionTakesWhatAllKeysBeforeItTake) {
  EmulatedProfile causal = SmallProfile();
  causal.attention = EmulatedProfile::Attention::kCausal;
  causal.floor = 0;
  causal.g = 1e-3;
  EmulatedModel model(causal, *pool_, 512, EmulatedModel::kVocab, clock_,
                      [this](TimePoint t) { clock_.AdvanceTo(t); });
  const auto took = [&](const Slice& slice) {
    const TimePoint began = clock_.Now();
    EXPECT_TRUE(model.Forward(std::span(&slice, 1)));
    return (clock_.Now() - began).count();
  };
  EXPECT_NEAR(took(Of(0, 10)), causal.SecondsFor(0, 10), 1e-9);
  EXPECT_NEAR(took(Of(50, 60)), causal.SecondsFor(50, 10), 1e-9);
  EXPECT_GT(causal.SecondsFor(50, 10), causal.SecondsFor(0, 10));
}

TEST_F(EmulatedModelTest, ADenseRectangleMayBeWiderThanTheSlicesOwnTokens) {
  Slice slice = Of(0, 100);
  slice.dense_keys = 128;
  const TimePoint began = clock_.Now();
  EXPECT_TRUE(model_.Forward(std::span(&slice, 1)));
  EXPECT_NEAR((clock_.Now() - began).count(), 0.5 + 1 + 1e-4 * 100 * 128, 1e-9);
}

TEST_F(EmulatedModelTest, TheAnswerDependsOnEveryChunkAndNotOnTheSlicing) {
  const int64_t whole = Best(Of(0, 100));
  Best(Of(0, 30));
  Best(Of(30, 77));
  EXPECT_EQ(Best(Of(77, 100)), whole);
  for (int chunk = 0; chunk < 6; ++chunk) {
    for (int layer = 0; layer < 3; ++layer) {
      uint16_t* const keys = pool_->Slab(pages_[chunk], layer);
      for (uint16_t* const plane : {keys, keys + pool_->layout().plane_elements()}) {
        plane[5] ^= 1;
        EXPECT_NE(Best(Of(99, 100)), whole) << "chunk " << chunk << " layer " << layer;
        plane[5] ^= 1;
      }
    }
  }
  EXPECT_EQ(Best(Of(99, 100)), whole);
  Slice suppressed = Of(99, 100);
  suppressed.write_kv = false;
  EXPECT_EQ(Best(suppressed), whole);
}

TEST_F(EmulatedModelTest, EachPositionsLogitsAreThoseOfItsOwnStep) {
  Slice all = Of(0, 20);
  all.logits = Slice::Logits::kAll;
  const auto logits = model_.Forward(std::span(&all, 1)).value();
  const std::vector<float> rows(logits.begin(), logits.end());
  ASSERT_EQ(rows.size(), size_t{20} * EmulatedModel::kVocab);
  for (int i = 0; i < 20; ++i) {
    const auto row = rows.begin() + i * EmulatedModel::kVocab;
    EXPECT_EQ(std::max_element(row, row + EmulatedModel::kVocab) - row, Best(Of(i, i + 1)));
  }
}

TEST_F(EmulatedModelTest, ChunksAreOfTheProfileAndOfWhatLossHasMadeOfThem) {
  std::set<ChunkKey> roots;
  const auto add = [&](auto change, const char* lossy = "") {
    EmulatedProfile profile = SmallProfile();
    change(profile);
    const auto pool = PagePool::Create(EmulatedModel::LayoutFor(profile, 16), 1 << 20).value();
    roots.insert(EmulatedModel(profile, *pool, 512, EmulatedModel::kVocab, clock_, {}, lossy)
                     .identity()
                     .Root());
  };
  const auto same = [](EmulatedProfile&) {};
  add(same);
  add([](EmulatedProfile& profile) { profile.name = "other"; });
  add([](EmulatedProfile& profile) { profile.layers = 2; });
  add([](EmulatedProfile& profile) { profile.kv_bytes_per_token += 1; });
  add(same, "int8");
  EXPECT_EQ(roots.size(), 5u);
}

TEST_F(EmulatedModelTest, PassesItsGateLayerByLayer) {
  struct Gate : LayerGate {
    Status AfterKv(int layer) override {
      calls.push_back(layer);
      return {};
    }
    Status BeforeAttention(int layer) override {
      calls.push_back(10 + layer);
      if (layer == fail_at) return Fail(ErrorCode::kIo, "late");
      return {};
    }
    std::vector<int> calls;
    int fail_at = -1;
  } gate;
  Slice slice = Of(0, 100);
  slice.gate = &gate;
  const TimePoint began = clock_.Now();
  EXPECT_TRUE(model_.Forward(std::span(&slice, 1)));
  EXPECT_EQ(gate.calls, (std::vector{0, 10, 1, 11, 2, 12}));
  EXPECT_NEAR((clock_.Now() - began).count(), 2.5, 1e-9);
  gate.fail_at = 1;
  EXPECT_FALSE(model_.Forward(std::span(&slice, 1)));
}

// A pass takes its own time and what its gate waits for, but not what its thread oversleeps.
TEST_F(EmulatedModelTest, WhatAGateWaitsForIsAddedToThePass) {
  struct Gate : LayerGate {
    explicit Gate(FakeClock* clock) : clock(*clock) {}
    Status AfterKv(int) override { return {}; }
    Status BeforeAttention(int) override {
      clock.AdvanceTo(clock.Now() + Seconds(10));
      return {};
    }
    FakeClock& clock;
  } gate(&clock_);
  EmulatedModel model(SmallProfile(), *pool_, 512, EmulatedModel::kVocab, clock_,
                      [this](TimePoint t) { clock_.AdvanceTo(t + Seconds(0.1)); });
  Slice slice = Of(0, 100);
  slice.gate = &gate;
  const TimePoint began = clock_.Now();
  EXPECT_TRUE(model.Forward(std::span(&slice, 1)));
  EXPECT_NEAR((clock_.Now() - began).count(), 2.5 + 3 * 10 + 0.1, 1e-9);
}

TEST_F(EmulatedModelTest, FourBytesOfATextAreOneToken) {
  const auto tokens = EmulatedModel::TokensOf("abcdabcde");
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_NE(tokens[1], tokens[2]);
  EXPECT_EQ(EmulatedModel::TokensOf("e"), std::vector<int32_t>{tokens[2]});
  EXPECT_TRUE(EmulatedModel::TokensOf("").empty());
}

TEST(EmulatedProfileTest, RatesKeepTheTimeOfAChunk) {
  const EmulatedProfile profile = SmallProfile();
  const KvLayout layout = EmulatedModel::LayoutFor(profile, 128);
  const double rate = 1e9;
  const double real_s = static_cast<double>(profile.kv_bytes_per_token) * 128 / rate;
  const double emulated_s =
      static_cast<double>(layout.page_bytes()) / EmulatedModel::ScaleRate(profile, layout, rate);
  EXPECT_NEAR(emulated_s / real_s, 1, 1e-12);
}

TEST(EmulatedProfileTest, ThePapersProfilesAreRead) {
  for (const char* name : {"a100-llama-7b", "2xa100-longalpaca-13b", "h100-longalpaca-13b"}) {
    const auto profile =
        LoadEmulatedProfile(fmt::format("{}/bench/profiles/{}.json", SourceDir(), name));
    ASSERT_TRUE(profile) << profile.error().message;
    EXPECT_GT(profile->SecondsFor(0, 512), 1e-3);
    EXPECT_GT(profile->SecondsFor(16384, 512), profile->SecondsFor(0, 512));
  }
  // KV-Runahead's one GPU, as printed: 8K tokens in 1.95 s.
  const auto llama =
      LoadEmulatedProfile(SourceDir() + "/bench/profiles/a100-llama-7b.json").value();
  EXPECT_NEAR(llama.SecondsFor(0, 8192), 1.95, 0.02);
}

// What this program took on a card: 8,192 tokens in one slice took 0.215 s.
TEST(EmulatedProfileTest, AMeasuredMachineIsRead) {
  const auto h200 =
      LoadEmulatedProfile(SourceDir() + "/bench/profiles/measured/nvidia-h200-llama-3.1-8b.json");
  ASSERT_TRUE(h200) << h200.error().message;
  EXPECT_NEAR(h200->SecondsFor(0, 8192), 0.215, 0.03);
}

TEST(EmulatedProfileTest, EachFieldIsReadToItsPlace) {
  nlohmann::json json = {{"name", "x"},
                         {"layers", 2},
                         {"kv_bytes_per_token", 1024},
                         {"max_positions", 4096},
                         {"attention", "causal"},
                         {"c0", 0.5},
                         {"g", 0.25},
                         {"b", 0.125},
                         {"a", 0.0625},
                         {"link_latency_s", 3}};
  const auto causal = ParseEmulatedProfile(json, "p.json").value();
  EXPECT_EQ(causal.name, "x");
  EXPECT_EQ(causal.layers, 2);
  EXPECT_EQ(causal.kv_bytes_per_token, 1024u);
  EXPECT_EQ(causal.max_positions, 4096);
  EXPECT_EQ(causal.attention, EmulatedProfile::Attention::kCausal);
  EXPECT_EQ(std::tuple(causal.c0, causal.g, causal.b, causal.a, causal.floor),
            std::tuple(0.5, 0.25, 0.125, 0.0625, 0.0));
  EXPECT_EQ(causal.link_latency_s, 3);
  json["attention"] = "dense";
  const auto refused = ParseEmulatedProfile(json, "p.json");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("g belongs to causal attention"));
  json.erase("g");
  json["floor"] = 7;
  const auto dense = ParseEmulatedProfile(json, "p.json").value();
  EXPECT_EQ(dense.attention, EmulatedProfile::Attention::kDense);
  EXPECT_EQ(std::tuple(dense.c0, dense.g, dense.b, dense.a, dense.floor),
            std::tuple(0.5, 0.0, 0.125, 0.0625, 7.0));
}

TEST(EmulatedProfileTest, BadOnesAreRefusedByField) {
  const nlohmann::json good = {
      {"name", "x"},           {"layers", 2},           {"kv_bytes_per_token", 1024},
      {"max_positions", 4096}, {"attention", "causal"}, {"b", 1e-3}};
  EXPECT_TRUE(ParseEmulatedProfile(good, "p.json"));
  const auto refuses = [&](const char* field, const nlohmann::json& value, const char* says) {
    nlohmann::json bad = good;
    bad[field] = value;
    const auto profile = ParseEmulatedProfile(bad, "p.json");
    ASSERT_FALSE(profile) << field;
    EXPECT_THAT(profile.error().message, testing::AllOf(HasSubstr("p.json"), HasSubstr(says)));
  };
  refuses("name", nullptr, "name");
  refuses("layers", 0, "layers");
  refuses("kv_bytes_per_token", "many", "kv_bytes_per_token");
  refuses("attention", "sparse", "attention");
  refuses("link_latency_s", -1, "link_latency_s");
  refuses("b", -1, "b");
  refuses("b", 0, "b");
  refuses("floor", 1, "floor");
  EXPECT_THAT(ParseEmulatedProfile(nlohmann::json::array(), "p.json").error().message,
              HasSubstr("object"));
}

}  // namespace
}  // namespace kvcake
