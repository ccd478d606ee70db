#include <gtest/gtest.h>

namespace boost {
void assertion_failed(const char* expression, const char* function, const char* file, long line);
void assertion_failed_msg(const char* expression, const char* message, const char* function,
                          const char* file, long line);
}  // namespace boost

namespace kvcake {
namespace {

constexpr char kParser[] = "/usr/include/boost/beast/http/impl/basic_parser.ipp";

TEST(BoostAssertDeathTest, OnlyTheWrongOneIsPassedOver) {
  boost::assertion_failed("n >= 5", "parse_chunk_header", kParser, 688);
  EXPECT_DEATH(boost::assertion_failed("n >= 3", "parse_chunk_header", kParser, 699),
               "basic_parser.ipp:699: parse_chunk_header: assertion failed: n >= 3");
  EXPECT_DEATH(boost::assertion_failed("n >= 5", "f", "/usr/include/boost/asio/read.hpp", 1),
               "read.hpp:1: f: assertion failed: n >= 5");
  EXPECT_DEATH(boost::assertion_failed_msg("n >= 5", "why", "f", kParser, 688), "n >= 5 .why.");
}

}  // namespace
}  // namespace kvcake
