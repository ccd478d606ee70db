// Status and Result: what can fail returns one, and the caller must look. A miss is a value of its
// own (an empty optional), not an Error.
#pragma once

#include <fmt/core.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace kvcake {

// From 1 on: error() of a result that has none reads what is there, which is often 0, and a test
// that asks for its code shall fail.
enum class ErrorCode {
  kInvalidArgument = 1,  // the caller's input is wrong; the message names the thing and the remedy
  kUnsupported,          // valid, but not something kvcake does; the message names it
  kNotFound,             // was expected to exist and does not
  kCorrupt,              // bytes that fail a check
  kIo,                   // the operating system refused or failed
  kResourceExhausted,    // a limit was reached; the message names the flag that sets it
  kNoSpace,              // a file system, or this user's quota on it, is full
  kCancelled,            // given up by the caller
  kDeadline,             // took longer than allowed
};

struct Error {
  ErrorCode code;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

// Fail(ErrorCode::kIo, "cannot open {}: {}", path, reason) converts to any Result or Status.
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> Fail(ErrorCode code, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace kvcake

#define KVCAKE_CONCAT_INNER(a, b) a##b
#define KVCAKE_CONCAT(a, b) KVCAKE_CONCAT_INNER(a, b)

// Returns the error of a Status expression from the enclosing function.
#define RETURN_IF_ERROR(expr)                                    \
  do {                                                           \
    if (auto status_ = (expr); !status_) {                       \
      return ::tl::unexpected<::kvcake::Error>(status_.error()); \
    }                                                            \
  } while (false)

// ASSIGN_OR_RETURN(auto file, Open(path)); the value of a Result, or return its error.
#define ASSIGN_OR_RETURN(decl, expr)                                                    \
  auto KVCAKE_CONCAT(result_, __LINE__) = (expr);                                       \
  if (!KVCAKE_CONCAT(result_, __LINE__)) {                                              \
    return ::tl::unexpected<::kvcake::Error>(KVCAKE_CONCAT(result_, __LINE__).error()); \
  }                                                                                     \
  decl = std::move(*KVCAKE_CONCAT(result_, __LINE__))
