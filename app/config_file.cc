#include "app/config_file.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/file_mode.h"

namespace kvcake {
namespace {

// The value of a flag that is given as "--name VALUE" or "--name=VALUE"; empty: it is not.
std::string ValueOf(const std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == flag && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].starts_with(flag + "=")) return arguments[i].substr(flag.size() + 1);
  }
  return "";
}

bool Has(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
  });
}

}  // namespace

void WarnIfOthersRead(const std::string& path) {
  const std::string fault = ModeFault(path, kEverybody);
  if (!fault.empty()) spdlog::warn("the file with keys {} {}", path, fault);
}

Result<std::vector<std::string>> WithConfigFile(std::vector<std::string> arguments) {
  const std::string path = ValueOf(arguments, "--config");
  if (path.empty()) return arguments;
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_file(path);
  } catch (const CLI::Error& error) {
    return Fail(ErrorCode::kInvalidArgument, "--config {}: {}", path, error.what());
  }
  const std::vector<std::string> given = arguments;
  bool keys = false;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // a section begins or ends
    const bool ours = item.parents.empty() ||
                      (item.parents.size() == 1 && !given.empty() && item.parents[0] == given[0]);
    const std::string flag = "--" + item.name;
    if (flag == "--config") {
      return Fail(ErrorCode::kInvalidArgument, "--config {} names another: there may be one", path);
    }
    if (!ours || Has(given, flag)) continue;
    keys = keys || flag == "--api-key" || flag == "--admin-key";
    for (const std::string& input : item.inputs) arguments.push_back(flag + "=" + input);
  }
  if (keys) WarnIfOthersRead(path);
  return arguments;
}

}  // namespace kvcake
