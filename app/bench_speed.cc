// kvcake bench: how fast each part of this machine's kvcake is.
#include "app/add_bench.h"
#include "bench/benches.h"
#include "model/synth.h"

namespace kvcake {
namespace {

void AddPrefill(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::PrefillOptions>();
  CLI::App* command =
      AddBench(parent, "prefill", "prefill speed as a share of the matmul rate of this machine",
               exit_code, bench::RunPrefill, options);
  command->add_option("--model", options->model_dir, "model directory (default: --arch)");
  AddWeightsFlag(*command, &options->weights);
  AddNumericPathFlag(*command, &options->path);
  AddAttentionBackendFlag(*command, &options->attention_backend);
  command->add_option("--arch", options->archs, "shapes of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command
      ->add_option("--tokens", options->tokens,
                   "prompt lengths (default: 512 2048 8192, and 16384 for models below 500M)")
      ->check(Positive());
  command->add_option("--repeats", options->repeats, "of each length up to 2048; longer run once")
      ->check(Positive())
      ->capture_default_str();
  command->add_flag("--full", options->full, "repeat the longer ones as well");
  AddJsonFile(*command, &options->json);
}

void AddSlices(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::SlicesOptions>();
  CLI::App* command = AddBench(parent, "slices",
                               "how long a slice of prefill takes after so many tokens: what "
                               "profiles of --emulate are fitted to",
                               exit_code, bench::RunSlices, options);
  command->add_option("--model", options->model_dir, "model directory (default: --arch)");
  command->add_option("--arch", options->archs, "shapes of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  AddNumericPathFlag(*command, &options->path);
  command->add_option("--prefix", options->prefixes, "tokens before the slice")
      ->check(NotNegative())
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "of the slice")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of each, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddDecode(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::DecodeOptions>();
  CLI::App* command = AddBench(parent, "decode",
                               "decoding speed against what memory and products allow, and what it "
                               "adds to a slice of prefill",
                               exit_code, bench::RunDecode, options);
  command->add_option("--model", options->model_dir, "model directory (default: --arch)");
  command->add_option("--arch", options->archs, "shapes of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command
      ->add_option_function<std::vector<std::string>>(
          "--weights",
          [options](const std::vector<std::string>& names) {
            options->weights.clear();
            for (const std::string& name : names) {
              options->weights.push_back(WeightFormatFromName(name));
            }
          },
          "how weights are held; measured side by side (default: bf16, and int8 on the CPU)")
      ->check(CLI::IsMember({"bf16", "int8"}));
  AddNumericPathFlag(*command, &options->path);
  command->add_option("--sequences", options->sequences, "how many decode at once")
      ->check(CLI::Range(1, EngineOptions{}.max_sequences))
      ->capture_default_str();
  command->add_option("--context", options->context, "tokens of each sequence before the first one")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "tokens of each sequence in a repeat")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option("--mixed-decodes", options->mixed_decodes,
                   "sequences that decode beside a slice of prefill; 0: do not measure that")
      ->check(CLI::Range(0, EngineOptions{}.max_sequences))
      ->capture_default_str();
  command->add_option("--slice-tokens", options->slice_tokens, "of that slice")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of everything, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddStartup(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::StartupOptions>();
  CLI::App* command = AddBench(parent, "startup",
                               "from exec to the first forward pass, against reading, packing and "
                               "digesting the weights once",
                               exit_code, bench::RunStartup, options);
  command->add_option("--model", options->model_dir, "model directory (default: --arch)");
  command->add_option("--arch", options->arch, "shape of random weights")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of each, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

// Not by AddBench: it computes nothing.
void AddCodecs(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::CodecsOptions>();
  CLI::App* command = AddBench(
      parent, "codecs",
      "how small codecs make a model's chunks, and how fast one core writes and reads them",
      exit_code, bench::RunCodecs, options);
  command->add_option("--model", options->model_dir, "model directory")->capture_default_str();
  command->add_option("--text", options->text,
                      "a file, or a directory of *.txt (default: held_out in the model's)");
  command->add_option("--tokens", options->tokens, "of that text, whose chunks are encoded")
      ->check(Positive())
      ->capture_default_str();
  command->add_option("--arch", options->archs, "other shapes, made of the same numbers")
      ->check(CLI::IsMember(SynthArchNames()))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "of each row, interleaved")
      ->check(Positive())
      ->capture_default_str();
  AddJsonFile(*command, &options->json);
}

void AddLoad(CLI::App* parent, int* exit_code) {
  auto options = std::make_shared<bench::LoadOptions>();
  CLI::App* command = parent->add_subcommand(
      "load", "chunks read and written, as a share of what fio does on the same file system");
  command->add_option("--dir", options->dir, "on the file system to measure")
      ->default_str("~/.cache/kvcake");
  command->add_option("--store", options->store,
                      "instead of a directory: redis:// or s3://, chunks read from it, as a share "
                      "of what a bare loop reads");
  AddNumericPathFlag(*command, &options->path);
  command->add_option("--beside", options->beside,
                      "also measure what loading does to a slice of prefill: a shape of random "
                      "weights, or a model directory");
  command
      ->add_option("--chunk-bytes", options->chunk_bytes,
                   "sizes of chunks, multiples of 256KiB, e.g. 1MiB 16MiB")
      ->transform(SizeValue())
      ->check(CLI::Range(uint64_t{256} << 10, uint64_t{64} << 20))
      ->default_str("1MiB 4MiB 16MiB");
  command->add_flag("--encrypted", options->encrypted,
                    "also read from a store with a key, and say what that leaves of the rate");
  command->add_option("--bytes", options->bytes, "of each pass")
      ->transform(SizeValue())
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 50))
      ->default_str("1GiB");
  command->add_flag("--fio-large-pages,!--no-fio-large-pages", options->fio_large_pages,
                    "give fio pages of 2 MiB as the store has; else those that it takes itself");
  command->add_option("--repeats", options->repeats, "of each pass, interleaved with fio's")
      ->check(Positive())
      ->capture_default_str();
  command->get_option("--store")->excludes("--dir", "--beside", "--encrypted");
  AddJsonFile(*command, &options->json);
  RunWhenChosen(command, bench::RunLoad, options, exit_code);
}

}  // namespace

void AddBenchSpeedCommands(CLI::App& bench, int* exit_code) {
  AddPrefill(&bench, exit_code);
  AddSlices(&bench, exit_code);
  AddDecode(&bench, exit_code);
  AddStartup(&bench, exit_code);
  AddLoad(&bench, exit_code);
  AddCodecs(&bench, exit_code);
}

}  // namespace kvcake
