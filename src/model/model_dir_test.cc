#include "model/model_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/temp_dir_testing.h"
#include "model/safetensors.h"

namespace kvcake {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ModelDirTest, SaysWhatIsThereAndWhatToDo) {
  const TempDir temp;
  const std::string dir = temp.path() + "/model";
  const auto refused = [&](const std::string& path, ErrorCode code, const std::string& part) {
    const Status status = CheckModelDir(path);
    ASSERT_FALSE(status) << part;
    EXPECT_EQ(status.error().code, code);
    EXPECT_THAT(status.error().message, AllOf(HasSubstr(dir), HasSubstr(part)));
  };
  refused(dir, ErrorCode::kNotFound, "No such file or directory (nothing is downloaded: hf ");
  refused(dir + "/none.gguf", ErrorCode::kUnsupported, "none.gguf: GGUF weights are not");
  std::filesystem::create_directory(dir);
  EXPECT_TRUE(CheckModelDir(dir));
  EXPECT_THAT(TensorFiles::Open(dir).error().message, HasSubstr("has neither model.safetensors"));

  std::ofstream(dir + "/pytorch_model-00002-of-00002.bin");
  std::ofstream(dir + "/pytorch_model-00001-of-00002.bin");
  refused(dir, ErrorCode::kUnsupported, "pytorch_model-00001-of-00002.bin: PyTorch weights");
  refused(dir, ErrorCode::kUnsupported, "save_pretrained");
  std::ofstream(dir + "/llama.Q4_K_M.gguf");
  refused(dir, ErrorCode::kUnsupported, "llama.Q4_K_M.gguf: GGUF weights are not supported");
  EXPECT_THAT(TensorFiles::Open(dir).error().message, HasSubstr("GGUF"));
  refused(dir + "/llama.Q4_K_M.gguf", ErrorCode::kUnsupported, "GGUF weights are not supported");
  std::ofstream(dir + "/config.json");
  refused(dir + "/config.json", ErrorCode::kIo, "Not a directory");

  std::ofstream(dir + "/model-00001-of-00002.safetensors");
  EXPECT_TRUE(CheckModelDir(dir));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace kvcake
