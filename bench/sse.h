// Server-sent events, as they come out of a socket: in pieces of any size.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake::bench {

class SseReader {
 public:
  // Called with the data of each event, in order. Comments (": keep-alive") and fields but data are
  // passed over.
  using OnData = std::function<void(std::string_view)>;

  // kResourceExhausted: an event longer than any answer needs.
  Status Feed(std::string_view bytes, const OnData& on_data);

 private:
  void TakeLine(std::string_view line, const OnData& on_data);

  std::string line_;  // begun, not ended
  std::string data_;  // of the event that is not ended
  bool has_data_ = false;
};

}  // namespace kvcake::bench
