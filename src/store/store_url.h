// How stores are named, everywhere: by flags, by the store tools and by libkvcake's callers.
//
//   [SCHEME://]PLACE[?NAME=VALUE[&NAME=VALUE]...]
//
// Without a scheme PLACE is a directory, and %3F in it stands for a '?'; nothing else of it is
// decoded. In names and values %XX stands for a byte.
#pragma once

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

// The directory that the text names, whatever its options. kUnsupported where it names none.
Result<std::string> StoreDirectory(std::string_view text);

}  // namespace kvcake
