// kvcake bench runahead: this program under mpirun, a rank in each process; and emulated ranks.
#include <cstdio>

#include "app/add_bench.h"
#include "app/flags.h"
#include "app/ranks.h"
#include "bench/harness.h"
#include "bench/runahead.h"
#include "model/synth.h"

namespace kvcake {
namespace {

struct RunaheadFlags {
  bench::RunaheadOptions bench;
  std::string attention = "causal";
  RankFlags ranks{.ranks = 2};
  RuntimeOptions runtime;
  std::string arch = "smollm2-135m";
};

Status Bench(const RunaheadFlags& flags, Ranks& ranks) {
  RuntimeOptions options = flags.runtime;
  ASSIGN_OR_RETURN(options.model_dir, bench::ModelDirOf(options.model_dir, flags.arch));
  options.threads = 1;  // of each rank, and of one process alone
  RETURN_IF_ERROR(ranks.Divide(&options));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(options));
  if (!ranks.leads()) return ranks.Work(*runtime);
  RETURN_IF_ERROR(ranks.Meet(*runtime));
  RETURN_IF_ERROR(WarmUpFar(*runtime));
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // rows are kept as they come, in files too
  return bench::RunRunahead(flags.bench, *runtime, ranks.comm(),
                            LinkOf(flags.ranks, ranks.survey()));
}

}  // namespace

void AddBenchRunaheadCommand(CLI::App& bench, int* exit_code) {
  auto flags = std::make_shared<RunaheadFlags>();
  CLI::App* command = bench.add_subcommand(
      "runahead", "several processes of one thread prefill a prompt, against one");
  command->add_option("--model", flags->runtime.model_dir, "model directory (default: --arch)");
  command->add_option("--arch", flags->arch, "shape of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command->add_option("--context", flags->bench.contexts, "prompt tokens")
      ->check(CLI::Range(512, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeats", flags->bench.repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  command
      ->add_option("--attention", flags->attention,
                   "dense: full rectangles, then a mask, as the paper computed it; by every method")
      ->check(CLI::IsMember({"causal", "dense"}))
      ->capture_default_str();
  command->add_flag("--search", flags->bench.search, "also search the partition by measuring");
  command->add_option("--ram-capacity", flags->runtime.ram_capacity_bytes, "of KV pages of a rank")
      ->transform(SizeValue())
      ->default_str("4GiB");
  AddRankCountFlag(*command, &flags->ranks);
  AddRankLimitFlags(*command, &flags->ranks);
  AddJsonFile(*command, &flags->bench.json);
  command->add_option("--svg", flags->bench.svg, "also draw times and partitions into this file")
      ->check(ResultFile());
  command->callback([flags, exit_code] {
    flags->bench.dense = flags->attention == "dense";
    *exit_code = RunOnRanks(flags->ranks, [&](Ranks& ranks) { return Bench(*flags, ranks); });
  });
}

void AddBenchRunaheadPapersCommand(CLI::App& bench, int* exit_code) {
  auto options = std::make_shared<bench::RunaheadPapersOptions>();
  CLI::App* command = bench.add_subcommand(
      "runahead-papers",
      "KV-Runahead's tables on emulated GPUs: lengths, slow and noisy links, a slow rank");
  command->add_option("--tables", options->tables, "directory of its tables")
      ->capture_default_str();
  command->add_option("--profiles", options->profiles, "directory of its GPUs and models")
      ->capture_default_str();
  command->add_option("--only", options->model, "this model, as the tables name it");
  command->add_option("--repeats", options->repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--noise-slowdown", options->noise.slowdown, "of a noisy link")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_option("--slow-rank", options->slow_rank_speed, "its share of the others' speed")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command
      ->add_option("--slow-motion", options->slow_motion,
                   "how many times longer everything takes at least, and is reported as if it did "
                   "not: this machine's own work for each message then weighs less")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
  command
      ->add_option("--svg", options->svg,
                   "also draw times and partitions on 4: of Llama 7B, or --only")
      ->check(ResultFile());
  command
      ->add_option("--timeline", options->timeline,
                   "also draw what each rank of Llama 7B does when")
      ->check(ResultFile());
  command->callback([options, exit_code] {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    const Status status = bench::RunRunaheadPapers(*options);
    *exit_code = status ? 0 : Fatal(status.error());
  });
}

}  // namespace kvcake
