// What the tests of the program share: it is run as a user runs it, in a directory of the test's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/temp_dir_testing.h"

namespace kvcake {

struct Outcome {
  int exit_code;
  std::string out, err;
};

class ProgramTest : public testing::Test {
 protected:
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The path of a new file of dir_.
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << text;
    return dir_ + "/" + name;
  }
  // Whether it is started by an emulator, and cannot start itself.
  static bool IsEmulated() { return std::string(KVCAKE_PROGRAM).find(' ', 1) != std::string::npos; }
  // `arguments` as the shell reads them.
  Outcome Run(const std::string& arguments) const {
    const std::string command =
        std::string(KVCAKE_PROGRAM) + " " + arguments + " > " + dir_ + "/out 2> " + dir_ + "/err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), Read(dir_ + "/out"), Read(dir_ + "/err")};
  }
  nlohmann::json RunJson(const std::string& arguments, int exit_code = 0) const {
    const Outcome outcome = Run(arguments + " --json");
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  // The chunks of dir_/store, by path.
  std::vector<std::string> ChunkFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/store")) {
      if (entry.is_regular_file() && entry.path().filename().string().size() == 64) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
};

}  // namespace kvcake
