// The questions that kvcake bench answers; one file each. Each prints a table to stdout, checks the
// answers it got on the way, and writes JSON and pictures where it is told to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/runtime.h"
#include "ops/packed_matrix.h"

namespace kvcake::bench {

// How fast is prefill, as a share of this machine's matmul rate measured in the same run?
struct PrefillOptions {
  WeightFormat weights = WeightFormat::kBf16;
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  std::string model_dir;  // empty: `archs`, with random weights
  std::vector<std::string> archs = {"smollm2-135m", "llama-3.2-1b"};
  std::vector<int> tokens = {};  // empty: 512, 2048 and 8192, and 16384 for models below 500M
  int repeats = 5;
  bool full = false;  // repeat prompts of more than 2048 tokens too
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunPrefill(const PrefillOptions& options);

// How long does a slice of x tokens take after L others? What tools/fit_slices.py makes profiles
// of.
struct SlicesOptions {
  std::string model_dir;  // empty: `archs`, with random weights
  std::vector<std::string> archs = {"smollm2-135m"};
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  std::vector<int> prefixes = {0, 1024, 2048, 4096, 8192};
  std::vector<int> tokens = {128, 256, 512, 1024};
  int repeats = 3;
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunSlices(const SlicesOptions& options);

// How fast is decoding, as a share of what reading the weights and the KV cache, or multiplying,
// must take? And what do decoding sequences add to a slice of prefill in the same step?
struct DecodeOptions {
  std::string model_dir;  // empty: `archs`, with random weights
  std::vector<std::string> archs = {"llama-3.2-1b", "smollm2-135m"};
  std::vector<WeightFormat> weights = {};    // empty: all that the backend has
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  std::vector<int> sequences = {1, 8, 32};   // at once
  int context = 1024;                        // tokens of each before the first one measured
  int steps = 16;                            // a repeat, and the tokens of each sequence in it
  int mixed_decodes = 8;                     // sequences beside a slice; 0: no such step
  int slice_tokens = 512;
  int repeats = 5;
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunDecode(const DecodeOptions& options);

// How long is it from exec to the first forward pass, against what reading, packing and digesting
// the weights once takes? With the files in the page cache, and without.
struct StartupOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "llama-3.2-1b";
  int repeats = 5;
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunStartup(const StartupOptions& options);

// How long is the wait for the first token under each policy, from slow links to fast ones, and how
// far is that from the bound?
struct TtftOptions {
  // Shapes to fill with random weights, or, with a '/', model directories.
  std::vector<std::string> models = {"smollm2-135m"};
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  std::vector<int> contexts = {128, 2048, 4096};
  std::vector<double> compute_shares = {1};                     // of each step (SharedSteps)
  std::vector<double> ratios = {0.125, 0.25, 0.5, 1, 2, 4, 8};  // load time / compute time
  std::vector<double> link_gbit = {};  // instead of ratios; infinity: the disk as it is
  std::vector<double> latencies_s = {0, 1e-3, 10e-3};      // of each read
  std::vector<double> presents = {1, 0.75, 0.5, 0.25, 0};  // share of the chunks stored
  // Latencies and presents but the first of each are measured one at a time, at these ratios (at
  // the first, with nothing stored).
  std::vector<double> variant_ratios = {0.5, 2};
  bool full = false;      // every combination, on more models and contexts: hours
  bool published = true;  // run the papers' planner, too
  int slice_tokens = 0;   // 0: DefaultSliceTokens
  int repeats = 3;
  std::string dir;  // of the store; empty: CacheDir()
  int threads = 0;
  std::string json;  // path; empty: none
  std::string svg = "ttft.svg";
  std::string kv_codec = "raw";   // of the store; ratios are of raw chunks on the same link
  std::string codec_tables = {};  // its tables, where it has some (StoreCodec::Load)
};
Status RunTtft(const TtftOptions& options);

// The same while the link, the compute share or both change in mid-request: against the bound known
// with hindsight, and against the split that was best at the start.
struct ChangesOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "smollm2-135m";
  int context = 4096;
  double ratio = 1;  // load time / compute time, at the speeds of the start
  int repeats = 3;
  std::string dir;  // of the store; empty: CacheDir()
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunChanges(const ChangesOptions& options);

// How close to the bound, known with hindsight, do restorations come on other machines and on links
// whose speeds change? Random scenarios on a fake clock; the same ones for the same seed.
struct SimulateOptions {
  std::string profiles = "bench/profiles";  // a profile, or a directory of them
  int scenarios = 100000;
  uint64_t seed = 1;
  std::string link_trace, compute_trace;  // instead of random changes (sim/speed_trace.h)
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunSimulate(const SimulateOptions& options);

// What does planning cost a step while many prompts are being restored? On a fake clock, where a
// step takes 100 ms.
struct PlannerBenchOptions {
  std::vector<int> restorations = {1, 64, 256};  // open at once, each of its own document
  std::vector<int> chunks = {1024, 1024, 256};   // of each, one for each of `restorations`
  // Ratios of what loading a chunk takes to computing it: loading all, both, and nothing is worth
  // while.
  std::vector<double> ratios = {0.01, 1, 1000};
  int steps = 50;
  std::string json;  // path; empty: none
};
Status RunPlanner(const PlannerBenchOptions& options);

// Every cell of the Cake paper's tables again, on a fake clock: how does this planner compare?
// It knows all costs exactly and nothing is noisy; of table 7's quantised caches only the bytes
// count, dequantising takes no time.
struct PapersOptions {
  std::string tables = "bench/papers", profiles = "bench/profiles";
  // What `bench codecs` wrote of a machine, to see the papers' setting with them; empty: none.
  std::string codecs = {};
  int decode_cores = 4;   // of the host
  std::string json = {};  // path; empty: none
};
Status RunPapers(const PapersOptions& options);

// Does a way of running the model (arithmetic, restored chunks) change what it says? Held-out text
// and lookups, each way against the plain run. Fails when a perplexity moved by more than allowed,
// or when chunks that are kept exactly did not give exactly the same.
struct QualityOptions {
  std::string model_dir;
  std::string text_dir;  // *.txt, and names.txt; empty: held_out in the model's directory
  int window_tokens = 8192;
  std::vector<int> lookup_tokens = {1024, 2048, 4096, 8192};
  int lookups = 99;  // of each length
  double perplexity_change_max = 0.005;
  std::vector<std::string> kv_codecs =
      {};  // not empty: what these do to it (bench/codec_quality.h)
  std::vector<std::string> codec_tables = {};  // files, for those of them that have tables
  int kv_context = 2048;                       // tokens whose cache goes through a codec,
  int kv_scored = 512;                         // and tokens that are scored on it
  std::string out_dir = "kvcake-quality";      // of the store that chunks are restored from
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunQuality(const QualityOptions& options);

// How fast do chunks come from and go to the disk, as a share of what fio (which must be installed)
// does on the same file system in the same run? To and from a CUDA device, as a share of plain
// copies? And what does loading do to compute beside it?
struct LoadOptions {
  NumericPath path = NumericPath::kUnknown;  // whose pages; kUnknown: the CPU's
  std::string beside;  // a shape of random weights or, with a '/', a model directory; empty: none
  std::string dir;     // on the file system to measure; empty: CacheDir()
  std::string store;   // redis:// or s3://, beside a bare loop, instead of a directory; empty: none
  std::vector<uint64_t> chunk_bytes = {1 << 20, 4 << 20, 16 << 20};
  // fio reads into and writes from pages of 2 MiB, as the store does; else into those of 4 KiB that
  // it takes by itself.
  bool fio_large_pages = true;
  bool encrypted = false;    // also what encryption leaves of the rate
  uint64_t bytes = 1 << 30;  // of each pass
  int repeats = 5;
  std::string json;  // path; empty: none
};
Status RunLoad(const LoadOptions& options);

// How small do codecs make a chunk, and how fast do they write and read it on one core, beside
// memcpy and (where libzstd.so.1 is installed) Zstandard in the same run? On the numbers that a
// model computes for a text, in its own chunks' shape and in those of `archs`. Checks what is read
// back.
struct CodecsOptions {
  std::string model_dir = "models/demo";
  std::string text;  // a file, or a directory of *.txt; empty: held_out in the model's directory
  int tokens = 4096;
  std::vector<std::string> archs = {"llama-3.1-8b"};
  int repeats = 5;
  int threads = 0;   // that compute the chunks
  std::string json;  // path; empty: none
};
Status RunCodecs(const CodecsOptions& options);

// Do several stores together deliver what their rates add up to?
struct TiersOptions {
  RuntimeOptions runtime = {};  // no model: `arch`; no stores: two links of 200 and 100 MB/s
  std::string arch = "smollm2-135m";
  int context = 4096;
  int repeats = 5;
  std::string json;  // path; empty: none
};
Status RunTiers(const TiersOptions& options);

// What does it cost to know what is on the disk?
struct CatalogueOptions {
  uint64_t chunks = 1000000;
  int lookups = 1000;
  bool files = false;  // also make so many files, and start a tier on them
  std::string dir;     // for them; empty: CacheDir()
};
Status RunCatalogue(const CatalogueOptions& options);

// What does the server cost beside the engine's steps? `kvcake serve` as a child process, asked
// over HTTP by one thread: on an emulated machine that leaves the cores free, and on a real model.
struct ServeOptions {
  std::string model_dir = "models/demo";  // the real model, and the emulated one's tokenizer
  int streams = 32;                       // answered at once
  int requests = 600;                     // with short prompts; a quarter of it with long ones
  int answer_tokens = 64;                 // on average; each has from half of it to half more
  double step_ms = 10;                    // of an emulated step, before what its tokens add
  int idle = 1000;                        // streams open in which nothing happens
  int sequence = 10000;                   // requests one after the other
  std::string program;                    // empty: this one
  std::string dir;                        // for logs and profiles; empty: CacheDir()
  int threads = 0;                        // of the real model
  std::string json;                       // path; empty: none
};
Status RunServe(const ServeOptions& options);

// One long prompt whose KV cache is stored, then a burst of short new ones: what both orders of
// prefill make of it, on an emulated machine or a real model (Cake, section 5.8).
struct ScheduleOptions {
  RuntimeOptions runtime = {};  // a model; neither that nor `arch`: the machine of `emulate`
  std::string arch;
  std::string emulate = "bench/profiles/a100-longalpaca-7b.json";
  int context = 16384;
  int burst = 22;
  int shortest = 32, longest = 448;  // tokens of the burst's prompts
  int answer_tokens = 16;
  std::vector<double> ratios = {0.125, 0.25, 0.5, 1, 2, 4};  // the long prompt's load / compute
  int repeats = 3;
  int crowds = 500;  // of restorations on a fake clock
  std::string json;  // path; empty: none
  std::string svg = "schedule.svg";
};
Status RunSchedule(const ScheduleOptions& options);

// The tour: questions about a long document under each policy, at three link speeds.
struct DemoOptions {
  std::string model_dir;
  std::string document = "/usr/share/common-licenses/GPL-3";
  std::string out_dir = "kvcake-demo";
  int threads = 0;
};
Status RunDemo(const DemoOptions& options);

}  // namespace kvcake::bench
