// kvcake store warm: fills a store ahead of time.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/flags.h"
#include "app/input.h"
#include "store/store_look.h"

namespace kvcake {
namespace {

struct WarmFlags {
  RuntimeOptions runtime;
  std::string prompt_file;
  bool json = false;
};

// Whoever warms a store has said that the chunks are to be kept, though used but once so far.
Status WriteAtFirstUse(RuntimeOptions* runtime) {
  bool any = false;
  for (size_t i = 0; i < runtime->stores.size(); ++i) {
    const StoreWrites writes = WritesTo(runtime->stores, i, runtime->store_writes);
    if (writes == StoreWrites::kNever) continue;
    runtime->stores[i].writes = StoreWrites::kAlways;
    any = true;
  }
  if (any) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "nothing would be kept in {}: leave out --store-writes never, or writes=never of the "
              "store",
              runtime->stores[0].Place());
}

// Whether a store has room for so many chunks at once, by what those that it wrote take: else the
// last take the place of the first, and each is written without a fault.
Status CheckRoom(const Runtime& runtime, size_t chunks) {
  for (size_t i = 0; i < runtime.stores().size(); ++i) {
    const StoreOptions& store = runtime.options().stores[i];
    const TierStats stats = runtime.stores()[i]->Stats();
    if (!store.keeps_files() || stats.writes == 0) continue;
    const uint64_t bytes = chunks * (stats.write_bytes / stats.writes);
    if (bytes <= store.capacity_bytes) continue;
    return Fail(ErrorCode::kNoSpace,
                "the prompt's {} chunks take {} bytes, and {} has room for {} (--disk-capacity)",
                chunks, bytes, store.Place(), store.capacity_bytes);
  }
  return {};
}

// Whether the chunks are still in a store: where a file system or a server has less room than the
// store may take, each was written without a fault, and others took its place.
Status CheckKept(const Runtime& runtime, std::span<const ChunkKey> keys) {
  constexpr Seconds kPatience{30};
  std::vector<Tier*> stores;
  for (const auto& store : runtime.stores()) stores.push_back(store.get());
  const StoreLook look = AskStores(stores, keys, kPatience);
  const StoreOptions& first = runtime.options().stores[0];
  if (!look.complete) {
    return Fail(ErrorCode::kIo, "{} has not said within {} s whether it holds the chunks",
                first.Place(), kPatience.count());
  }
  const auto gone = std::ranges::count(look.held, false);
  if (gone == 0) return {};
  return Fail(ErrorCode::kNoSpace,
              "{} of the prompt's {} chunks had to make room for others in {}: {}, or warm less",
              gone, keys.size(), first.Place(),
              first.keeps_files() ? "free space on its file system, lower --disk-free-min"
                                  : "give the server more memory");
}

// "19 chunks written"; where several stores are written, how many to each.
std::string Written(const std::vector<StoreOptions>& stores, const WriteBehindStats& writes) {
  std::string text;
  int written_stores = 0;
  for (size_t i = 0; i < stores.size(); ++i) {
    if (writes.stores[i].written == 0) continue;
    text += fmt::format("{}{} to {}", text.empty() ? "written: " : ", ", writes.stores[i].written,
                        stores[i].Place());
    ++written_stores;
  }
  return written_stores > 1 ? "chunks " + text : fmt::format("{} chunks written", writes.written);
}

Status Warm(const WarmFlags& flags) {
  RuntimeOptions options = flags.runtime;
  RETURN_IF_ERROR(WriteAtFirstUse(&options));
  ASSIGN_OR_RETURN(const std::string text, ReadText(flags.prompt_file));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  Request request;
  ASSIGN_OR_RETURN(request.prompt, runtime->tokenizer().Encode(text));
  request.max_tokens = 1;
  const std::vector<ChunkKey> keys =
      ChunkKeys(runtime->model().identity().Root(), request.prompt, options.chunk_tokens);
  ASSIGN_OR_RETURN(const Completion completion, runtime->engine().Answer(std::move(request)));
  const bool all_tried = runtime->engine().FlushStore();
  const WriteBehindStats writes = runtime->engine().write_stats();
  if (flags.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"prompt_tokens", completion.report.prompt_tokens},
                                      {"tokens_computed", completion.report.tokens_computed},
                                      {"written", writes.written},
                                      {"writes_failed", writes.failed},
                                      {"writes_dropped", writes.dropped()}}
                   .dump(2));
  } else {
    fmt::print("{} prompt tokens, {} of them computed; {}\n", completion.report.prompt_tokens,
               completion.report.tokens_computed, Written(options.stores, writes));
  }
  if (all_tried && writes.failed + writes.dropped() == 0) {
    RETURN_IF_ERROR(CheckRoom(*runtime, keys.size()));
    return CheckKept(*runtime, keys);
  }
  return Fail(ErrorCode::kIo, "not all chunks could be kept in {}",
              flags.runtime.stores[0].Place());
}

}  // namespace

void AddStoreWarmCommand(CLI::App& store, int* exit_code) {
  auto flags = std::make_shared<WarmFlags>();
  CLI::App* warm = store.add_subcommand("warm", "compute a prompt and keep its chunks for later");
  AddRuntimeFlags(*warm, &flags->runtime);
  warm->get_option("--store")->required();
  warm->add_option("--prompt-file", flags->prompt_file, "a file with the text; - for stdin")
      ->required();
  warm->add_flag("--json", flags->json, "print JSON");
  RunWhenChosen(warm, Warm, flags, exit_code);
}

}  // namespace kvcake
