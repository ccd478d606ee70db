// kvcake bench fleet: servers behind HAProxy that share a Redis cluster, or share nothing.
#include <cstdio>

#include "app/add_bench.h"
#include "app/flags.h"
#include "bench/fleet.h"

namespace kvcake {

void AddBenchFleetCommand(CLI::App& bench, int* exit_code) {
  auto options = std::make_shared<bench::FleetOptions>();
  CLI::App* command = bench.add_subcommand(
      "fleet",
      "emulated servers behind HAProxy that share a Redis cluster, against the same without it and "
      "against one; then a server joins, and one is killed");
  const auto count = [&](const char* name, int& value, int least, int most, const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
  };
  command->add_option("--model", options->model_dir, "model directory, for its tokenizer")
      ->capture_default_str();
  command->add_option("--text", options->text, "what prompts are made of, as bench serve takes it")
      ->capture_default_str();
  command->add_option("--profile", options->profile, "the machine that each server emulates")
      ->capture_default_str();
  count("--servers", options->servers, 2, 64, "servers behind the balancer");
  command
      ->add_option("--store", options->store,
                   "what servers share; none: only the arrangements that share nothing")
      ->check(CLI::IsMember({"redis", "none"}))
      ->capture_default_str();
  command->add_option(
      "--load-rate", options->load_rate,
      "bytes a second of each server's link to the store, as serve takes it (default: no limit)");
  count("--documents", options->documents, 1, 10000, "documents");
  count("--document-length", options->document_tokens, 256, 1 << 20, "tokens of a document");
  count("--questions", options->questions, 2, 10000, "questions about each document");
  count("--answer-tokens", options->answer_tokens, 1, 4096, "tokens of an answer");
  count("--max-concurrency", options->concurrency, 1, 1024, "requests answered at once");
  command->add_option("--seed", options->seed, "the same seed, the same requests")
      ->check(Natural())
      ->capture_default_str();
  command->add_option("--dir", options->dir, "for logs (default: the cache directory)");
  AddJsonFile(*command, &options->json);
  command->callback([options, exit_code] {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // rows are kept as they come, in files too
    if (const Status status = bench::RunFleet(*options); !status) {
      *exit_code = Fatal(status.error());
    }
  });
}

}  // namespace kvcake
