#include "model/tensor_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "model/safetensors_testing.h"
#include "model/weights.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TensorScanTest : public SafetensorsDirTest {
 protected:
  TensorFiles Open() const { return TensorFiles::Open(dir_).value(); }
};

TEST_F(TensorScanTest, DigestIgnoresSharding) {
  const std::string data = "0123456789abcdef";
  const auto digest = [&](const std::string& bytes, const char* dtype) {
    const json header = {{"a", Tensor(dtype, {2}, 0, 8)}, {"b", Tensor("BF16", {4}, 8, 16)}};
    Write("model.safetensors", FileBytes(header.dump(), bytes));
    const TensorFiles files = Open();
    return TensorScan(files).WeightsDigest();
  };
  const Digest whole = digest(data, "F32");
  std::string changed = data;
  changed[11] ^= 1;
  EXPECT_NE(digest(changed, "F32"), whole);
  EXPECT_EQ(digest(data, "F32"), whole);
  // On-disk identity: it never changes.
  EXPECT_EQ(ToHex(whole), "4d17dbdd6d97c837841827ee1d562cf64a20c033096ea49628aabaa7b1d5ae13");
  std::filesystem::remove(dir_ + "/model.safetensors");
  Write("s1", FileBytes(json{{"b", Tensor("BF16", {4}, 0, 8)}}.dump(), data.substr(8)));
  Write("s2", FileBytes(json{{"a", Tensor("F32", {2}, 0, 8)}}.dump(), data.substr(0, 8)));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "s2", "b": "s1"}})");
  const TensorFiles sharded = Open();
  EXPECT_EQ(TensorScan(sharded).WeightsDigest(), whole);
}

// Tensors larger than what is hashed at once, one bad value anywhere in one of them.
TEST_F(TensorScanTest, FindsTheOneValueThatIsNoNumber) {
  struct Case {
    const char* dtype;
    uint32_t bits;
    bool finite;
  };
  std::mt19937 random(3);
  for (const Case& c : std::vector<Case>{{"BF16", 0x7f7f, true},
                                         {"BF16", 0xff80, false},
                                         {"BF16", 0x7fc1, false},
                                         {"F16", 0x7bff, true},
                                         {"F16", 0x7c00, false},
                                         {"F16", 0xfe00, false},
                                         {"F32", 0x7f7fffff, false},
                                         {"F32", 0xff800000, false},
                                         {"F32", 0x7f800001, false},
                                         {"F32", 0x7f7f8000, false},
                                         {"F32", 0xff7f8000, false},
                                         {"F32", 0x7f7f7fff, true}}) {
    const uint64_t width = c.dtype == std::string("F32") ? 4 : 2, values = 100'003;
    const uint64_t at = random() % values;
    SCOPED_TRACE(testing::Message() << c.dtype << " " << c.bits << " at " << at);
    std::string data(2 * values * width, '\x11');
    std::memcpy(data.data() + (values + at) * width, &c.bits, width);
    const json header = {{"a", Tensor(c.dtype, {values}, 0, data.size() / 2)},
                         {"b", Tensor(c.dtype, {values}, data.size() / 2, data.size())}};
    Write("model.safetensors", FileBytes(header.dump(), data));
    const TensorFiles files = Open();
    TensorScan scan(files);
    EXPECT_TRUE(scan.Finite("a"));
    EXPECT_EQ(scan.Finite("b"), c.finite);
  }
}

// Other software's masks and buffers may hold infinities; they are nothing to us.
TEST_F(TensorScanTest, WeightsAreRefusedOnlyWhereAModelAsks) {
  const std::string data("\x80\x7f\x01\x00", 4);  // infinity; a small number
  Write("model.safetensors",
        FileBytes(
            json{{"bad", Tensor("BF16", {1}, 0, 2)}, {"good", Tensor("BF16", {1}, 2, 4)}}.dump(),
            data));
  const TensorFiles files = Open();
  const std::vector<int64_t> shape = {1};
  const WeightSource source = WeightSource::FromFiles(files);
  ASSERT_TRUE(source.get("good", shape));
  source.release();
  EXPECT_EQ(source.digest().value(), TensorScan(files).WeightsDigest());
  ASSERT_TRUE(source.get("bad", shape));
  const auto digest = source.digest();
  ASSERT_FALSE(digest);
  EXPECT_EQ(digest.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(digest.error().message, HasSubstr("model.safetensors: tensor bad holds NaN"));
}

}  // namespace
}  // namespace kvcake
