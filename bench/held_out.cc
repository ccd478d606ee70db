#include "bench/held_out.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace kvcake::bench {

Result<std::string> ReadWholeText(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  if (text.str().empty()) {
    return Fail(ErrorCode::kInvalidArgument, "cannot read {}, or it is empty", path.string());
  }
  return text.str();
}

Result<std::vector<std::string>> ReadHeldOut(const std::string& dir) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const auto& path = entry.path();
    if (path.extension() == ".txt" && path.filename() != "names.txt") paths.push_back(path);
  }
  if (paths.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "no held-out text (*.txt) in {}: give a directory of it with --text", dir);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    ASSIGN_OR_RETURN(texts.emplace_back(), ReadWholeText(path));
  }
  return texts;
}

}  // namespace kvcake::bench
