#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
      ApiKeys::Load({.keys = {"open"},
                     .file = KeyFile("# tenants\nann key-a\n\n bob\tkey-b #his\nann key-a2\n"
                                     "ann key-a\neve k#1 # !")})
          .value();
  EXPECT_FALSE(keys.open());
  EXPECT_EQ(keys.tenants(), (std::set<std::string>{"ann", "bob", "eve"}));
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
  EXPECT_TRUE(ApiKeys::Load({}).value().open());
}

TEST_F(ApiKeysTest, RefusesFilesThatAreNotWhatTheySeem) {
  EXPECT_THAT(ApiKeys::Load({.file = KeyFile("ann key-a\nbob")}).error().message, HasSubstr(":2:"));
  EXPECT_THAT(ApiKeys::Load({.file = KeyFile("ann key more")}).error().message, HasSubstr(":1:"));
  EXPECT_THAT(ApiKeys::Load({.file = KeyFile("# none\n")}).error().message,
              AllOf(HasSubstr("--api-key-file "), HasSubstr("no keys")));
  for (const char* commented : {"ann # key", "ann #key"}) {
    EXPECT_THAT(ApiKeys::Load({.file = KeyFile(commented)}).error().message, HasSubstr(":1:"));
  }
  EXPECT_THAT(ApiKeys::Load({.file = KeyFile("ann key\nbob key")}).error().message,
              HasSubstr(":2:"));
  EXPECT_THAT(ApiKeys::Load({.keys = {"key"}, .file = KeyFile("ann key")}).error().message,
              HasSubstr("of ann"));
  EXPECT_EQ(ApiKeys::Load({.file = "/nowhere/keys"}).error().code, ErrorCode::kNotFound);
}

// The thread that reads them again serves all clients.
TEST_F(ApiKeysTest, FilesThatCouldKeepItsReaderAreRefused) {
  const std::string pipe = dir_.path() + "/pipe", zeros = dir_.path() + "/zeros";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/zero", zeros.c_str()), 0);
  for (const std::string& path : {pipe, zeros}) {
    EXPECT_THAT(ApiKeys::Load({.file = path}).error().message,
                HasSubstr("--api-key-file: " + path + " is not a regular file"));
    EXPECT_THAT(ApiKeys::Load({.admin_file = path}).error().message,
                HasSubstr("--admin-key-file: " + path + " is not a regular file"));
  }
}

TEST_F(ApiKeysTest, RefusesKeysThatNoClientCouldSend) {
  for (const char* key : {"", "k\n", "\tk", "k\r\nk", "k ", " k", "k\x7f"}) {
    EXPECT_THAT(ApiKeys::Load({.keys = {key}}).error().message, HasSubstr("KVCAKE_API_KEY")) << key;
    EXPECT_THAT(ApiKeys::Load({.admin_key = key}).error().message, HasSubstr("KVCAKE_ADMIN_KEY"))
        << key;
  }
  EXPECT_TRUE(ApiKeys::Load({.keys = {"two words"}, .admin_key = "k\xc3\xa9"}));
}

using Admin = ApiKeys::Admin;

TEST_F(ApiKeysTest, WhatTouchesAllIsForTheAdminKeyAlone) {
  const ApiKeys keys =
      ApiKeys::Load({.file = KeyFile("ann key-a\nann key-a2"), .admin_key = "root"}).value();
  EXPECT_EQ(keys.AdminOf("Bearer root"), Admin::kMay);
  EXPECT_EQ(keys.AdminOf("bearer root"), Admin::kMay);
  EXPECT_EQ(keys.AdminOf("Bearer key-a"), Admin::kOwn);
  for (const char* wrong : {"", "root", "Bearer ", "Bearer roo", "Bearer root ", "Basic root"}) {
    EXPECT_EQ(keys.AdminOf(wrong), Admin::kUnknownKey) << wrong;
  }
  EXPECT_EQ(keys.Tenant("Bearer root"), std::nullopt);

  const ApiKeys alone = ApiKeys::Load({.admin_key = "root"}).value();
  EXPECT_TRUE(alone.open());
  EXPECT_EQ(alone.AdminOf(""), Admin::kUnknownKey);
  EXPECT_EQ(alone.AdminOf("Bearer root"), Admin::kMay);
  EXPECT_EQ(ApiKeys::Load({.admin_file = KeyFile("\n root \n")})->AdminOf("Bearer root"),
            Admin::kMay);
}

TEST_F(ApiKeysTest, WithoutAnAdminKeyNobodyTouchesWhatIsAnotherTenants) {
  EXPECT_EQ(ApiKeys::Load({})->AdminOf(""), Admin::kMay);
  const ApiKeys one = ApiKeys::Load({.keys = {"a", "b"}}).value();  // who share a cache
  EXPECT_EQ(one.AdminOf("Bearer b"), Admin::kMay);
  EXPECT_EQ(one.AdminOf("Bearer c"), Admin::kUnknownKey);
  const ApiKeys two = ApiKeys::Load({.file = KeyFile("ann a\nbob b")}).value();
  EXPECT_EQ(two.AdminOf("Bearer a"), Admin::kOwn);
  EXPECT_EQ(two.AdminOf("Bearer b"), Admin::kOwn);
  const ApiKeys mixed = ApiKeys::Load({.keys = {"a"}, .file = KeyFile("bob b")}).value();
  EXPECT_EQ(mixed.AdminOf("Bearer a"), Admin::kMayNot);
  EXPECT_EQ(mixed.AdminOf("Bearer b"), Admin::kOwn);
}

TEST_F(ApiKeysTest, RefusesAdminKeysThatAreNoneOrSomebodyElses) {
  EXPECT_THAT(ApiKeys::Load({.file = KeyFile("ann key"), .admin_key = "key"}).error().message,
              HasSubstr("of ann"));
  EXPECT_THAT(ApiKeys::Load({.keys = {"other", "key"}, .admin_key = "key"}).error().message,
              HasSubstr("a key of clients too"));
  EXPECT_THAT(ApiKeys::Load({.admin_file = KeyFile(" \n")}).error().message, HasSubstr("no key"));
  EXPECT_THAT(ApiKeys::Load({.admin_key = "a", .admin_file = KeyFile("b")}).error().message,
              HasSubstr("both"));
  EXPECT_EQ(ApiKeys::Load({.admin_file = "/nowhere/key"}).error().code, ErrorCode::kNotFound);
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
