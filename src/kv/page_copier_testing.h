// A copier for tests, which takes memory of the host for that of a device.
#pragma once

#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/callback_thread.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kv/page_copier.h"

namespace kvcake::testing_util {

struct CopierOptions {
  bool hold_to_page = false;  // until they are set otherwise
  bool hold_from_page = false;
  Seconds delay_max{0};  // of each, drawn at random: any order comes about
};

class FakeCopier : public PageCopier {
 public:
  // Pages are not where the tier thinks they are, but so much further.
  explicit FakeCopier(size_t page_shift = 0) : page_shift_(page_shift) {}

  void ToPage(std::span<std::byte> page, std::span<const std::byte> staging,
              std::function<void()> done) override {
    CHECK(page.size() == staging.size());
    Add({page.data() + page_shift_, staging, std::move(done), true});
  }
  void FromPage(std::span<std::byte> staging, std::span<const std::byte> page,
                std::function<void()> done) override {
    CHECK(page.size() == staging.size());
    Add({staging.data(), {page.data() + page_shift_, page.size()}, std::move(done), false});
  }
  void AfterOperations(std::function<void()> reached) override {  // those of a host are done
    thread_.Soon(std::move(reached));
  }

  void Set(CopierOptions options) {
    MutexLock lock(mutex_);
    options_ = options;
    StartLocked();
  }
  size_t held() const {
    MutexLock lock(mutex_);
    return held_.size();
  }
  uint64_t bytes() const {  // of the copies started
    MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  struct Copy {
    std::byte* to;
    std::span<const std::byte> from;
    std::function<void()> done;
    bool to_page;
  };

  void Add(Copy copy) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    held_.push_back(std::move(copy));
    StartLocked();
  }
  void StartLocked() REQUIRES(mutex_) {
    std::erase_if(held_, [this](const Copy& copy) {
      mutex_.AssertHeld();
      if (copy.to_page ? options_.hold_to_page : options_.hold_from_page) return false;
      bytes_ += copy.from.size();
      const double part = std::uniform_real_distribution<double>(0, 1)(random_);
      thread_.At(Clock::Real().Now() + part * options_.delay_max, [copy] {
        std::memcpy(copy.to, copy.from.data(), copy.from.size());
        copy.done();
      });
      return true;
    });
  }

  const size_t page_shift_;

  mutable Mutex mutex_;
  CopierOptions options_ GUARDED_BY(mutex_);
  std::vector<Copy> held_ GUARDED_BY(mutex_);
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  std::mt19937 random_ GUARDED_BY(mutex_){1};

  CallbackThread thread_;  // last: it ends before the rest goes
};

}  // namespace kvcake::testing_util
