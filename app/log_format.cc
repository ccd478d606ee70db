#include "app/log_format.h"

#include <spdlog/formatter.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/dump_json.h"

namespace kvcake {
namespace {

// One line, one object; a request's line is an object already.
class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const double time = std::chrono::duration<double>(message.time.time_since_epoch()).count();
    const auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json line = {{"time", time},
                                   {"level", std::string(level.data(), level.size())}};
    if (auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
        object.is_object()) {
      line.update(object);
    } else {
      line["message"] = text;
    }
    const std::string dumped = DumpJson(line) + "\n";
    out.append(dumped.data(), dumped.data() + dumped.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

}  // namespace

void AddLogFormatFlag(CLI::App& app, std::string* format) {
  app.add_option("--log-format", *format, "text, or json: an object on each line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void UseLogFormat(const std::string& format) {
  if (format == "json") spdlog::set_formatter(std::make_unique<JsonFormatter>());
}

}  // namespace kvcake
