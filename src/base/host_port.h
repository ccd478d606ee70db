// Where a server is, as URLs and errors have it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace kvcake {

// "host:port", with brackets around an IPv6 address. The port is a number or a text.
template <typename Port>
std::string HostAndPort(std::string_view host, const Port& port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace kvcake
