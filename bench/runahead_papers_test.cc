#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"
#include "bench/runahead.h"

namespace kvcake::bench {
namespace {

TEST(RunaheadPapers, RefusesATimelineOfAModelThatHasNone) {
  const TempDir dir;
  RunaheadPapersOptions options;
  options.tables = SourceDir() + "/bench/papers";
  options.profiles = SourceDir() + "/bench/profiles/kvr";
  options.model = "Llama 30B";
  options.timeline = dir.path() + "/timeline.svg";
  const Status ran = RunRunaheadPapers(options);
  ASSERT_FALSE(ran);
  EXPECT_THAT(ran.error().message, testing::HasSubstr("--timeline"));
}

}  // namespace
}  // namespace kvcake::bench
