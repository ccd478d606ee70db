#include "runahead/partition_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

const PartitionTableKey kKey{.model = "m", .machine = "two cores", .ranks = 2};

PartitionTable SmallTable() {
  PartitionTable table;
  table.Set(kKey, {{0, 2400, 4000}});   // 0.6
  table.Set(kKey, {{0, 5600, 8000}});   // 0.7
  table.Set(kKey, {{0, 6400, 16000}});  // 0.4
  return table;
}

TEST(PartitionTableTest, InterpolatesBetweenTheNearestLengths) {
  const PartitionTable table = SmallTable();
  const auto first = [&](int tokens) { return table.PartitionFor(kKey, tokens)->begin(1); };
  EXPECT_EQ(first(4000), 2400);
  EXPECT_EQ(first(6000), 3900);
  EXPECT_EQ(first(10000), 6250);
  EXPECT_EQ(first(1000), 600) << "the nearest's";
  EXPECT_EQ(first(100000), 40000);
  EXPECT_EQ(first(2), 1) << "a token each";
}

TEST(PartitionTableTest, KeepsModelsMachinesAndRanksApart) {
  PartitionTable table = SmallTable();
  PartitionTableKey other = kKey;
  other.ranks = 3;
  const auto missing = table.PartitionFor(other, 100);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("m on two cores for 3 ranks"));
  other = kKey, other.machine = "x";
  EXPECT_FALSE(table.PartitionFor(other, 100));
  other = kKey, other.model = "x";
  EXPECT_FALSE(table.PartitionFor(other, 100));
  table.Set(other, {{0, 1, 4}});
  EXPECT_EQ(table.PartitionFor(other, 400)->begin(1), 100);
  EXPECT_EQ(table.PartitionFor(kKey, 4000)->begin(1), 2400);
  table.Set(other, {{0, 2, 4}});
  EXPECT_EQ(table.PartitionFor(other, 400)->begin(1), 200);
}

TEST(PartitionTableTest, ComesBackFromItsFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/table.json";
  PartitionTable table = SmallTable();
  table.Set({.model = std::string(1000, 'm'), .machine = "x", .ranks = 1}, {{0, 7}});
  ASSERT_TRUE(table.Save(path));
  ASSERT_TRUE(table.Save(path)) << "over the old one";
  const auto back = PartitionTable::Load(path);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->ToJson(), table.ToJson());
  EXPECT_EQ(PartitionTable::Load(dir.path() + "/none").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(table.Save(dir.path() + "/no/table.json").error().message,
              HasSubstr("no/table.json"));
}

TEST(PartitionTableTest, BrokenFilesAreRefusedByField) {
  const nlohmann::json good = SmallTable().ToJson();
  const auto refuses = [&](const char* pointer, const nlohmann::json& value, const char* says) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const auto table = PartitionTable::FromJson(bad, "t.json");
    ASSERT_FALSE(table) << pointer;
    EXPECT_THAT(table.error().message, testing::AllOf(HasSubstr("t.json: "), HasSubstr(says)));
  };
  refuses("/version", 2, "version");
  refuses("/tables", 1, "tables is not a list");
  refuses("/tables/0", 1, "tables[0]: is not an object");
  refuses("/tables/0/model", 1, "tables[0]: model");
  refuses("/tables/0/ranks", 0, "tables[0]: ranks");
  refuses("/tables/0/entries", nullptr, "tables[0]: entries");
  refuses("/tables/0/entries/1", 1, "tables[0].entries[1]: is not an object");
  refuses("/tables/0/entries/1/tokens", 1, "tables[0].entries[1]: tokens");
  refuses("/tables/0/entries/1/fractions", {1.0}, "tables[0].entries[1]: fractions");
  refuses("/tables/0/entries/1/fractions", {0.5, 0.2}, "fractions: the shares sum to 0.7");
  refuses("/tables/0/entries/1/fractions", {1.5, -0.5}, "fractions: a share is above 0");
  refuses("/tables/0/entries/1/fractions", {"a", 0.5}, "fractions has something");
  EXPECT_FALSE(PartitionTable::FromJson(nlohmann::json::array(), "t.json"));
}

}  // namespace
}  // namespace kvcake
