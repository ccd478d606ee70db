// How programs that run for long write their log.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kvcake {

// --log-format text|json.
void AddLogFormatFlag(CLI::App& app, std::string* format);
// --log-level trace|debug|info|warning|error|critical|off.
void AddLogLevelFlag(CLI::App& app);
// From now on lines are so, on stderr, and neither a reader that stands still nor one that has gone
// stops this program (LogSink).
void BeginLog(const std::string& format);

}  // namespace kvcake
