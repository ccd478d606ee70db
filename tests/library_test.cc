// libkvcake.so as its users see it: what it exports, how large its structures are, the example.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/temp_dir_testing.h"
#include "lib/kvcake.h"

namespace kvcake {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the shell command prints.
std::string Output(const std::string& command, const TempDir& dir) {
  const std::string path = dir.path() + "/out";
  EXPECT_EQ(std::system((command + " > " + path).c_str()), 0) << command;
  return Read(path);
}

// As the dynamic linker knows them, with their version; sanitizers' are left out.
std::string Exports(const TempDir& dir) {
  std::istringstream lines(Output(
      "nm -D --defined-only --with-symbol-versions " KVCAKE_LIBRARY " | LC_ALL=C sort -k 3", dir));
  std::string address, kind, name, exported;
  while (lines >> address >> kind >> name) {
    if (kind != "A" && name.find("san") == std::string::npos) exported += name + "\n";
  }
  return exported;
}

#define SIZE_OF(type) std::string(#type " ") + std::to_string(sizeof(type)) + "\n"
std::string Sizes() {
  return SIZE_OF(kvcake_key) + SIZE_OF(kvcake_store) + SIZE_OF(kvcake_options) +
         SIZE_OF(kvcake_request) + SIZE_OF(kvcake_progress_info) + SIZE_OF(kvcake_turn) +
         SIZE_OF(kvcake_slabs) + SIZE_OF(kvcake_write) + SIZE_OF(kvcake_async_write) +
         SIZE_OF(kvcake_stats_info);
}
#undef SIZE_OF

// Programs that were compiled with an earlier header go on: symbols and fields are only added, the
// fields at the end, and this list with them.
TEST(LibraryAbiTest, SymbolsAndSizesAreThoseOfTheList) {
  const TempDir dir;
  EXPECT_EQ(Exports(dir) + Sizes(), Read(KVCAKE_SOURCE_DIR "/tests/library_abi.txt"));
}

TEST(LibraryAbiTest, TheSonameHasTheMajorVersion) {
  const TempDir dir;
  EXPECT_THAT(Output("readelf -d " KVCAKE_LIBRARY, dir), testing::HasSubstr("[libkvcake.so.0]"));
}

TEST(LibraryExampleTest, RestoresBytes) {
  const TempDir dir;
  EXPECT_THAT(Output(KVCAKE_EXAMPLE " " + dir.path() + "/store", dir),
              testing::MatchesRegex("24 chunks: [0-9]+ computed, [0-9]+ loaded\n"));
}

}  // namespace
}  // namespace kvcake
