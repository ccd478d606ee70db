// How stores are named, everywhere: by flags, by the store tools and by libkvcake's callers.
//
//   [SCHEME://]PLACE[?NAME=VALUE[&NAME=VALUE]...]
//
// Without a scheme PLACE is a directory, and %3F in it stands for a '?'; nothing else of it is
// decoded. In names and values %XX stands for a byte. What is before an '@' of a place elsewhere is
// a secret: no error says it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvcake {

struct StoreUrl {
  std::string scheme;                                        // lower case; empty: a directory
  std::string place;                                         // the directory, or what follows "://"
  std::vector<std::pair<std::string, std::string>> options;  // in their order, each name once

  bool operator==(const StoreUrl&) const = default;
};

// kInvalidArgument, with the text and what is wrong with it.
Result<StoreUrl> ParseStoreUrl(std::string_view text);

// kInvalidArgument: what a URL must say, and does not.
template <typename... Args>
[[nodiscard]] tl::unexpected<Error> RefuseUrl(fmt::format_string<Args...> format, Args&&... args) {
  return Fail(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// Removes an option; nothing where it is not given.
std::optional<std::string> TakeOption(StoreUrl& url, std::string_view name);

// The text with *** for what is before an '@' of a place elsewhere: for messages.
std::string WithoutSecrets(std::string_view text);

// With a byte for each %XX; nothing where a '%' is not followed by the two digits of a byte that
// text may hold.
std::optional<std::string> DecodeUrlText(std::string_view text);

}  // namespace kvcake
