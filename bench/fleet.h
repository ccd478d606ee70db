// What do several servers behind a balancer gain from one store? Emulated machines with a Redis
// cluster, asked questions about documents: with sharing, without, and one server alone; what a
// server that joins finds, and what is lost with one that is killed.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvcake::bench {

struct FleetOptions {
  std::string model_dir = "models/demo";  // the tokenizer
  std::string text = "models/demo/held_out";
  std::string profile = "bench/profiles/fleet/2xa100-llama-3.1-70b.json";
  int servers = 3;
  int documents = 12;
  int document_tokens = 4096;
  int questions = 8;  // about each
  int answer_tokens = 16;
  int concurrency = 12;  // requests at once
  uint64_t seed = 0;
  std::string store = "redis";  // "none": the arrangements that share nothing alone
  std::string load_rate = {};   // of each server's link to the store; empty: as fast as it is
  std::string program = {};     // empty: this one
  std::string dir = {};         // for logs; empty: CacheDir()
  std::string json = {};        // path; empty: none
};
// kNotFound names a program that is missing and its Debian package. Fails where an answer differs
// between two arrangements, a request fails that need not, or JoinRow::Check or KillRow::Check
// does.
Status RunFleet(const FleetOptions& options);

}  // namespace kvcake::bench
