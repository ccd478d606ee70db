#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "model/safetensors_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class SafetensorsTest : public SafetensorsDirTest {
 protected:
  void ExpectRefused(const json& header, size_t data_bytes, const std::string& part,
                     ErrorCode code = ErrorCode::kCorrupt) const {
    Write("model.safetensors", FileBytes(header.dump(), std::string(data_bytes, 'x')));
    const auto files = TensorFiles::Open(dir_);
    ASSERT_FALSE(files) << header;
    EXPECT_EQ(files.error().code, code) << files.error().message;
    EXPECT_THAT(files.error().message, HasSubstr(part));
    EXPECT_THAT(files.error().message, HasSubstr("model.safetensors"));
  }
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
  const auto absent = files->Get("z", {});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().message, HasSubstr("model.safetensors: no tensor z"));
}

// Masks and positions that old checkpoints carry.
TEST_F(SafetensorsTest, PassesOverWhatNoModelReads) {
  const json header = {{"position_ids", Tensor("I64", {1, 2}, 0, 16)},
                       {"a.weight", Tensor("BF16", {2}, 16, 20)},
                       {"mask", Tensor("BOOL", {3}, 20, 23)}};
  Write("model.safetensors", FileBytes(header.dump(), std::string(23, 'x')));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->tensors().size(), 1u);
  EXPECT_TRUE(files->Get("a.weight", std::vector<int64_t>{2}));
}

TEST_F(SafetensorsTest, AnIndexMayNameWhatNoModelReads) {
  const json first = {{"a.weight", Tensor("BF16", {2}, 0, 4)}};
  const json second = {{"position_ids", Tensor("I64", {1}, 0, 8)},
                       {"b.weight", Tensor("BF16", {2}, 8, 12)}};
  Write("1.safetensors", FileBytes(first.dump(), std::string(4, 'x')));
  Write("2.safetensors", FileBytes(second.dump(), std::string(12, 'x')));
  json index = {{"weight_map",
                 {{"a.weight", "1.safetensors"},
                  {"b.weight", "2.safetensors"},
                  {"position_ids", "2.safetensors"}}}};
  Write("model.safetensors.index.json", index.dump());
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->tensors().size(), 2u);
  index["weight_map"]["position_ids"] = "1.safetensors";
  Write("model.safetensors.index.json", index.dump());
  const auto elsewhere = TensorFiles::Open(dir_);
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("tensor position_ids is not in 1.safetensors"));
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  ExpectRefused({{"a.weight", Tensor("I64", {2}, 0, 16)}}, 16, "tensor a.weight: dtype I64",
                ErrorCode::kUnsupported);
  ExpectRefused({{"a", Tensor("I65", {2}, 0, 16)}}, 16, "tensor a: dtype I65",
                ErrorCode::kUnsupported);
  ExpectRefused({{"a", Tensor("I64", {2}, 0, 8)}}, 8, "I64 of shape [2] does not take 8 bytes");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 12)}}, 12, "does not take 12 bytes");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}}, 7, "truncated");
  ExpectRefused({{"a", Tensor("F32", {2}, 8, 0)}}, 8, "data_offsets");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}, {"b", Tensor("F32", {2}, 4, 12)}}, 12,
                "overlaps");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}, {"b", Tensor("F32", {2}, 12, 20)}}, 20, "hole");
  ExpectRefused({{"a", Tensor("F32", {2}, 0, 8)}}, 12, "12 bytes of data");
  ExpectRefused({{"a", Tensor("F32", {-2}, 0, 8)}}, 8, "dimension");
  ExpectRefused({{"a", Tensor("F32", {1.5}, 0, 8)}}, 8, "dimension");
  ExpectRefused(json::object(), 4, "4 bytes of data");
  ExpectRefused({{"a", Tensor("F32", {-1}, 0, 8)}}, 8, "tensor a: a dimension");
  const auto with_offsets = [](const char* offsets) {
    return json{{"a", {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", json::parse(offsets)}}}};
  };
  for (const char* offsets : {"[-8, 0]", "[0, 18446744073709551616]", "[0, 8.0]", "[0]",
                              "[0, 8, 8]", "\"0\"", "[\"0\", \"8\"]", "null"}) {
    ExpectRefused(with_offsets(offsets), 8, "tensor a: data_offsets are no two offsets");
  }
  for (const char* offsets : {"[18446744073709551608, 18446744073709551615]",
                              "[8, 18446744073709551615]", "[16, 24]", "[1, 9]"}) {
    ExpectRefused(with_offsets(offsets), 8, "lie outside the 8 bytes");
  }
  // 2^62 x 4 and 2^32 x 2^32 both wrap to 0.
  ExpectRefused({{"a", Tensor("F32", {1ull << 62}, 0, 0)}}, 0, "does not take 0 bytes");
  ExpectRefused({{"a", Tensor("BF16", {1ull << 32, 1ull << 32}, 0, 0)}}, 0, "does not take");
  ExpectRefused({{"a", Tensor("F32", json::array({1, 1, 1, 1, 1, 1, 1, 1, 1}), 0, 4)}}, 4, "shape");
  ExpectRefused({{"a", 3}}, 0, "entry");
  ExpectRefused({{"a\nb", Tensor("F32", {1}, 0, 4)}}, 4, "control");
  ExpectRefused(json::array(), 0, "no object");
}

TEST_F(SafetensorsTest, RefusesQuantisedWeightsByName) {
  const auto refused = [&](const std::string& name, const char* dtype, const std::string& part) {
    ExpectRefused({{name, Tensor(dtype, {4}, 0, 16)}}, 16, part, ErrorCode::kUnsupported);
    ExpectRefused({{name, Tensor(dtype, {4}, 0, 16)}}, 16, "tensor " + name,
                  ErrorCode::kUnsupported);
  };
  for (const char* dtype : {"F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    refused("a.weight", dtype, "FP8 weights are not supported; use the bf16 original");
  }
  for (const char* dtype : {"I8", "U8", "I32", "U32", "I64"}) {
    refused("a.weight", dtype, "integer (quantised) weights are not supported");
  }
  refused("a.weight", "F64", "kvcake reads BF16, F16 and F32");
  refused("a.qweight", "I32", "GPTQ or AWQ weights are not supported; use the bf16 original");
  refused("a.qzeros", "I32", "GPTQ or AWQ");
  refused("a.g_idx", "I32", "GPTQ");
  refused("a.weight_scale_inv", "F32", "FP8");
  refused("a.weight.quant_map", "F32", "bitsandbytes");
}

TEST_F(SafetensorsTest, RefusesNamesThatAppearTwice) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  Write("model.safetensors", FileBytes(R"({"a":)" + entry + R"(,"a":)" + entry + "}", "1234"));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_FALSE(files);
  EXPECT_THAT(files.error().message, HasSubstr("model.safetensors: header: \"a\" is named twice"));
}

// Peak memory of this process so far.
int64_t PeakBytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

TEST_F(SafetensorsTest, TakesNoMemoryForWhatAFileOnlyClaims) {
  const auto length = [](uint64_t bytes) {
    std::string text(8, '\0');
    for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(bytes >> (8 * i));
    return text;
  };
  const int64_t before = PeakBytes();
  for (const uint64_t claim :
       {uint64_t{90} << 20, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    Write("model.safetensors", length(claim) + std::string(1016, ' '));
    const auto files = TensorFiles::Open(dir_);
    ASSERT_FALSE(files);
    EXPECT_THAT(files.error().message, HasSubstr(std::to_string(claim) + " bytes (the file has"));
  }
  // Eight sparse gigabytes, of which the header would be one byte more than the limit.
  Write("model.safetensors", length((uint64_t{100} << 20) + 1));
  std::filesystem::resize_file(dir_ + "/model.safetensors", uint64_t{8} << 30);
  EXPECT_FALSE(TensorFiles::Open(dir_));
  // A header that is all there, with more values than any model has: counted before it is parsed.
  std::string bomb = "{\"a\":[";
  for (int i = 0; i < (3 << 20); ++i) bomb += "{},";
  Write("model.safetensors", FileBytes(bomb + "0]}", ""));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_FALSE(files);
  EXPECT_THAT(files.error().message, HasSubstr("values"));
  EXPECT_LT(PeakBytes() - before, int64_t{100} << 20);
}

TEST_F(SafetensorsTest, RefusesBrokenFiles) {
  EXPECT_EQ(TensorFiles::Open(dir_).error().code, ErrorCode::kNotFound);
  const auto refused = [&](const std::string& part) {
    const auto files = TensorFiles::Open(dir_);
    ASSERT_FALSE(files) << part;
    EXPECT_THAT(files.error().message, HasSubstr(part));
    EXPECT_THAT(files.error().message, HasSubstr(dir_ + "/model.safetensors"));
  };
  const auto bytes_refused = [&](const std::string& bytes, const std::string& part) {
    Write("model.safetensors", bytes);
    refused(part);
  };
  bytes_refused("", "is empty");
  bytes_refused("1234567", "too short");
  bytes_refused(FileBytes("{", ""), "not JSON");
  bytes_refused(FileBytes("", ""), "not JSON");
  bytes_refused(FileBytes("{\"\xff\": 1}", ""), "not JSON");
  bytes_refused(std::string("\x10\0\0\0\0\0\0\0{}", 10), "would have 16 bytes");
  bytes_refused("version https://git-lfs.github.com/spec/v1\n", "git lfs pull");
  bytes_refused("GGUF\x03" + std::string(40, '\0'), "GGUF, which is not supported");
  bytes_refused("PK\x03\x04" + std::string(40, '\0'), "PyTorch");
  std::filesystem::remove(dir_ + "/model.safetensors");
  std::filesystem::create_directory(dir_ + "/model.safetensors");
  refused("not a regular file");
  std::filesystem::remove(dir_ + "/model.safetensors");
  ASSERT_EQ(mkfifo((dir_ + "/model.safetensors").c_str(), 0600), 0);
  refused("not a regular file");
  std::filesystem::remove(dir_ + "/model.safetensors");
  std::filesystem::create_symlink("absent", dir_ + "/model.safetensors");
  refused("cannot open");
}

TEST_F(SafetensorsTest, SaysWhenAFileMayNotBeRead) {
  Write("model.safetensors", FileBytes("{}", ""));
  std::filesystem::permissions(dir_ + "/model.safetensors", std::filesystem::perms::none);
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const auto files = TensorFiles::Open(dir_);
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().code, ErrorCode::kIo);
  EXPECT_THAT(files.error().message, HasSubstr("model.safetensors: Permission denied"));
}

TEST_F(SafetensorsTest, FollowsLinksAsInADownloadCache) {
  std::filesystem::create_directories(dir_ + "/blobs");
  std::filesystem::create_directories(dir_ + "/snapshots/main");
  Write("blobs/1f2e", FileBytes(json{{"a", Tensor("F32", {1}, 0, 4)}}.dump(), "1234"));
  std::filesystem::create_symlink("../../blobs/1f2e", dir_ + "/snapshots/main/model.safetensors");
  const auto files = TensorFiles::Open(dir_ + "/snapshots/main");
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_TRUE(files->tensors().contains("a"));
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
  refused(R"({"weight_map": {"a": "one.safetensors\u0000"}})", "no file name");
  refused(R"({"weight_map": [1]})", "no weight_map");
  refused(R"({"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}})", "named twice");
  refused("[", "model.safetensors.index.json: not JSON");
  refused(R"({"weight_map": {"a": "absent.safetensors"}})",
          "model.safetensors.index.json names a shard that cannot be read: cannot open");
  refused(R"({"weight_map": {"b": "one.safetensors"}})", "tensor b is not in one.safetensors");
  refused(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})", "another shard");
  Write("three.safetensors", FileBytes(json{{"c", Tensor("F32", {1}, 0, 4)}}.dump(), "1234"));
  refused(R"({"weight_map": {"a": "three.safetensors", "c": "one.safetensors"}})",
          "tensor a is not in three.safetensors");
}

TEST_F(SafetensorsTest, WhatWasReleasedCanBeReadAgain) {
  const std::string data(100'000, 'y');
  Write("model.safetensors",
        FileBytes(json{{"a", Tensor("BF16", {50'000}, 0, 100'000)}}.dump(), data));
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files);
  const auto view = files->Get("a", std::vector<int64_t>{50'000});
  ASSERT_TRUE(view);
  TensorFiles::ReadAhead(view->bytes.subspan(1));
  TensorFiles::ReadAhead({});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(view->bytes.data()), 100'000), data);
    files->Release();
  }
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
