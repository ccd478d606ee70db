// The kvcake program: parse flags, wire objects, print.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <span>
#include <system_error>

#include "app/config_file.h"
#include "app/flags.h"
#include "app/runahead.h"
#include "app/standard_streams.h"

namespace kvcake {
namespace {

// CLI11 would take the argument after "--name=" for its value, whatever that is.
std::vector<std::string> WithEmptyValues(const std::vector<std::string>& arguments) {
  constexpr char kNameCharacters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
  std::vector<std::string> words;
  for (const std::string& argument : arguments) {
    const bool empty = argument.starts_with("--") &&
                       argument.find_first_not_of(kNameCharacters) == argument.size() - 1 &&
                       argument.ends_with('=');
    words.push_back(empty ? argument.substr(0, argument.size() - 1) : argument);
    if (empty) words.emplace_back();
  }
  return words;
}

// The command that is asked for and is not there, or nothing: CLI11 says no more than that one is
// required.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  std::string before;
  for (const std::string& word : arguments) {
    const auto commands = at->get_subcommands(  // without groups of flags, which have no names
        [](const CLI::App* command) { return !command->get_name().empty(); });
    if (word.starts_with('-') || commands.empty()) return "";
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found == commands.end()) {
      return fmt::format("there is no command {}{}: there are {}", before, word, NamesOf(commands));
    }
    at = *found;
    before += word + " ";
  }
  return "";
}

// The command of `at` that the word names, or `at` itself. Groups of flags are commands without a
// name, which no word asks for.
const CLI::App* CommandAt(const CLI::App* at, const std::string& word) {
  const auto commands = at->get_subcommands(
      [&](const CLI::App* command) { return !word.empty() && command->get_name() == word; });
  return commands.empty() ? at : commands.front();
}

// What is wrong with the flags of the command that is asked for, where it is that it has no such
// one: CLI11 lists values that it cannot place first.
std::string UnknownFlag(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    if (!word.starts_with("--")) {
      at = CommandAt(at, word);
    } else if (const std::string name = word.substr(0, word.find('='));
               at->get_option_no_throw(name) == nullptr) {
      return fmt::format("{} has no flag {}", at->get_name(), name);
    }
  }
  return "";
}

// What is wrong with an empty argument that is no flag's value, or nothing: CLI11 would take it for
// the name of a group of flags, as those have none, and try to parse what follows for ever.
std::string StrayEmpty(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string before;
  for (const std::string& word : words) {
    if (word.empty()) {
      const CLI::Option* option =
          before.starts_with('-') ? at->get_option_no_throw(before) : nullptr;
      if (option == nullptr) return "an argument is empty: give it a value, or leave it out";
      if (option->get_items_expected_max() == 0) {
        return fmt::format("{} takes no value, and is given an empty one", before);
      }
    }
    at = CommandAt(at, word);
    before = word;
  }
  return "";
}

// Says what is wrong with a flag that another text than the command line may have given.
int RefuseFlags(const CLI::App& app, const CLI::ParseError& error,
                std::span<const std::string> from_file) {
  if (app.exit(error) == 0) return 0;  // --help
  const std::string_view what = error.what();
  const std::string_view flag = what.substr(0, what.find_first_of(": "));
  if (std::ranges::any_of(from_file, [&](std::string_view argument) {
        return argument.substr(0, argument.find('=')) == flag;
      })) {
    std::fputs(fmt::format("{} stands in the file of --config.\n", flag).c_str(), stderr);
  }
  return 2;
}

// The standard library's words, and of what there is too little where these leave it out.
std::string Explained(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) {
    return error.what();
  }
  return fmt::format(
      "cannot start a thread: {}; raise the limit of processes and threads (ulimit -u, or a "
      "container's), or lower --threads",
      error.what());
}

int Run(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("kvcake"));  // stdout is for answers
  spdlog::set_pattern("kvcake: %^%l%$: %v");

  CLI::App app(
      "kvcake answers long prompts fast: it computes a prompt's KV cache from the front while it "
      "loads what is kept of it from the back, and stops when the two meet.",
      "kvcake");
  app.set_version_flag("--version", "kvcake " KVCAKE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed (stderr says what, and what to do), 2 wrong usage.\n"
      "kvcake COMMAND --help explains a command.");
  int exit_code = 0;
  const std::vector<std::string> given(argv + 1, argv + argc);
  std::vector<std::string> all;  // and those of --config
  AddRunCommand(app, &exit_code);
  AddChatCommand(app, &exit_code);
  AddServeCommand(app, &exit_code);
  AddWorkerCommand(app, &exit_code);
  AddPerplexityCommand(app, &exit_code);
  AddTokenizeCommands(app, &exit_code);
  AddBenchCommand(app, &exit_code);
  AddRunaheadCommand(app, &exit_code);
  AddModelCommand(app, &exit_code);
  AddCodecCommand(app, &exit_code);
  AddStoreCommand(app, &exit_code);
  try {
    if (const std::string unknown = UnknownCommand(app, given); !unknown.empty()) {
      Fatal({ErrorCode::kInvalidArgument, unknown});
      return 2;
    }
    auto arguments = WithConfigFile(app, given);
    if (!arguments) {
      const int failed = Fatal(arguments.error());
      return arguments.error().code == ErrorCode::kInvalidArgument ? 2 : failed;
    }
    all = std::move(*arguments);
    std::vector<std::string> words = WithEmptyValues(all);
    if (const std::string stray = StrayEmpty(app, words); !stray.empty()) {
      Fatal({ErrorCode::kInvalidArgument, stray});
      return 2;
    }
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    // A flag that is misspelt is also one that is missing.
    const bool may_be_unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                                dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const std::string unknown = may_be_unknown ? UnknownFlag(app, given) : "";
    if (unknown.empty()) {
      return RefuseFlags(app, error, std::span(all).subspan(std::min(given.size(), all.size())));
    }
    Fatal({ErrorCode::kInvalidArgument, unknown});
    return 2;
  } catch (const std::exception& error) {  // e.g. no memory or threads left for what was asked
    return Fatal({ErrorCode::kResourceExhausted, Explained(error)});
  }
  return exit_code;
}

}  // namespace
}  // namespace kvcake

int main(int argc, char** argv) {
  kvcake::FillStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) fails, and nothing else
  if (const int exit_code = kvcake::Run(argc, argv); exit_code != 0) return exit_code;
  const kvcake::Status printed = kvcake::FlushStdout();
  return printed ? 0 : kvcake::Fatal(printed.error());
}
