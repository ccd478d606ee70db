#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string FileBytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header + data;
}

json Tensor(const char* dtype, const json& shape, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/kvcake_safetensors_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }
  void ExpectRefused(const json& header, size_t data_bytes, const std::string& part,
                     ErrorCode code = ErrorCode::kCorrupt) const {
    Write("model.safetensors", FileBytes(header.dump(), std::string(data_bytes, 'x')));
    const auto files = TensorFiles::Open(dir_);
    ASSERT_FALSE(files) << header;
    EXPECT_EQ(files.error().code, code) << files.error().message;
    EXPECT_THAT(files.error().message, HasSubstr(part));
    EXPECT_THAT(files.error().message, HasSubstr("model.safetensors"));
  }

  std::string dir_;
};

TEST_F(SafetensorsTest, ReadsOneFile) {
  const json header = {{"__metadata__", {{"format", "pt"}}},
                       {"a", Tensor("BF16", {2, 3}, 0, 12)},
                       {"b", Tensor("F32", json::array(), 12, 16)},
                       {"c", Tensor("F16", {0}, 16, 16)}};
  Write("model.safetensors", FileBytes(header.dump(), "0123456789abcdef"));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->tensors().size(), 3u);
  const auto a = files->Get("a", std::vector<int64_t>{2, 3});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->dtype, DType::kBf16);
  EXPECT_EQ(a->elements(), 6);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a->bytes.data()), 12), "0123456789ab");
  EXPECT_EQ(files->Get("b", {})->elements(), 1);
  const auto wrong = files->Get("a", std::vector<int64_t>{3, 2});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(wrong.error().message, HasSubstr("tensor a has shape [2, 3]"));
  EXPECT_EQ(files->Get("z", {}).error().code, ErrorCode::kNotFound);
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  ExpectRefused({{"a", Tensor("I64", {2}, 0, 16)}}, 16, "tensor a: dtype I64",
                ErrorCode::kUnsupported);
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 12)}}, 12, "does not take 12 bytes");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}}, 7, "truncated");
  ExpectRefused({{"a", Tensor("F32", {2}, 8, 0)}}, 8, "data_offsets");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}, {"b", Tensor("F32", {2}, 4, 12)}}, 12,
                "overlaps");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}, {"b", Tensor("F32", {2}, 12, 20)}}, 20, "hole");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}}, 12, "12 bytes of data");
  ExpectRefused({{"a", Tensor("F32", {-2}, 0, 8)}}, 8, "dimension");
  ExpectRefused({{"a", Tensor("F32", {1.5}, 0, 8)}}, 8, "dimension");
  // 2^62 x 4 and 2^32 x 2^32 both wrap to 0.
  ExpectRefused({{"a", Tensor("F32", {1ull << 62}, 0, 0)}}, 0, "does not take 0 bytes");
  ExpectRefused({{"a", Tensor("BF16", {1ull << 32, 1ull << 32}, 0, 0)}}, 0, "does not take");
  ExpectRefused({{"a", Tensor("F32", json::array({1, 1, 1, 1, 1, 1, 1, 1, 1}), 0, 4)}}, 4, "shape");
  ExpectRefused({{"a", 3}}, 0, "entry");
  ExpectRefused({{"a\nb", Tensor("F32", {1}, 0, 4)}}, 4, "control");
  ExpectRefused(json::array(), 0, "no object");
}

TEST_F(SafetensorsTest, RefusesBrokenFiles) {
  EXPECT_EQ(TensorFiles::Open(dir_).error().code, ErrorCode::kNotFound);
  std::string huge = FileBytes("{}", "");
  huge[7] = 0x7f;
  for (const std::string& bytes : {std::string(), std::string("1234567"), huge, FileBytes("{", ""),
                                   FileBytes("", ""), std::string("\x10\0\0\0\0\0\0\0{}", 10)}) {
    Write("model.safetensors", bytes);
    EXPECT_FALSE(TensorFiles::Open(dir_)) << bytes.size();
  }
}

TEST_F(SafetensorsTest, RefusesBrokenIndexes) {
  const auto refused = [&](const std::string& index, const std::string& part) {
    Write("model.safetensors.index.json", index);
    const auto files = TensorFiles::Open(dir_);
    ASSERT_FALSE(files) << index;
    EXPECT_THAT(files.error().message, HasSubstr(part));
  };
  const std::string shard = FileBytes(json{{"a", Tensor("F32", {1}, 0, 4)}}.dump(), "1234");
  Write("one.safetensors", shard);
  Write("two.safetensors", shard);
  refused("{}", "weight_map");
  refused(R"({"weight_map": {"a": "../one.safetensors"}})", "no file name");
  refused(R"({"weight_map": {"a": "/etc/passwd"}})", "no file name");
  refused(R"({"weight_map": {"a": ".."}})", "no file name");
  refused(R"({"weight_map": {"a": 5}})", "no file name");
  refused(R"({"weight_map": {"a": "absent.safetensors"}})", "absent.safetensors");
  refused(R"({"weight_map": {"b": "one.safetensors"}})", "tensor b is not in one.safetensors");
  refused(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})", "another shard");
}

TEST_F(SafetensorsTest, DigestIgnoresSharding) {
  const std::string data = "0123456789abcdef";
  const auto digest = [&](const std::string& bytes, const char* dtype) {
    const json header = {{"a", Tensor(dtype, {2}, 0, 8)}, {"b", Tensor("BF16", {4}, 8, 16)}};
    Write("model.safetensors", FileBytes(header.dump(), bytes));
    auto files = TensorFiles::Open(dir_);
    EXPECT_TRUE(files);
    return WeightsDigest(*files);
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
  const auto sharded = TensorFiles::Open(dir_);
  ASSERT_TRUE(sharded) << sharded.error().message;
  EXPECT_EQ(WeightsDigest(*sharded), whole);
}

TEST_F(SafetensorsTest, SurvivesRandomDamage) {
  std::mt19937 random(11);
  const json header = {{"a", Tensor("F32", {2}, 0, 8)}, {"b", Tensor("BF16", {4}, 8, 16)}};
  const std::string good = FileBytes(header.dump(), "0123456789abcdef");
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    Write("model.safetensors", bytes);
    const auto files = TensorFiles::Open(dir_);
    if (!files) continue;
    for (const auto& [name, view] : files->tensors()) {
      EXPECT_LE(view.bytes.size(), 16u);
      for (const std::byte b : view.bytes) EXPECT_GE(static_cast<int>(b), 0);
    }
  }
}

}  // namespace
}  // namespace kvcake
