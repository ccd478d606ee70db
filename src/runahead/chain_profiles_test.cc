// The paper's machines: profiles fitted to its tensor and sequence parallel runs
// (bench/profiles/kvr) predict its chains, which the fit has not seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/source_dir_testing.h"
#include "runahead/chain_model.h"
#include "runahead/partition_analytic.h"
#include "runahead/partition_search.h"
#include "runahead/partition_table.h"

namespace kvcake {
namespace {

ChainCost PaperChain(const std::string& model, int ranks) {
  std::string file = "a100-" + model;
  for (char& c : file) c = c == ' ' ? '-' : static_cast<char>(std::tolower(c));
  const auto profile = LoadEmulatedProfile(SourceDir() + "/bench/profiles/kvr/" + file + ".json");
  CHECK(profile);
  return ChainCostOf(*profile, ranks, 300e9);
}

std::vector<std::vector<std::string>> Rows(const char* name) {
  std::ifstream file(SourceDir() + "/bench/papers/" + name);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  CHECK(!rows.empty());
  rows.erase(rows.begin());
  return rows;
}

struct Errors {
  double sum = 0, worst = 0;
  int cells = 0;
  void Add(double predicted, double printed) {
    const double off = std::abs(predicted / printed - 1);
    sum += off, worst = std::max(worst, off), ++cells;
  }
};

TEST(PaperProfilesTest, PartitionsOfLlama7BAreThePapers) {
  const auto fractions = [](int tokens, int ranks) {
    return AnalyticPartition(PaperChain("Llama 7B", ranks), tokens).fractions();
  };
  const std::vector<double> four = fractions(10240, 4), paper{0.350, 0.255, 0.210, 0.185};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(four[i], paper[i], 0.01) << "rank " << i;
  EXPECT_NEAR(fractions(16384, 2)[0], 0.594, 0.01);
}

TEST(PaperProfilesTest, TwelveThousandTokensOnFourTakeThePapersTime) {
  const ChainCost cost = PaperChain("Llama 7B", 4);
  EXPECT_NEAR(PredictChain(cost, AnalyticPartition(cost, 12288)).ttft_s / 0.76, 1, 0.03);
}

TEST(PaperProfilesTest, ChainsArePredictedUnseen) {
  Errors tsp, all, large;
  for (const auto& row : Rows("kvr_ttft.csv")) {
    const std::string& model = row[0];
    const int tokens = std::stoi(row[1]), ranks = std::stoi(row[2]);
    const ChainCost cost = PaperChain(model, ranks);
    const double tsp_s = PredictGather(cost, tokens, GatherMethod::kTsp).ttft_s;
    const double kvr_s = PredictChain(cost, AnalyticPartition(cost, tokens)).ttft_s;
    tsp.Add(tsp_s, std::stod(row[3]));
    const double printed_s = std::stod(row[4]);
    all.Add(kvr_s, printed_s);
    if (tokens >= 8192) large.Add(kvr_s, printed_s);
  }
  EXPECT_EQ(all.cells, 68);
  EXPECT_LE(tsp.sum / tsp.cells, 0.015) << "what was fitted";
  EXPECT_LE(tsp.worst, 0.06);
  EXPECT_LE(all.sum / all.cells, 0.05) << "the chains";
  EXPECT_LE(all.worst, 0.16);
  EXPECT_LE(large.sum / large.cells, 0.05);
  EXPECT_LE(large.worst, 0.13);
}

TEST(PaperProfilesTest, ATableServesLengthsItHasNoEntriesFor) {
  const ChainCost cost = PaperChain("Llama 7B", 4);
  const auto measure = [&](const Partition& p) -> Result<double> {
    return PredictChain(cost, p).ttft_s;
  };
  const auto search = [&](int tokens) {
    return SearchPartition({.what = "llama", .tokens = tokens, .ranks = 4}, measure)->best;
  };
  PartitionTable table;
  const PartitionTableKey key{.model = "llama", .machine = "a100", .ranks = 4};
  for (const int tokens : {4096, 8192, 16384}) table.Set(key, search(tokens).partition);
  for (const int tokens : {10240, 12288}) {
    const double table_s = *measure(*table.PartitionFor(key, tokens));
    EXPECT_LE(table_s / search(tokens).seconds, 1.013) << tokens;
  }
}

}  // namespace
}  // namespace kvcake
