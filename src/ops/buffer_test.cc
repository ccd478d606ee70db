#include "ops/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

namespace kvcake {
namespace {

constexpr uint64_t kTooMuch = uint64_t{1} << 60;  // more than there are addresses

bool Mapped(const std::byte* page) {
  unsigned char resident = 0;
  return mincore(const_cast<std::byte*>(page), 1, &resident) == 0;
}

TEST(BufferTest, MemoryIsZeroAndGoesWithItsOwner) {
  std::optional<Buffer> first(std::in_place, 3 << 20);
  std::byte* const data = first->data();
  EXPECT_TRUE(
      std::all_of(data, data + first->size(), [](std::byte b) { return b == std::byte{0}; }));
  data[first->size() - 1] = std::byte{7};
  std::optional<Buffer> second(std::move(*first));
  EXPECT_EQ(first->data(), nullptr);
  first.reset();
  EXPECT_EQ(second->data(), data);
  EXPECT_EQ(second->as<char>()[second->size() - 1], 7);
  EXPECT_TRUE(Mapped(data));
  second.reset();
  EXPECT_FALSE(Mapped(data));
}

TEST(BufferTest, MemoryThatTheSystemRefusesIsAnErrorWithItsSize) {
  const auto refused = Buffer::Create(kTooMuch, Memory::kHost);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message,
            "cannot map 1152921504606846976 bytes of memory: Cannot allocate memory");
}

TEST(BufferDeathTest, MemoryThatMustBeThereEndsTheProcessWithTheError) {
  EXPECT_EXIT(Buffer buffer(kTooMuch), testing::ExitedWithCode(1),
              "kvcake: cannot map 1152921504606846976 bytes");
}

}  // namespace
}  // namespace kvcake
