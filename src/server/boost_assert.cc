// What Boost does where an assertion of its own fails, in builds that have assertions: it ends the
// process, save for one that is wrong up to Boost 1.85 (boostorg/beast, pull request 2861). That
// holds the header of a body's end to the length that it has after a chunk, so that a stranger
// could end the server with a body that has no chunks ("0\r\n\r\n") and comes byte by byte.
#include <boost/assert.hpp>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace boost {

void assertion_failed(const char* expression, const char* function, const char* file, long line) {
  if (expression == std::string_view("n >= 5") &&
      std::string_view(file).ends_with("/http/impl/basic_parser.ipp")) {
    return;
  }
  std::fprintf(stderr, "%s:%ld: %s: assertion failed: %s\n", file, line, function, expression);
  std::abort();
}

void assertion_failed_msg(const char* expression, const char* message, const char* function,
                          const char* file, long line) {
  std::fprintf(stderr, "%s:%ld: %s: assertion failed: %s (%s)\n", file, line, function, expression,
               message);
  std::abort();
}

}  // namespace boost
