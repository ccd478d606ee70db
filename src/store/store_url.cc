#include "store/store_url.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>

namespace kvcake {
namespace {

bool IsSchemeName(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) || c == '+' || c == '-' || c == '.';
  };
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), fits);
}

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::string WithQuestionMarks(std::string_view place) {
  std::string decoded;
  for (size_t i = 0; i < place.size(); ++i) {
    const std::string_view three = place.substr(i, 3);
    if (three == "%3F" || three == "%3f") {
      decoded += '?';
      i += 2;
    } else {
      decoded += place[i];
    }
  }
  return decoded;
}

// The scheme's length, where there is one.
size_t SchemeSize(std::string_view text) {
  const size_t mark = text.find("://");
  return mark != text.npos && IsSchemeName(text.substr(0, mark)) ? mark : 0;
}

}  // namespace

std::optional<std::string> DecodeUrlText(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const auto high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (!high || !low || *high + *low == 0) return std::nullopt;
    decoded += static_cast<char>(*high << 4 | *low);
    i += 2;
  }
  return decoded;
}

std::optional<std::string> TakeOption(StoreUrl& url, std::string_view name) {
  const auto at = std::find_if(url.options.begin(), url.options.end(),
                               [&](const auto& option) { return option.first == name; });
  if (at == url.options.end()) return std::nullopt;
  std::string value = std::move(at->second);
  url.options.erase(at);
  return value;
}

std::string WithoutSecrets(std::string_view text) {
  const size_t scheme = SchemeSize(text);
  size_t at = text.rfind('@');
  const size_t encoded = text.rfind("%40");  // as some write the one before the host
  if (at == text.npos || (encoded != text.npos && encoded > at)) at = encoded;
  if (scheme == 0 || at == text.npos) return std::string(text);
  return fmt::format("{}://***{}", text.substr(0, scheme), text.substr(at));
}

Result<StoreUrl> ParseStoreUrl(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return Fail(ErrorCode::kInvalidArgument, "store '{}': {}", WithoutSecrets(text), why);
  };
  StoreUrl url;
  const size_t question = text.find('?');
  const std::string_view place = text.substr(0, question);
  if (const size_t scheme = SchemeSize(place); scheme > 0) {
    std::transform(place.begin(), place.begin() + scheme, std::back_inserter(url.scheme),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    url.place = place.substr(scheme + 3);
    const size_t host_end = text.find_first_of("/?#", scheme + 3);
    if (text.find('@', std::min(host_end, text.size())) != text.npos) {
      return refuse(
          "an '@' comes after its host (of a user or password a '/' is written %2F, a '?' %3F, a "
          "'#' %23; elsewhere an '@' is written %40)");
    }
  } else {
    url.place = WithQuestionMarks(place);
  }
  if (url.place.empty()) return refuse("it names no place");
  if (question == text.npos) return url;
  std::string_view rest = text.substr(question + 1);
  while (true) {
    const size_t end = rest.find('&');
    const std::string_view option = rest.substr(0, end);
    const size_t equals = option.find('=');
    if (equals == option.npos || equals == 0) {
      return refuse(
          fmt::format("'{}' after its '?' is no NAME=VALUE (a '?' of a directory's name "
                      "is written %3F)",
                      option));
    }
    auto name = DecodeUrlText(option.substr(0, equals)),
         value = DecodeUrlText(option.substr(equals + 1));
    if (!name || !value) {
      return refuse(
          fmt::format("'{}' has a '%' that is not followed by two hexadecimal digits of "
                      "a character (a '%' is written %25)",
                      option));
    }
    for (const auto& given : url.options) {
      if (given.first == *name) return refuse(fmt::format("'{}' is given twice", *name));
    }
    url.options.emplace_back(std::move(*name), std::move(*value));
    if (end == rest.npos) return url;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace kvcake
