// A chat template: Jinja as jinja2 runs it when transformers sets it up (sandboxed, trim_blocks,
// lstrip_blocks, loop controls, the generation tag). What it does not know is an error that names
// line and construct, never a guess.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake::jinja {

struct Limits {
  uint64_t steps = 5'000'000;
  int depth = 400;
  size_t output_bytes = 64 << 20;  // also of every string on the way
};

class Template {
 public:
  // kInvalidArgument for what is no template, kUnsupported for what is not known here.
  static Result<Template> Parse(std::string_view text);

  // May be called by several threads at once. Fails with kInvalidArgument where jinja2 would or the
  // template raises, kUnsupported for what is not known, kResourceExhausted at a limit.
  Result<std::string> Render(const nlohmann::ordered_json& context,
                             const Limits& limits = {}) const;

 private:
  struct Tree;
  explicit Template(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const Tree> tree_;
};

}  // namespace kvcake::jinja
