// What is asked of a server, and when: lists of requests that options and a seed decide, as the
// benches of vLLM and LMCache name them. Lengths are in tokens; text comes later, from a
// TextSource.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/text_source.h"

namespace kvcake::bench {

struct WorkloadOptions {
  std::string name = "long-doc-qa";
  uint64_t seed = 0;
  int num_prompts = 0;  // the first so many only; 0: all, and of random-prefill 100
  double request_rate = std::numeric_limits<double>::infinity();  // a second; inf: all at once
  std::string arrivals = "poisson";                               // or fixed
  int output_tokens = 64;
  // long-doc-qa: each document is asked about `repeat_count` times: in any order (random), all of
  // them and again (tile), or one until it is done (interleave).
  int num_documents = 8;
  int document_tokens = 4096;
  int repeat_count = 2;
  std::string repeat_mode = "random";
  // multi-round-chat: of everyone, of each user, and of each question.
  int num_users = 8;
  int num_rounds = 4;
  int shared_system_tokens = 512;
  int user_history_tokens = 1024;
  int question_tokens = 32;
  // random-prefill: lengths from input_tokens * (1 - range) to input_tokens * (1 + range).
  int input_tokens = 1024;
  double range_ratio = 0;
  // trace: Mooncake's JSON lines.
  std::string trace = {};
  double length_scale = 1;  // of prompts and answers
  double time_scale = 1;    // of the time between requests: 0.5 is twice as fast
};

struct WorkloadRequest {
  double at_s = 0;  // since the start; a later round waits for the answer before it, too
  int conversation = 0;
  int round = 0;
  std::vector<TextPiece> text = {};  // what this round adds to the conversation
  int max_tokens = 0;
};

struct Workload {
  std::string name;
  uint64_t seed = 0;
  TextPiece system = {};  // where every conversation begins; 0 tokens: with its own
  std::vector<WorkloadRequest> requests = {};  // by at_s; the rounds of a conversation in order
};

// kInvalidArgument names the option; the trace's errors its file and line.
Result<Workload> MakeWorkload(const WorkloadOptions& options);

// When `count` requests arrive, the first at 0. `poisson`: the gaps are exponential.
std::vector<double> Arrivals(int count, double rate, bool poisson, uint64_t seed);

// Requests of Mooncake's traces: an object a line, of timestamp (ms), input_length, output_length
// and hash_ids, one for each 512 tokens of the input. `source` names the text in errors.
Result<std::vector<WorkloadRequest>> ParseTrace(std::string_view text, const std::string& source,
                                                const WorkloadOptions& options);

}  // namespace kvcake::bench
