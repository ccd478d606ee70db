#include "server/trace_files.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "cake/trace.h"

namespace kvcake {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSuffix = ".trace.json";

}  // namespace

Result<std::unique_ptr<TraceFiles>> TraceFiles::Open(const std::string& dir, size_t files_max) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return Fail(ErrorCode::kIo, "--trace-dir {}: {}", dir, error.message());
  std::unique_ptr<TraceFiles> files(new TraceFiles(dir, files_max));
  RETURN_IF_ERROR(files->FindFiles());
  files->thread_ = std::thread([files = files.get()] { files->Work(); });
  return files;
}

// What earlier processes have left.
Status TraceFiles::FindFiles() {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (fs::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().ends_with(kSuffix)) continue;
    std::error_code gone;
    const auto time = it->last_write_time(gone);
    if (!gone) found.emplace_back(time, it->path().string());
  }
  if (error) return Fail(ErrorCode::kIo, "--trace-dir {}: {}", dir_, error.message());
  std::sort(found.begin(), found.end());
  for (auto& [time, path] : found) files_.push_back(std::move(path));
  return {};
}

TraceFiles::~TraceFiles() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

void TraceFiles::Write(const std::string& id, RestoreReport report) {
  {
    MutexLock lock(mutex_);
    if (queue_.size() < kQueueMax) {
      queue_.emplace_back(id, std::move(report));
      changed_.NotifyOne();
      return;
    }
  }
  spdlog::warn("--trace-dir {} is too slow: the trace of {} is left out", dir_, id);
}

void TraceFiles::Work() {
  for (;;) {
    std::pair<std::string, RestoreReport> next;
    {
      MutexLock lock(mutex_);
      while (!stop_ && queue_.empty()) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    const std::string path = fmt::format("{}/{}{}", dir_, next.first, kSuffix);
    const Status status = WriteOne(path, next.second);
    if (!status && !failing_) spdlog::warn("{}; answers go on", status.error().message);
    failing_ = !status;
  }
}

Status TraceFiles::WriteOne(const std::string& path, const RestoreReport& report) {
  std::error_code ignored;  // it may be gone already
  while (files_.size() >= files_max_) {
    fs::remove(files_.front(), ignored);
    files_.pop_front();
  }
  const Status status = WriteChromeTrace(path, report);
  if (status) {
    files_.push_back(path);
  } else {
    fs::remove(path, ignored);  // half of a trace helps nobody
  }
  return status;
}

}  // namespace kvcake
