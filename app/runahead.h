// kvcake runahead: plan and search.
#pragma once

#include <CLI/CLI.hpp>
#include <span>

#include "base/status.h"

namespace kvcake {

// Fails where a model whose prompts have at most `context_max` tokens cannot have all `contexts`;
// there is one or more.
Status CheckContexts(std::span<const int> contexts, int context_max);

// Each adds a subcommand that sets *exit_code when it runs.
void AddRunaheadCommand(CLI::App& app, int* exit_code);
void AddRunaheadPlanCommand(CLI::App& runahead, int* exit_code);
void AddRunaheadSearchCommand(CLI::App& runahead, int* exit_code);

}  // namespace kvcake
