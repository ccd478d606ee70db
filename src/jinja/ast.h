// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace kvcake::jinja {

enum class NodeKind {
  // Expressions; what their children are stands behind them.
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,         // key, value, key, value ...
  kAttribute,    // object
  kItem,         // object, key
  kSlice,        // object, begin, end, step (null where left out)
  kCall,         // callee
  kFilter,       // value
  kTest,         // value
  kConditional,  // condition, value, other (may be null)
  kAnd,
  kOr,
  kNot,
  kCompare,  // operands; text has the operators, one a line
  kConcat,
  kBinary,
  kNegative,
  kPositive,
  // Statements.
  kText,
  kOutput,
  kIf,           // condition; body, other
  kFor,          // target, iterable, filter (may be null); body, other
  kSet,          // target, value
  kSetBlock,     // target, filter (may be null); body
  kMacro,        // defaults of the last parameters; parameters, body
  kCallBlock,    // the call, a macro
  kFilterBlock,  // a filter; body
  kScope,        // targets and values in turn; body
  kBreak,
  kContinue,
};

struct Node;
using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

using Names = std::vector<std::pair<std::string, Value>>;

struct Node {
  NodeKind kind;
  int line;
  int depth = 1;
  std::string text;  // a name, operator or text
  Value constant;
  Nodes children;
  Nodes body;
  Nodes other;
  // What a call, filter or test is given.
  Nodes args;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr star;
  NodePtr star_star;
  Function function = nullptr;
  // What a macro has besides.
  std::vector<std::string> parameters;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool recursive = false;
  // A scope begins with these names, which are undefined (symbols.h); a loop's else has its own.
  Names undefined;
  Names undefined_other;
};

// Calls `visit` with each expression that is a part of this one; there are no null ones.
template <typename Visit>
void EachPart(const Node& expression, const Visit& visit) {
  const auto all = [&](const Nodes& nodes) {
    for (const auto& node : nodes) {
      if (node) visit(*node);
    }
  };
  all(expression.children);
  all(expression.args);
  for (const auto& entry : expression.named) visit(*entry.second);
  if (expression.star) visit(*expression.star);
  if (expression.star_star) visit(*expression.star_star);
}

NodePtr ParseTemplate(std::string_view text);  // a kScope; raises Failure

}  // namespace kvcake::jinja
