#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class ApiKeysTest : public testing::Test {
 protected:
  std::string KeyFile(const std::string& text) const {
    std::ofstream(dir_.path() + "/keys") << text;
    return dir_.path() + "/keys";
  }

  const TempDir dir_;
};

TEST_F(ApiKeysTest, FindsTheTenantOfAKey) {
  const ApiKeys keys =
      ApiKeys::Load(
          {"open"},
          KeyFile("# tenants\nann key-a\n\n bob\tkey-b #his\nann key-a2\nann key-a\neve k#1 # !"))
          .value();
  EXPECT_FALSE(keys.open());
  EXPECT_EQ(keys.Tenant("Bearer open"), "");
  EXPECT_EQ(keys.Tenant("Bearer key-a"), "ann");
  EXPECT_EQ(keys.Tenant("Bearer key-a2"), "ann");
  EXPECT_EQ(keys.Tenant("Bearer key-b"), "bob");
  EXPECT_EQ(keys.Tenant("bearer key-b"), "bob");
  EXPECT_EQ(keys.Tenant("Bearer k#1"), "eve");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer key", "key-a", "Bearer key-a ",
                            "Basic key-a", "Bearer ann", "Bearer k", "Bearer KEY-A"}) {
    EXPECT_EQ(keys.Tenant(wrong), std::nullopt) << wrong;
  }
  EXPECT_TRUE(ApiKeys::Load({}, "").value().open());
}

TEST_F(ApiKeysTest, RefusesFilesThatAreNotWhatTheySeem) {
  EXPECT_THAT(ApiKeys::Load({}, KeyFile("ann key-a\nbob")).error().message, HasSubstr(":2:"));
  EXPECT_THAT(ApiKeys::Load({}, KeyFile("ann key more")).error().message, HasSubstr(":1:"));
  EXPECT_THAT(ApiKeys::Load({}, KeyFile("# none\n")).error().message, HasSubstr("no keys"));
  EXPECT_THAT(ApiKeys::Load({}, KeyFile("ann # key")).error().message, HasSubstr(":1:"));
  EXPECT_THAT(ApiKeys::Load({}, KeyFile("ann key\nbob key")).error().message, HasSubstr(":2:"));
  EXPECT_THAT(ApiKeys::Load({"key"}, KeyFile("ann key")).error().message, HasSubstr("of ann"));
  EXPECT_EQ(ApiKeys::Load({}, "/nowhere/keys").error().code, ErrorCode::kIo);
  EXPECT_FALSE(ApiKeys::Load({""}, ""));
}

TEST_F(ApiKeysTest, SaltsDifferForEveryPair) {
  EXPECT_EQ(CacheSalt("", ""), "");
  std::set<std::string> salts;
  const char* parts[] = {"", "a", "1", "1:", "aa", "1:a", ":", "0:"};
  for (const char* tenant : parts) {
    for (const char* salt : parts) salts.insert(CacheSalt(tenant, salt));
  }
  EXPECT_EQ(salts.size(), std::size(parts) * std::size(parts));
}

}  // namespace
}  // namespace kvcake
