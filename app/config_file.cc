#include "app/config_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>
#include <string_view>

#include "app/flags.h"
#include "app/input.h"

namespace kvcake {
namespace {

// The value of a flag that is given as "--name VALUE" or "--name=VALUE"; empty: it is not.
std::string ValueOf(const std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == flag && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].starts_with(flag + "=")) return arguments[i].substr(flag.size() + 1);
  }
  return "";
}

// What CLI11 would not take as it is in quotes; 1 stands for the first of them, and so on.
constexpr std::string_view kHidden = "#\n\t\r\"\\";

char Hide(char c) { return static_cast<char>(1 + kHidden.find(c)); }

void Show(std::string* text) {
  for (char& c : *text) {
    if (c >= 1 && static_cast<size_t>(c) <= kHidden.size()) c = kHidden[c - 1];
  }
}

// Without comments, and with arrays in one line, as CLI11 wants them; what it takes for the
// beginning of a comment in quotes, and TOML's escapes, are hidden. kInvalidArgument where a text
// or an array does not end: what follows would be part of it.
Result<std::string> WithoutComments(std::string_view text) {
  constexpr std::string_view kEscapes = "ntr\"\\", kMeant = "\n\t\r\"\\";
  std::string rest;
  char quote = 0;      // that has begun
  char before = '\n';  // this character, besides blanks
  bool comment = false;
  int line = 1, array = 0;  // the line in which one has begun
  const auto endless = [](int from, char what) {
    return Fail(ErrorCode::kInvalidArgument, "the {} in line {} does not end", what, from);
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      if (quote == '"') return endless(line, quote);
      quote = 0, comment = false;
      ++line;
    }
    comment = comment || (c == '#' && quote == 0);
    if (comment) continue;
    if (quote == 0 && c == '[' && array != 0) return endless(array, c);
    if (quote == 0 && c == '[' && before == '=') array = line;
    if (quote == 0 && c == ']') array = 0;
    const size_t escape = quote == '"' && c == '\\' && i + 1 < text.size()
                              ? kEscapes.find(text[i + 1])
                              : std::string_view::npos;
    if (escape != std::string_view::npos) {
      rest += Hide(kMeant[escape]);
      ++i;
      continue;
    }
    if (array != 0 && c == '\n') continue;
    rest += c == '#' ? Hide(c) : c;
    if (c == quote) {
      quote = 0;
    } else if ((c == '"' || c == '\'') && quote == 0 && std::strchr("=[,\n", before) != nullptr) {
      quote = c;
    }
    if (c != ' ' && c != '\t') before = c;
  }
  if (quote == '"') return endless(line, quote);
  if (array != 0) return endless(array, '[');
  return rest;
}

Result<std::vector<CLI::ConfigItem>> ReadItems(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const auto plain = WithoutComments(std::string_view(text).substr(begin));
  if (!plain) return Fail(plain.error().code, "{}: {}", path, plain.error().message);
  std::istringstream lines(*plain);
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(lines);
  } catch (const CLI::Error& error) {
    return Fail(ErrorCode::kInvalidArgument, "{}: {}", path, error.what());
  }
  for (CLI::ConfigItem& item : items) {
    for (std::string& input : item.inputs) Show(&input);
  }
  return items;
}

// Whether one of the arguments is neither a flag nor the value of one.
bool HasPositional(const CLI::App& command, const std::vector<std::string>& arguments) {
  int values = 0;  // of the flag before
  for (const std::string& argument : std::span(arguments).subspan(1)) {
    if (argument.starts_with('-')) {
      const CLI::Option* option = command.get_option_no_throw(argument);
      values = option == nullptr ? 0 : option->get_items_expected_max();
    } else if (values-- <= 0) {
      return true;
    }
  }
  return false;
}

// Whether the flag is given, by this name or another one of the same.
bool Has(const CLI::App* command, const std::vector<std::string>& arguments,
         const std::string& flag) {
  std::vector<std::string> names = {flag};
  const CLI::Option* option = command->get_option_no_throw(flag);
  if (option != nullptr) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    // The model may be named by itself, behind the command.
    if (option->get_positional() && HasPositional(*command, arguments)) return true;
  }
  return std::ranges::any_of(arguments, [&](const std::string& argument) {
    return std::ranges::any_of(names, [&](const std::string& name) {
      return argument == name || argument.starts_with(name + "=");
    });
  });
}

// The commands that take --config.
std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands(
      [](const CLI::App* command) { return command->get_option_no_throw("--config") != nullptr; });
}

Status CheckSection(const std::vector<const CLI::App*>& commands, const std::string& path,
                    const std::vector<std::string>& section) {
  if (section.empty()) return {};
  for (const CLI::App* command : commands) {
    if (section.size() == 1 && section[0] == command->get_name()) return {};
  }
  return Fail(ErrorCode::kInvalidArgument,
              "--config {}: [{}] is no command whose flags may be in a file; there are {}", path,
              CLI::detail::join(section, "."), NamesOf(commands));
}

// Whether the flag says how a store is used, and none is given.
bool LacksStore(const CLI::App& command, const std::vector<std::string>& arguments,
                const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  const CLI::Option* store = command.get_option_no_throw("--store");
  return option != nullptr && store != nullptr &&
         std::ranges::count(option->get_needs(), store) > 0 && !Has(&command, arguments, "--store");
}

// Adds the flags that the arguments do not have. Whether any is a key.
bool AddMissing(const CLI::App* command, const std::vector<CLI::ConfigItem>& items,
                std::vector<std::string>* arguments) {
  const std::vector<std::string> given = *arguments;
  bool keys = false;
  for (const CLI::ConfigItem& item : items) {
    const std::string flag = "--" + item.name;
    if (Has(command, given, flag)) continue;
    keys = keys || flag == "--api-key" || flag == "--admin-key";
    for (const std::string& input : item.inputs) arguments->push_back(flag + "=" + input);
  }
  return keys;
}

}  // namespace

void AddConfigFlag(CLI::App& command) {
  command.add_option_function<std::string>(
      "--config", [](const std::string&) {},  // WithConfigFile has read it
      "a TOML or INI file of these flags: ram-capacity = \"16GiB\"; those of the command line "
      "go before it, and it before the environment");
}

Result<std::vector<std::string>> WithConfigFile(const CLI::App& app,
                                                std::vector<std::string> arguments) {
  const std::string path = ValueOf(arguments, "--config");
  if (path.empty()) return arguments;
  const std::string name = arguments[0];
  const std::vector<const CLI::App*> commands = Commands(app);
  const auto found = std::ranges::find_if(
      commands, [&](const CLI::App* command) { return command->get_name() == name; });
  if (found == commands.end()) return arguments;  // the command says that it has no such flag
  const CLI::App* const command = *found;
  auto items = ReadItems(path);
  if (!items) return Fail(items.error().code, "--config: {}", items.error().message);
  std::vector<CLI::ConfigItem> own, of_all;
  for (CLI::ConfigItem& item : *items) {
    RETURN_IF_ERROR(CheckSection(commands, path, item.parents));
    if (item.name == "++" || item.name == "--") continue;  // a section begins or ends
    if (item.name == "config") {
      return Fail(ErrorCode::kInvalidArgument, "--config {} names another: there may be one", path);
    }
    const bool ours = item.parents.empty() || item.parents[0] == name;
    if (ours && command->get_option_no_throw("--" + item.name) == nullptr) {
      return Fail(ErrorCode::kInvalidArgument, "--config {}: {} has no flag --{}{}", path, name,
                  item.name,
                  item.parents.empty() ? "; those of another command alone go under its name, as "
                                         "behind a line [serve]"
                                       : "");
    }
    if (ours) (item.parents.empty() ? of_all : own).push_back(std::move(item));
  }
  const bool keys = AddMissing(command, own, &arguments);
  // Not all of them need have a store.
  std::vector<std::string> given = arguments;
  for (const CLI::ConfigItem& item : of_all) given.push_back("--" + item.name);
  std::erase_if(of_all, [&](const CLI::ConfigItem& item) {
    return LacksStore(*command, given, "--" + item.name);
  });
  if (AddMissing(command, of_all, &arguments) || keys) {
    arguments.push_back(fmt::format("{}={}", kConfigKeysFlag, path));
  }
  return arguments;
}

}  // namespace kvcake
