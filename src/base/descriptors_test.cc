#include "base/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace kvcake {
namespace {

TEST(DescriptorsTest, TheLimitIsRaisedToTheHardOne) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t hard = limit.rlim_max;
  limit.rlim_cur = hard / 2;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), hard);
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, hard);
}

}  // namespace
}  // namespace kvcake
