// Bodies of requests, with the text of their prompts.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "bench/text_source.h"
#include "bench/workload.h"

namespace kvcake::bench {

// A round of a conversation, and how it was answered.
struct Turn {
  const WorkloadRequest* request = nullptr;
  const std::string* answer = nullptr;  // null: it is the one to be asked
};

class PromptWriter {
 public:
  struct Options {
    std::string model;
    bool chat = false;        // messages, for /v1/chat/completions; else one text
    bool ignore_eos = false;  // answers as long as they may be
    nlohmann::json extra;     // merged into each body
    double characters_per_token = 4;
  };
  // The references outlive it.
  PromptWriter(const TextSource& source, const Workload& workload, Options options);

  const char* path() const;
  // Asks for the last of the turns; `more` is merged in after all else.
  std::string Body(std::span<const Turn> turns, const nlohmann::json& more = {}) const;

 private:
  std::string Text(std::span<const TextPiece> pieces) const;
  nlohmann::json Prompt(std::span<const Turn> turns) const;
  nlohmann::json Messages(std::span<const Turn> turns) const;

  const TextSource& source_;
  const Workload& workload_;
  const Options options_;
};

}  // namespace kvcake::bench
