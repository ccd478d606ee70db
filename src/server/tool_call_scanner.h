// JSON that comes a character at a time: how far a value goes, and what a call says.
#pragma once

#include <string>
#include <string_view>

namespace kvcake {

// Finds the end of a value. Brackets and strings must match; the rest is taken as it is.
class JsonValueScanner {
 public:
  enum class State {
    kMore,        // the value goes on
    kDone,        // this character was its last
    kDoneBefore,  // it had ended before this character
    kBad,
  };

  // The first character is the value's first.
  State Next(char c);
  // The next character as JSON has it: models write control characters into strings as they are.
  std::string Escaped(char c) const;

 private:
  State Open(char c);
  State Close(char c);

  std::string open_;  // closing brackets that are to come
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Reads {"name": "...", "arguments": ...}, in any order; "parameters" is another name of the
// latter, and members of other names are skipped.
class ToolCallScanner {
 public:
  enum class State { kMore, kDone, kBad };

  // The first character is the object's brace. kDone: this was the object's last character, and it
  // had both members.
  State Next(char c);
  // The name is known, and what the arguments are has begun: this is a call.
  bool is_call() const { return !name_.empty() && arguments_begun_; }
  const std::string& name() const { return name_; }
  // What has come of the arguments since the last time.
  std::string TakeArguments();

 private:
  enum class Part {
    kStart,
    kKeyOrEnd,
    kBeforeKey,
    kKey,
    kColon,
    kBeforeValue,
    kValue,
    kAfterValue
  };

  State InKey(char c);
  State InValue(char c);
  State AfterValue(char c);
  // False: the value makes no sense.
  bool EndValue();
  bool IsArguments() const { return key_ == "\"arguments\"" || key_ == "\"parameters\""; }

  Part part_ = Part::kStart;
  JsonValueScanner scanner_;
  std::string key_;    // with its quotes
  std::string value_;  // of the name
  std::string name_;
  std::string arguments_;
  bool arguments_begun_ = false;
  bool arguments_done_ = false;
};

bool IsJsonSpace(char c);

}  // namespace kvcake
