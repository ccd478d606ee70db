#include "bench/text_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <span>
#include <utility>

#include "base/hash.h"
#include "io/file_system.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kTextBytesMax = 256 << 20;
constexpr size_t kWordsMin = 100;
constexpr int kPassageWords = 16;  // about a sentence: some texts have many more tokens than others
constexpr std::string_view kBlanks = " \t\r\n";

bool IsBlank(char c) { return kBlanks.find(c) != std::string_view::npos; }

Result<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (error || files.empty()) {
    return Fail(ErrorCode::kIo, "cannot take text from {}: {}", path,
                error ? error.message() : "it has no *.txt");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<TextSource> TextSource::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const auto files, FilesOf(path));
  std::string text;
  for (const std::string& file : files) {
    auto read = ReadText(FileSystem::Real(), file, kTextBytesMax - text.size());
    if (!read) {
      return Fail(read.error().code, "{} (--text names a file or a directory of *.txt)",
                  read.error().message);
    }
    text += *read + "\n";
  }
  auto source = Of(std::move(text));
  if (!source) return Fail(source.error().code, "{}: {}", path, source.error().message);
  return source;
}

Result<TextSource> TextSource::Of(std::string text) {
  TextSource source;
  source.text_ = std::move(text);
  for (size_t i = 0; i < source.text_.size(); ++i) {
    if (!IsBlank(source.text_[i]) && (i == 0 || IsBlank(source.text_[i - 1]))) {
      source.words_.push_back(i);
    }
  }
  if (source.words_.size() < kWordsMin) {
    return Fail(ErrorCode::kInvalidArgument,
                "a text of {} words makes no prompts: at least {} are needed", source.words_.size(),
                kWordsMin);
  }
  return source;
}

size_t TextSource::EndOfWord(size_t word) const {
  return std::min(text_.find_first_of(kBlanks, words_[word]), text_.size());
}

std::string TextSource::Cut(const TextPiece& piece, double characters_per_token,
                            uint64_t seed) const {
  const auto budget = static_cast<size_t>(std::max(1.0, piece.tokens * characters_per_token));
  std::string out = piece.label + ".";
  const std::string place = fmt::format("{} {}", seed, piece.label);
  std::mt19937_64 rng(Xxh3_64(std::as_bytes(std::span(place))));
  for (;;) {
    // A word with what is between it and the word before.
    size_t word = rng() % words_.size();
    for (int i = 0; i < kPassageWords; ++i) {
      const bool apart = i == 0 || word == 0;
      const size_t from = apart ? words_[word] : EndOfWord(word - 1), to = EndOfWord(word);
      // The end nearest to the budget, so that lengths are right on average.
      if (out.size() + (to - from) / 2 >= budget) return out;
      if (apart) out += ' ';
      out.append(text_, from, to - from);
      word = (word + 1) % words_.size();
    }
  }
}

}  // namespace kvcake::bench
