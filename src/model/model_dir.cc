#include "model/model_dir.h"

#include <dirent.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

namespace kvcake {

namespace {

struct ForeignWeights {
  std::string_view ending;
  const char* remedy;
};
constexpr ForeignWeights kForeign[] = {
    {".gguf", "GGUF weights are not supported; use the Hugging Face original with safetensors"},
    {".bin",
     "PyTorch weights are not supported; let transformers save them as safetensors: "
     "AutoModelForCausalLM.from_pretrained(DIR, torch_dtype=\"auto\").save_pretrained(OUT)"},
    {".pth", "PyTorch weights are not supported; use the Hugging Face version with safetensors"},
};

}  // namespace

Status CheckModelDir(const std::string& dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(dir.c_str()), closedir);
  if (!listing) {
    const int error = errno;
    for (const ForeignWeights& foreign : kForeign) {
      if (!dir.ends_with(foreign.ending)) continue;
      return Fail(ErrorCode::kUnsupported, "{}: {}", dir, foreign.remedy);
    }
    if (error == ENOENT) {
      return Fail(ErrorCode::kNotFound,
                  "cannot open model directory {}: {} (nothing is downloaded: hf download NAME "
                  "--local-dir DIR does that)",
                  dir, std::strerror(error));
    }
    return Fail(ErrorCode::kIo, "cannot open model directory {}: {}", dir, std::strerror(error));
  }
  const ForeignWeights* found = nullptr;
  std::string file;
  while (const dirent* entry = readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(".safetensors")) return {};
    for (const ForeignWeights& foreign : kForeign) {
      // The table's order decides and then the names', whatever the directory's is.
      if (!name.ends_with(foreign.ending) || (found != nullptr && found < &foreign)) continue;
      if (found == &foreign && file < name) continue;
      found = &foreign;
      file = name;
    }
  }
  if (found == nullptr) return {};
  return Fail(ErrorCode::kUnsupported, "{}/{}: {}", dir, file, found->remedy);
}

}  // namespace kvcake
