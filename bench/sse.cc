#include "bench/sse.h"

namespace kvcake::bench {
namespace {

constexpr size_t kEventBytesMax = 16 << 20;

}  // namespace

Status SseReader::Feed(std::string_view bytes, const OnData& on_data) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kEventBytesMax) {
      return Fail(ErrorCode::kResourceExhausted, "an event is longer than {} bytes",
                  kEventBytesMax);
    }
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    TakeLine(line_, on_data);
    line_.clear();
  }
  return {};
}

void SseReader::TakeLine(std::string_view line, const OnData& on_data) {
  constexpr std::string_view kField = "data:";
  if (line.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with(kField)) {
    line.remove_prefix(kField.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
}

}  // namespace kvcake::bench
