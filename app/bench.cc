// kvcake bench: measurements that check their answers.
#include <fmt/ranges.h>

#include <algorithm>

#include "app/add_bench.h"
#include "app/flags.h"
#include "bench/benches.h"
#include "bench/policies.h"
#include "model/synth.h"

namespace kvcake {
namespace {

// What loading takes / what computing does: each is a row of its own, and outside of these bounds
// rates are no numbers any more.
void AddRatios(CLI::App* command, const char* name, std::vector<double>* ratios, const char* help) {
  const std::string defaults = fmt::format("[{}]", fmt::join(*ratios, ","));
  command
      ->add_option_function<std::vector<double>>(
          name,
          [=](std::vector<double> given) {
            *ratios = given;
            std::ranges::sort(given);
            const auto twice = std::ranges::adjacent_find(given);
            if (twice == given.end()) return;
            throw CLI::ValidationError(name, fmt::format("{} is given twice", *twice));
          },
          help)
      ->check(Between(1e-6, 1e6))
      ->default_str(defaults);
}

void AddTtft(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::TtftOptions>();
  CLI::App* command =
      AddBench(parent, "ttft", "time to first token of the policies over link speeds", exit_code,
               bench::RunTtft, options);
  command
      ->add_option("--arch,--model", options->models,
                   "shapes of random weights, or model directories")
      ->capture_default_str();
  AddNumericPathFlag(*command, &options->path);
  command->add_option("--context", options->contexts, "prompt tokens")
      ->check(Positive())
      ->capture_default_str();
  command
      ->add_option("--compute-share", options->compute_shares,
                   "shares of each step that the prompts get, others' prefill the rest")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  AddRatios(command, "--ratios", &options->ratios, "link speeds, as load time / compute time");
  command
      ->add_option("--link-gbit", options->link_gbit,
                   "link speeds in Gbit/s instead; inf: the disk as it is")
      ->check(CLI::Range(0.001, std::numeric_limits<double>::infinity()))
      ->excludes("--ratios");
  command->add_option("--latencies", options->latencies_s, "of each read, e.g. 0 1ms 10ms")
      ->transform(DurationValue())
      ->check(NotNegative())
      ->default_str("[0,1ms,10ms]");
  command->add_option("--present", options->presents, "shares of the chunks that are stored")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  AddRatios(command, "--variant-ratios", &options->variant_ratios,
            "where latencies and shares but the first are measured, one at a time");
  command
      ->add_option("--kv-codec", options->kv_codec,
                   "how the store keeps chunks; link speeds are still ratios of raw chunks")
      ->check(CLI::IsMember({"raw", "lossless", "int8", "cachegen", "kvquant3"}))
      ->capture_default_str();
  command->add_option("--codec-tables", options->codec_tables,
                      "its tables: a file, or the directory that kvcake codec fit made");
  command
      ->add_flag("--full", options->full,
                 "every combination, on more models and contexts: takes hours")
      ->excludes("--arch", "--context");
  command->add_flag("--published,!--no-published", options->published,
                    "also run the planner as the papers have it");
  command->add_option("--slice-tokens", options->slice_tokens, "most tokens that a step computes")
      ->check(CLI::Range(128, 1 << 16))
      ->default_str(kDefaultSliceTokens);
  command->add_option("--dir", options->dir, "for the store (default: the cache directory)");
  command->add_option("--repeats", options->repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
  command->add_option("--svg", options->svg, "the picture")
      ->check(ResultFile())
      ->capture_default_str();
}

void AddChanges(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::ChangesOptions>();
  CLI::App* command = AddBench(parent, "changes",
                               "time to first token while the link, the compute share or both "
                               "change in mid-request",
                               exit_code, bench::RunChanges, options);
  command->add_option("--model", options->model_dir, "model directory (default: --arch)");
  command->add_option("--arch", options->arch, "shape of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command->add_option("--context", options->context, "prompt tokens")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--ratio", options->ratio, "the link's speed at the start, as load / compute")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of each row")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--dir", options->dir, "for the store (default: the cache directory)");
  AddJsonFile(*command, &options->json);
}

void AddPapers(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::PapersOptions>();
  CLI::App* command = parent->add_subcommand(
      "papers",
      "the cells of the Cake paper's tables again, on a fake clock where all costs are known "
      "exactly and nothing is noisy; table 7's quantised caches count by their bytes alone");
  RunWhenChosen(command, bench::RunPapers, options, exit_code);
  command->add_option("--tables", options->tables, "directory of their figures")
      ->capture_default_str();
  command->add_option("--profiles", options->profiles, "directory of the machines, as fitted")
      ->capture_default_str();
  command->add_option("--codecs", options->codecs,
                      "what bench codecs --json wrote: also the papers' setting by each of them");
  command->add_option("--decode-cores", options->decode_cores, "that decode chunks beside the GPU")
      ->needs("--codecs")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddSimulate(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::SimulateOptions>();
  CLI::App* command = AddBench(parent, "simulate",
                               "random restorations on a fake clock against the bound with "
                               "hindsight, changing rates included",
                               exit_code, bench::RunSimulate, options);
  command
      ->add_option("--profiles", options->profiles,
                   "machines to emulate: a file, or a directory of them")
      ->capture_default_str();
  command->add_option("--scenarios", options->scenarios, "how many; 1 prints its timeline too")
      ->check(CLI::Range(1, 100000000))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the first scenario; the next has the next")
      ->check(Natural())
      ->capture_default_str();
  command->add_option("--link-trace", options->link_trace,
                      "a file of lines of seconds, share of the link's speed: instead of made-up "
                      "changes");
  command->add_option("--compute-trace", options->compute_trace, "the same of compute's speed");
  AddJsonFile(*command, &options->json);
}

void AddPlanner(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::PlannerBenchOptions>();
  CLI::App* command = parent->add_subcommand(
      "planner", "what planning costs a step while many prompts are being restored");
  RunWhenChosen(command, bench::RunPlanner, options, exit_code);
  command->add_option("--restorations", options->restorations, "prompts that are restored at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--chunks", options->chunks, "of each of them, a number for each")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  AddRatios(command, "--ratios", &options->ratios, "what loading a chunk takes / computing it");
  command->add_option("--steps", options->steps, "of 100 ms on a fake clock")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddQuality(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::QualityOptions>();
  CLI::App* command =
      AddBench(parent, "quality",
               "held-out perplexity, lookups and top-1 agreement of each way to run a model",
               exit_code, bench::RunQuality, options);
  command->add_option("--model", options->model_dir, "model directory")->required();
  command->add_option("--text", options->text_dir,
                      "held-out *.txt and names.txt (default: held_out in the model directory)");
  command->add_option("--window-tokens", options->window_tokens, "scored of each text, at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--lookup-tokens", options->lookup_tokens, "lengths of the lookups' documents")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command->add_option("--lookups", options->lookups, "of each length")
      ->check(Positive())
      ->capture_default_str();
  command
      ->add_option("--max-perplexity-change", options->perplexity_change_max,
                   "against the plain run; more fails")
      ->check(NotNegative())
      ->capture_default_str();
  command->add_option("--kv-codec", options->kv_codecs,
                      "instead: what these codecs do to the answers, when the cache goes through "
                      "them: lossless, int8, cachegen, kvquant3");
  command->add_option("--codec-tables", options->codec_tables,
                      "tables of those codecs that have some, made by kvcake codec fit");
  command
      ->add_option("--kv-context", options->kv_context,
                   "tokens whose cache goes through --kv-codec: whole chunks")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  command->add_option("--kv-scored", options->kv_scored, "tokens that are scored on top of them")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--out", options->out_dir, "where the store goes for a while")
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddCatalogue(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::CatalogueOptions>();
  CLI::App* command = parent->add_subcommand(
      "catalogue", "memory, lookups and start-up with many chunks on the disk");
  command->add_option("--chunks", options->chunks, "in the catalogue")
      ->check(CLI::Range(128, 100000000))
      ->capture_default_str();
  command->add_flag("--files", options->files, "make so many (small) files and start with them");
  command->add_option("--dir", options->dir, "where they are made")
      ->needs("--files")
      ->default_str("~/.cache/kvcake");
  RunWhenChosen(command, bench::RunCatalogue, options, exit_code);
}

// Not by AddBench: its flags are those of run.
void AddTiers(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::TiersOptions>();
  CLI::App* command = parent->add_subcommand(
      "tiers", "one restoration from several stores at once, against each of them alone");
  options->runtime.ram_capacity_bytes = 1ull << 30;
  AddRuntimeFlags(*command, &options->runtime);
  command->get_option("--model")->required(false);
  command->add_option("--arch", options->arch, "shape of random weights, without --model")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command->add_option("--context", options->context, "prompt tokens")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of everything, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
  RunWhenChosen(command, bench::RunTiers, options, exit_code);
}

void AddSchedule(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::ScheduleOptions>();
  CLI::App* command = parent->add_subcommand(
      "schedule", "a restoration among new prompts, in both orders of prefill, over link speeds");
  options->runtime.ram_capacity_bytes = 2ull << 30;
  command->add_option("--model", options->runtime.model_dir, "model directory");
  command->add_option("--arch", options->arch, "shape of random weights")
      ->check(CLI::IsMember(SynthArchNames()));
  command
      ->add_option("--emulate", options->emulate, "profile of the machine, without both of these")
      ->capture_default_str();
  command->add_option("--threads", options->runtime.threads, "compute threads")
      ->check(CLI::Range(1, 1024));
  command->add_option("--context", options->context, "tokens of the stored prompt")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  command->add_option("--burst", options->burst, "new prompts")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--answer-tokens", options->answer_tokens, "of each prompt")
      ->check(CLI::Range(2, 1 << 16))
      ->capture_default_str();
  AddRatios(command, "--ratios", &options->ratios, "link speeds, as load time / compute time");
  command->add_option("--repeats", options->repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--crowds", options->crowds, "of restorations, on a fake clock")
      ->check(NotNegative())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
  command->add_option("--svg", options->svg, "the picture")
      ->check(ResultFile())
      ->capture_default_str();
  RunWhenChosen(command, bench::RunSchedule, options, exit_code);
}

// Adds what benches share that put workloads on servers of their own.
void AddLabFlags(CLI::App* command, bench::PolicyLabOptions* lab) {
  command->add_option("--model", lab->model_dir, "model directory")->capture_default_str();
  command->add_option("--emulate", lab->emulate, "profile of a machine that is not here");
  command->add_option("--document-length", lab->document_tokens, "tokens of a document")
      ->check(CLI::Range(256, 1 << 20))
      ->capture_default_str();
  command->add_option("--num-documents", lab->documents, "documents, and users who chat")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--repeat-count", lab->repeat_count, "questions on each, rounds of each chat")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--trace", lab->trace, "Mooncake's JSON lines")->capture_default_str();
  command->add_option("--length-scale", lab->length_scale, "of the trace's prompts")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--num-prompts", lab->trace_requests, "of the trace")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--ram-capacity", lab->ram, "of each server's pages")->capture_default_str();
  command->add_option("--seed", lab->seed, "of the workloads")
      ->check(Natural())
      ->capture_default_str();
}

void AddLoadFlag(CLI::App* command, double* load) {
  command
      ->add_option("--load", *load,
                   "how busy the server would be if it computed everything; 1: always")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
}

template <typename T>
CLI::Option* AddWorkload(CLI::App* command, T* workload) {
  return command->add_option("--workload", *workload, "of `bench serve`")
      ->check(CLI::IsMember({"long-doc-qa", "multi-round-chat", "random-prefill", "trace"}))
      ->capture_default_str();
}

void AddPolicies(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::PoliciesOptions>();
  CLI::App* command = AddBench(parent, "policies",
                               "workloads on a server under each policy, at several link speeds",
                               exit_code, bench::RunPolicies, options);
  AddLabFlags(command, options.get());
  AddWorkload(command, &options->workloads);
  AddLoadFlag(command, &options->load);
  AddRatios(command, "--ratios", &options->ratios, "link speeds, as load time / compute time");
  command->add_option("--repeats", options->repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddOutages(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::OutagesOptions>();
  CLI::App* command = AddBench(parent, "outages",
                               "a workload under each policy when reads are late and when the "
                               "link dies",
                               exit_code, bench::RunOutages, options);
  AddLabFlags(command, options.get());
  AddWorkload(command, &options->workload);
  AddLoadFlag(command, &options->load);
  command->add_option("--ratio", options->ratio, "link speed, as load time / compute time")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--load-stall-share", options->stall_share, "of reads that are late")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--load-stall", options->stall_s, "by how much")
      ->transform(DurationValue())
      ->default_str("500ms");
  command->add_option("--repeats", options->repeats, "of each cell, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddCapacity(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::CapacityOptions>();
  CLI::App* command =
      AddBench(parent, "capacity", "the most requests a second that each policy answers in time",
               exit_code, bench::RunCapacity, options);
  AddLabFlags(command, options.get());
  AddWorkload(command, &options->workload);
  AddRatios(command, "--ratios", &options->ratios, "link speeds, as load time / compute time");
  command
      ->add_option("--ttft-max", options->ttft_max_s,
                   "that 95% of first tokens must keep (default: twice as long as computing a "
                   "document)")
      ->transform(DurationValue())
      ->check(Positive());
  command->add_option("--repeats", options->repeats, "of each rate; the median counts")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddDemo(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::DemoOptions>();
  CLI::App* command = AddBench(parent, "demo",
                               "questions about a long document, answered three ways at three "
                               "link speeds",
                               exit_code, bench::RunDemo, options);
  command->add_option("--model", options->model_dir, "the demo model's directory")->required();
  command->add_option("--document", options->document, "a long text to plant facts in")
      ->capture_default_str();
  command->add_option("--out", options->out_dir, "where the store and the picture go")
      ->capture_default_str();
}

}  // namespace

void AddBenchCommand(CLI::App& app, int* exit_code) {
  CLI::App* bench = app.add_subcommand(
      "bench",
      "measure this machine or a server, or emulate and simulate machines that are not here");
  bench->require_subcommand(1);
  AddBenchSpeedCommands(*bench, exit_code);
  AddTtft(bench, exit_code);
  AddChanges(bench, exit_code);
  AddSimulate(bench, exit_code);
  AddPlanner(bench, exit_code);
  AddPapers(bench, exit_code);
  AddQuality(bench, exit_code);
  AddTiers(bench, exit_code);
  AddCatalogue(bench, exit_code);
  AddSchedule(bench, exit_code);
  AddPolicies(bench, exit_code);
  AddOutages(bench, exit_code);
  AddCapacity(bench, exit_code);
  AddBenchServeCommand(*bench, exit_code);
  AddBenchFleetCommand(*bench, exit_code);
  AddBenchRunaheadCommand(*bench, exit_code);
  AddBenchRunaheadPapersCommand(*bench, exit_code);
  AddDemo(bench, exit_code);
}

}  // namespace kvcake
