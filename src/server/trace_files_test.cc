#include "server/trace_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace kvcake {
namespace {

namespace fs = std::filesystem;

class TraceFilesTest : public testing::Test {
 protected:
  TraceFilesTest() { fs::remove_all(dir_); }
  ~TraceFilesTest() override { fs::remove_all(dir_); }

  // Opens, writes, and waits until all is written.
  void Write(size_t files_max, const std::vector<std::string>& ids) const {
    const auto files = TraceFiles::Open(dir_, files_max).value();
    for (const std::string& id : ids) files->Write(id, Report());
  }
  static RestoreReport Report() {
    RestoreReport report{};
    report.AddTimeline({.lane = "compute", .first_token = 0, .tokens = 128, .end_s = 0.5});
    return report;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) names.insert(entry.path().filename());
    return names;
  }

  const std::string dir_ = testing::TempDir() + "kvcake-traces-" + std::to_string(getpid());
};

TEST_F(TraceFilesTest, WritesWhatRunWrites) {
  Write(8, {"cmpl-1"});
  std::ifstream file(dir_ + "/cmpl-1.trace.json");
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["traceEvents"].back()["args"]["tokens"], "[0, 128)");
  EXPECT_EQ(json["traceEvents"].back()["dur"], 5e5);
}

TEST_F(TraceFilesTest, TheOldestGoAlsoThoseOfEarlierProcesses) {
  Write(3, {"a", "b"});
  fs::last_write_time(dir_ + "/a.trace.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  std::ofstream(dir_ + "/notes.txt") << "not ours";
  Write(3, {"c", "d", "e"});
  EXPECT_EQ(Names(),
            (std::set<std::string>{"c.trace.json", "d.trace.json", "e.trace.json", "notes.txt"}));
  Write(1, {"f"});
  EXPECT_EQ(Names(), (std::set<std::string>{"f.trace.json", "notes.txt"}));
}

// By their times, not by their names: ids are random.
TEST_F(TraceFilesTest, OfThoseOfEarlierProcessesTheNewestStay) {
  Write(8, {"a", "b", "c"});
  const auto now = fs::file_time_type::clock::now();
  for (const auto& [id, hours] : {std::pair("b", 3), std::pair("c", 2), std::pair("a", 1)}) {
    fs::last_write_time(dir_ + "/" + id + ".trace.json", now - std::chrono::hours(hours));
  }
  Write(3, {"d"});
  EXPECT_EQ(Names(), (std::set<std::string>{"a.trace.json", "c.trace.json", "d.trace.json"}));
}

TEST_F(TraceFilesTest, FailuresFailNobody) {
  const auto files = TraceFiles::Open(dir_, 3).value();
  fs::remove_all(dir_);
  std::ofstream(dir_) << "a file where the directory was";
  files->Write("a", Report());
  files->Write("b", Report());
  const auto none = TraceFiles::Open(dir_, 3);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("--trace-dir"), std::string::npos);
}

}  // namespace
}  // namespace kvcake
