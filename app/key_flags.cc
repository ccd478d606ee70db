#include "app/key_flags.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

#include "app/config_file.h"
#include "base/file_mode.h"

namespace kvcake {
namespace {

void WarnIfOthersRead(const std::string& path) {
  const std::string fault = ModeFault(path, kEverybody);
  if (!fault.empty()) spdlog::warn("the file with keys {} {}", path, fault);
}

// A secret that is not there leaves an empty variable, which is as none to the flags: the server
// would ask nobody for a key.
Status CheckNotEmpty(const char* variable, bool given) {
  const char* const value = std::getenv(variable);
  if (given || value == nullptr || *value != '\0') return {};
  return Fail(
      ErrorCode::kInvalidArgument,
      "{} is set, and empty: give it a key, or unset it where nobody is to be asked for one",
      variable);
}

}  // namespace

void AddKeyFlags(CLI::App& app, KeySources* sources) {
  app.add_option("--api-key", sources->keys,
                 "ask for one of these keys; may be repeated; better said in the environment or a "
                 "file, as everybody sees a command line")
      ->allow_extra_args(false)
      ->envname("KVCAKE_API_KEY");
  app.add_option("--api-key-file", sources->file,
                 "a file of tenants, NAME KEY on each line, whose caches are separate");
  app.add_option("--admin-key", sources->admin_key,
                 "the key for what touches all tenants (/cache/reset); better said in the "
                 "environment or a file, as everybody sees a command line")
      ->envname("KVCAKE_ADMIN_KEY");
  app.add_option("--admin-key-file", sources->admin_file, "a file with that key");
  app.add_option(kConfigKeysFlag, sources->config_file)->group("");
}

Result<ApiKeys> LoadKeys(const KeySources& sources) {
  RETURN_IF_ERROR(CheckNotEmpty("KVCAKE_API_KEY", !sources.keys.empty() || !sources.file.empty()));
  RETURN_IF_ERROR(
      CheckNotEmpty("KVCAKE_ADMIN_KEY", sources.admin_key || !sources.admin_file.empty()));
  for (const std::string& file : {sources.file, sources.admin_file, sources.config_file}) {
    if (!file.empty()) WarnIfOthersRead(file);
  }
  return ApiKeys::Load(sources);
}

}  // namespace kvcake
