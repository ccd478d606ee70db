// A loop that several threads share.
#pragma once

#include <system_error>
#include <thread>
#include <vector>

namespace kvcake {

// Calls `loop` on so many threads, of which the caller's is one, and returns when all of the calls
// have. Where the system has no more threads, those that there are do the work.
template <typename Loop>
void OnThreads(int threads, const Loop& loop) {
  std::vector<std::jthread> others;
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back([&loop] { loop(); });
  } catch (const std::system_error&) {  // no thread is left
  }
  loop();
}

}  // namespace kvcake
