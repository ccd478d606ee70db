#include "runahead/speeds_file.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/json_file.h"
#include "base/mutex.h"

namespace kvcake {
namespace {

constexpr Seconds kEndMax{1};

}  // namespace

// Outlives the file where a write hangs.
struct SpeedsFile::State {
  State(std::string path, FileSystem& fs) : path(std::move(path)), fs(fs) {}

  // Until nothing is left to be written.
  void Write() {
    MutexLock lock(mutex);
    while (next) {
      const std::string text = *std::exchange(next, std::nullopt);
      lock.Unlock();
      Note(WriteText(fs, path, text));
      lock.Lock();
    }
    writing = false;
    written.NotifyAll();
  }

  // A directory that is not there has been cleared, and there is nothing to keep speeds for.
  void Note(const Status& saved) {
    const bool fails = !saved && saved.error().code != ErrorCode::kNotFound;
    if (fails && !failed) {
      spdlog::warn("the ranks' speeds are not kept: {}", saved.error().message);
    }
    failed = fails;
  }

  const std::string path;
  FileSystem& fs;
  bool failed = false;  // the last write did; the thread's
  Mutex mutex;
  CondVar written;
  std::optional<std::string> next GUARDED_BY(mutex);
  bool writing GUARDED_BY(mutex) = false;  // a thread is
};

SpeedsFile::SpeedsFile(std::string path, FileSystem& fs)
    : state_(std::make_shared<State>(std::move(path), fs)) {}

SpeedsFile::~SpeedsFile() {
  const TimePoint deadline = Clock::Real().Now() + kEndMax;
  MutexLock lock(state_->mutex);
  while (state_->writing && state_->written.WaitUntil(state_->mutex, deadline)) {
  }
}

std::vector<double> SpeedsFile::Load() const {
  if (state_->path.empty()) return {};
  const auto json = ReadJsonFile(state_->path);
  if (!json && json.error().code == ErrorCode::kNotFound) return {};
  std::vector<double> speeds;
  if (json && json->is_array()) {
    for (const auto& speed : *json) {
      const double value = speed.is_number() ? speed.get<double>() : 0;
      if (IsSpeed(value)) speeds.push_back(value);
    }
    if (speeds.size() == json->size()) return speeds;
  }
  spdlog::warn("{} is not a file of ranks' speeds, learning them anew", state_->path);
  return {};
}

void SpeedsFile::Save(const std::vector<double>& speeds) {
  if (state_->path.empty()) return;
  MutexLock lock(state_->mutex);
  state_->next = nlohmann::json(speeds).dump() + "\n";
  if (std::exchange(state_->writing, true)) return;
  std::thread([state = state_] { state->Write(); }).detach();
}

}  // namespace kvcake
