// kvcake runahead: plan and search.
#pragma once

#include <CLI/CLI.hpp>

namespace kvcake {

// Each adds a subcommand that sets *exit_code when it runs.
void AddRunaheadCommand(CLI::App& app, int* exit_code);
void AddRunaheadPlanCommand(CLI::App& runahead, int* exit_code);
void AddRunaheadSearchCommand(CLI::App& runahead, int* exit_code);

}  // namespace kvcake
