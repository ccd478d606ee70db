// kvcake store: what is kept in a store directory.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

struct StoreFlags {
  std::string dir;
  bool json = false;
};

nlohmann::ordered_json Describe(const StoreRoot& root) {
  const auto model = nlohmann::ordered_json::parse(root.description, nullptr, false);
  return {{"root", root.root.Hex()},
          {"model", model.is_object() ? model : nlohmann::ordered_json()},
          {"chunks", root.chunks},
          {"bytes", root.bytes},
          {"oldest_use", root.oldest_use_s},
          {"newest_use", root.newest_use_s}};
}

Status List(const StoreFlags& flags) {
  ASSIGN_OR_RETURN(const auto roots, ListStore(flags.dir));
  if (flags.json) {
    auto list = nlohmann::ordered_json::array();
    for (const StoreRoot& root : roots) list.push_back(Describe(root));
    fmt::print("{}\n", list.dump(2));
    return {};
  }
  fmt::print("{:<14} {:<28} {:>8} {:>12}  {}\n", "root", "model", "chunks", "MiB", "last used");
  for (const StoreRoot& root : roots) {
    const auto model = nlohmann::json::parse(root.description, nullptr, false);
    const std::string name =
        model.is_object() ? model.value("model", std::string("unknown")) : std::string("unknown");
    fmt::print("{:<14} {:<28} {:>8} {:>12.1f}  {:%Y-%m-%d %H:%M}\n", root.root.Hex().substr(0, 12),
               name, root.chunks, static_cast<double>(root.bytes) / (1 << 20),
               fmt::localtime(static_cast<time_t>(root.newest_use_s)));
  }
  return {};
}

Status Clear(const StoreFlags& flags) {
  ASSIGN_OR_RETURN(const ClearedStore cleared, ClearStore(flags.dir));
  if (flags.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"files", cleared.files}, {"bytes", cleared.bytes}}.dump(2));
  } else {
    fmt::print("removed {} files, {:.1f} MiB\n", cleared.files,
               static_cast<double>(cleared.bytes) / (1 << 20));
  }
  return {};
}

}  // namespace

void AddStoreCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<StoreFlags>();
  CLI::App* store = app.add_subcommand("store", "look at or empty a store directory");
  store->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, Status (*body)(const StoreFlags&)) {
    CLI::App* command = store->add_subcommand(name, help);
    command->add_option("--store,dir", flags->dir, "the directory given to run as --store")
        ->required();
    command->add_flag("--json", flags->json, "print JSON");
    command->callback([flags, exit_code, body] {
      if (const Status status = body(*flags); !status) *exit_code = Fatal(status.error());
    });
  };
  add("ls", "what is kept, by model", List);
  add("clear", "delete every chunk (other files in the directory are left alone)", Clear);
}

}  // namespace kvcake
