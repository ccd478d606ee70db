#include "store/known_keys.h"

#include <gtest/gtest.h>

#include "store/tier_testing.h"

namespace kvcake {
namespace {

using testing_util::Chain;

TEST(KnownKeysTest, KnowsWhatWasAddedAndNotRemoved) {
  KnownKeys known(10);
  const auto chain = Chain(3);
  known.Add(chain[0]);
  known.Add(chain[2]);
  EXPECT_EQ(known.Contains(chain), (std::vector<bool>{true, false, true}));
  known.Remove(chain[0]);
  known.Remove(chain[1]);
  EXPECT_EQ(known.Contains(chain), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(known.size(), 1u);
}

TEST(KnownKeysTest, ForgetsWhatWasUsedLongestAgo) {
  KnownKeys known(3);
  const auto chain = Chain(5);
  for (int i = 0; i < 3; ++i) known.Add(chain[i]);
  known.Add(chain[0]);  // a use
  known.Add(chain[3]);
  EXPECT_EQ(known.Contains(chain), (std::vector<bool>{true, false, true, true, false}));
  known.Add(chain[4]);
  EXPECT_EQ(known.Contains(chain), (std::vector<bool>{true, false, false, true, true}));
  EXPECT_EQ(known.size(), 3u);
}

}  // namespace
}  // namespace kvcake
