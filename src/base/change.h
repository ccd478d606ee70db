// A change that cannot be undone where memory runs out in the midst of it.
#pragma once

#include <exception>

namespace kvcake {

// For a scope: sets `broken` where an exception ends it.
class Change {
 public:
  explicit Change(bool& broken) : broken_(broken), exceptions_(std::uncaught_exceptions()) {}
  ~Change() { broken_ = broken_ || std::uncaught_exceptions() > exceptions_; }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  bool& broken_;
  const int exceptions_;
};

}  // namespace kvcake
