#include "jinja/template.h"

#include "base/utf8.h"
#include "jinja/ast.h"
#include "jinja/interpreter.h"

namespace kvcake::jinja {

namespace {

// Makes a budget the thread's for a scope, which an exception may end, too: memory that runs out.
class Installed {
 public:
  explicit Installed(Budget* budget) : before_(std::exchange(Budget::Current(), budget)) {}
  ~Installed() { Budget::Current() = before_; }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

 private:
  Budget* const before_;
};

}  // namespace

struct Template::Tree {
  NodePtr root;
};

Result<Template> Template::Parse(std::string_view text) {
  if (!IsValidUtf8(text)) {
    return Fail(ErrorCode::kInvalidArgument, "the template is not valid UTF-8");
  }
  try {
    auto tree = std::make_shared<Tree>();
    tree->root = ParseTemplate(text);
    return Template(std::move(tree));
  } catch (const Failure& failure) {
    return tl::unexpected<Error>(Error{failure.code, failure.message});
  }
}

Result<std::string> Template::Render(const nlohmann::ordered_json& context,
                                     const Limits& limits) const {
  Budget budget{limits.steps, limits.depth, limits.output_bytes};
  const Installed installed(&budget);
  Interpreter interpreter;
  try {
    return interpreter.Run(*tree_->root, Value::FromJson(context));
  } catch (const Failure& failure) {
    return Fail(failure.code, "line {}: {}{}", interpreter.line(), failure.message,
                failure.code == ErrorCode::kUnsupported ? " is not known" : "");
  }
}

}  // namespace kvcake::jinja
