// The questions that kvcake bench answers; one file each. Each prints a table to stdout, checks the
// answers it got on the way, and writes JSON and pictures where it is told to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// How fast is prefill, as a share of this machine's matmul rate measured in the same run?
struct PrefillOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "smollm2-135m";
  std::vector<int> tokens = {512, 2048};
  int repeats = 5;
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunPrefill(const PrefillOptions& options);

// How long is the wait for the first token under each policy, from slow links to fast ones?
struct TtftOptions {
  std::string model_dir;  // empty: `arch`, with random weights
  std::string arch = "smollm2-135m";
  int context = 4096;
  std::vector<double> ratios = {0.125, 0.25, 0.5, 1, 2, 4, 8};  // load time / compute time
  double latency_s = 0;                                         // of each read
  int repeats = 3;
  int threads = 0;
  std::string json;  // path; empty: none
  std::string svg = "ttft.svg";
};
Status RunTtft(const TtftOptions& options);

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
  std::string out_dir = "kvcake-quality";  // of the store that chunks are restored from
  int threads = 0;
  std::string json;  // path; empty: none
};
Status RunQuality(const QualityOptions& options);

// How fast do chunks come from and go to the disk, as a share of what fio (which must be installed)
// does on the same file system in the same run?
struct LoadOptions {
  std::string dir;  // on the file system to measure; empty: CacheDir()
  std::vector<uint64_t> chunk_bytes = {1 << 20, 4 << 20, 16 << 20};
  uint64_t bytes = 1 << 30;  // of each pass
  int repeats = 5;
  std::string json;  // path; empty: none
};
Status RunLoad(const LoadOptions& options);

// What does it cost to know what is on the disk?
struct CatalogueOptions {
  uint64_t chunks = 1000000;
  int lookups = 1000;
  bool files = false;  // also make so many files, and start a tier on them
  std::string dir;     // for them; empty: CacheDir()
};
Status RunCatalogue(const CatalogueOptions& options);

// The tour: questions about a long document under each policy, at three link speeds.
struct DemoOptions {
  std::string model_dir;
  std::string document = "/usr/share/common-licenses/GPL-3";
  std::string out_dir = "kvcake-demo";
  int threads = 0;
};
Status RunDemo(const DemoOptions& options);

}  // namespace kvcake::bench
