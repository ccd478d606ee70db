// How kvcake bench gets its subcommands.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "app/flags.h"
#include "base/status.h"

namespace kvcake {

// For a file that results are written to once there are some, which may take hours.
inline CLI::Validator ResultFile() {
  return CLI::Validator(
      [](std::string& path) {
        std::error_code none;
        return std::filesystem::is_directory(path, none)
                   ? path + " is a directory: name a file in it"
                   : std::string();
      },
      "FILE");
}

inline void AddJsonFile(CLI::App& command, std::string* path) {
  command.add_option("--json", *path, "also write the results to this file")->check(ResultFile());
}

// Adds a subcommand that runs `body` on its own options.
template <typename Options>
CLI::App* AddBench(CLI::App* parent, const char* name, const char* help, int* exit_code,
                   Status (*body)(const Options&), std::shared_ptr<Options> options) {
  CLI::App* command = parent->add_subcommand(name, help);
  command->callback([options, exit_code, body] {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // rows are kept as they come, in files too
    if (const Status status = body(*options); !status) *exit_code = Fatal(status.error());
  });
  command->add_option("--threads", options->threads, "compute threads (default: every core)")
      ->check(CLI::Range(1, 1024));
  return command;
}

}  // namespace kvcake
