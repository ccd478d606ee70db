#include "jinja/template.h"

#include "base/utf8.h"
#include "jinja/ast.h"
#include "jinja/interpreter.h"

namespace kvcake::jinja {

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
  Budget* const before = std::exchange(Budget::Current(), &budget);
  Result<std::string> result;
  {
    Interpreter interpreter;
    try {
      result = interpreter.Run(*tree_->root, Value::FromJson(context));
    } catch (const Failure& failure) {
      result = Fail(failure.code, "line {}: {}{}", interpreter.line(), failure.message,
                    failure.code == ErrorCode::kUnsupported ? " is not known" : "");
    }
  }
  Budget::Current() = before;
  return result;
}

}  // namespace kvcake::jinja
