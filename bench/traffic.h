// A workload on an OpenAI-compatible server: open loop, as its users would ask.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bench/answer_reader.h"
#include "bench/workload.h"

namespace kvcake::bench {

struct TrafficProgress {
  const char* doing = "";  // "answered" or "checked"
  size_t done = 0, failed = 0, total = 0;
  size_t running = 0;
  double ttft_s = 0;  // of the answer that began last; 0: none has
};

struct TrafficOptions {
  std::string url;
  std::string api_key = {};  // empty: none
  std::string model = {};    // empty: the first that the server has
  bool chat = false;         // asked as chats; else as completions
  std::string text = "models/demo/held_out";
  double characters_per_token = 0;  // 0: found out by asking the server
  std::string extra_body = {};      // a JSON object, merged into each request; empty: none
  bool ignore_eos = false;          // answers as long as they may be
  int max_concurrency = 1024;       // more wait before they are sent
  Seconds timeout{600};             // of a request
  int retries = 0;                  // of one that fails, at once
  bool check = false;               // ask again for everything, cold and one by one
  std::function<void(const TrafficProgress&)> progress = {};  // a few times a second
};

// Seconds are since the start of the run.
struct TrafficAnswer {
  int conversation = 0, round = 0;
  int planned_tokens = 0;  // of the prompt
  double due_s = 0;        // its arrival, or the end of the round before
  double sent_s = 0;
  int tries = 1;
  Answer answer = {};  // to the last of them

  double ttft_s() const { return answer.token_s.front() - sent_s; }
};

// An answer that was another one when it was computed from nothing.
struct TrafficDifference {
  size_t request = 0;   // of the workload
  size_t position = 0;  // the first byte that differs
  std::string run = {}, cold = {};
  std::string error = {};  // it could not be asked again
};

struct TrafficResult {
  std::string model = {};
  double characters_per_token = 0;
  double duration_s = 0;
  std::vector<TrafficAnswer> answers = {};  // of each of the workload's requests
  size_t checked = 0;
  size_t checked_cached = 0;  // whose cold run the server says was not
  std::vector<TrafficDifference> differences = {};
};

// Runs it on the caller's thread. An answer that fails is in the result; an error is what keeps all
// from being asked: no server, no model, a key that is refused.
Result<TrafficResult> RunTraffic(const TrafficOptions& options, const Workload& workload);

}  // namespace kvcake::bench
