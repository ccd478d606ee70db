#include "app/log_format.h"

#include <signal.h>
#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "app/log_sink.h"
#include "base/dump_json.h"
#include "base/utf8.h"

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

// The message, in which nothing begins a line or commands a terminal.
class PrintableMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string text = Printable({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableMessage>();
  }
};

std::unique_ptr<spdlog::formatter> TextFormatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<PrintableMessage>('*').set_pattern(
      "%Y-%m-%dT%H:%M:%S.%eZ kvcake: %^%l%$: %*");
  return formatter;
}

}  // namespace

void AddLogFormatFlag(CLI::App& app, std::string* format) {
  app.add_option("--log-format", *format, "text, or json: an object on each line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void AddLogLevelFlag(CLI::App& app) {
  app.add_option_function<std::string>(
         "--log-level",
         [](const std::string& name) { spdlog::set_level(spdlog::level::from_str(name)); },
         "least important lines to log; debug: probes that were answered, too")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->default_str("info");
}

void BeginLog(const std::string& format) {
  signal(SIGPIPE, SIG_IGN);
  auto log = std::make_shared<spdlog::logger>("kvcake", std::make_shared<LogSink>());
  log->set_level(spdlog::get_level());
  if (format == "json") {
    log->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    log->set_formatter(TextFormatter());
  }
  spdlog::set_default_logger(std::move(log));
}

}  // namespace kvcake
