// Where a store's codec looks for its tables, and what is said where they are not to be had.
#include "store/store_codec.h"

#include <gmock/gmock.h>

#include "base/temp_dir_testing.h"
#include "store/encoded_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class StoreCodecTest : public testing::Test {
 protected:
  StoreCodecTest() { EXPECT_TRUE(SaveTables(tables_, file_)); }

  const KvLayout layout_ = SmallLayout();
  const TempDir dir_;
  const std::string file_ = dir_.path() + "/cachegen-1.tables";
  const CodecTables tables_ = NaturalTables(*FindCodec(Codec::kCacheGen), layout_).value();
};

TEST_F(StoreCodecTest, TablesAreThoseOfAFileOfADirectoryOrOfTheStore) {
  const StoreCodec loaded[] = {StoreCodec::Load(Codec::kCacheGen, file_, "/elsewhere"),
                               StoreCodec::Load(Codec::kCacheGen, dir_.path(), "/elsewhere"),
                               StoreCodec::Load(Codec::kCacheGen, "", dir_.path())};
  for (const StoreCodec& codec : loaded) {
    EXPECT_EQ(codec.tables_path, file_);
    EXPECT_EQ(codec.tables_digest, TablesDigest(tables_));
    EXPECT_TRUE(codec.Make(layout_));
  }
}

TEST_F(StoreCodecTest, TablesThatCannotBeHadAreNamed) {
  const auto why = [&](const std::string& path, const KvLayout& layout) {
    const auto made = StoreCodec::Load(Codec::kCacheGen, path, "").Make(layout);
    EXPECT_FALSE(made);
    return made ? "" : made.error().message;
  };
  EXPECT_THAT(why("", layout_), HasSubstr("--codec-tables"));
  EXPECT_THAT(why(dir_.path() + "/none", layout_), HasSubstr(dir_.path() + "/none"));
  KvLayout other = layout_;
  ++other.layers;
  EXPECT_THAT(why(file_, other), HasSubstr(file_)) << "as they are another model's";
}

}  // namespace
}  // namespace kvcake
