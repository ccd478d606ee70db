// Runs a fuzz target without libFuzzer: the committed corpus as it is, then seeded mutations of it,
// the same ones every time. Linked with each x_fuzz.cc, so that any compiler tests them.
//
//   x_fuzz_replay CORPUS_DIR MUTATIONS
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kInputBytesMax = 1 << 20;
constexpr size_t kMutatedBytesMax = 64 << 20;  // of all mutations: large inputs get fewer
constexpr std::string_view kFragments[] = {"0",
                                           "-1",
                                           "1e999",
                                           "18446744073709551616",
                                           "9223372036854775807",
                                           "NaN",
                                           "null",
                                           "true",
                                           "\"\"",
                                           "{}",
                                           "[]",
                                           "[[[[[[[[",
                                           "\"",
                                           "\\u0000",
                                           "\xff",
                                           "\xed\xa0\x80",
                                           ",",
                                           ":",
                                           "}",
                                           "\n"};

int number = 0;  // of the input that runs; the handler prints it

void PrintInput(int signal) {
  std::fprintf(stderr, "failed on input %d (corpus first, then mutations)\n", number);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  // The seeds in turn, each with one to four small changes.
  std::string Next() {
    std::string input = corpus_[turn_++ % corpus_.size()];
    const size_t changes = 1 + Below(4);
    for (size_t i = 0; i < changes; ++i) Change(input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  size_t Below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  void Change(std::string& input) {
    const size_t at = Below(input.size() + 1);
    const size_t count = std::min(input.size() - at, size_t{1} << Below(8));
    switch (Below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
        return;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(Below(256));
        return;
      case 2:
        input.erase(at, count);
        return;
      case 3:
        input.insert(at, std::string(input, at, count));
        return;
      case 4:
        input.replace(at, Below(count + 1), kFragments[Below(std::size(kFragments))]);
        return;
      case 5: {  // a piece of another seed
        const std::string& other = corpus_[Below(corpus_.size())];
        input.replace(at, count, other, Below(other.size() + 1), size_t{1} << Below(10));
        return;
      }
      default:
        if (Below(4) == 0) input.resize(at);
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_{1};
  size_t turn_ = 0;
};

void RunOne(const std::string& input) {
  // On the heap in its exact size, so that a sanitizer sees a read past its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  ++number;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus in %s\n", argv[1]);
    return 1;
  }
  for (const int fatal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) signal(fatal, PrintInput);

  RunOne("");
  for (const std::string& input : corpus) RunOne(input);
  Mutator mutator(corpus);
  size_t bytes = 0;
  for (int i = 0; i < std::atoi(argv[2]) && bytes < kMutatedBytesMax; ++i) {
    const std::string input = mutator.Next();
    bytes += input.size();
    RunOne(input);
  }
  std::printf("%d inputs, %zu bytes of mutations\n", number, bytes);
  return 0;
}
