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

struct Node {
  NodeKind kind;
  int line;
  int depth = 1;
  std::string text;  // a name, operator or text
  Value constant;
  Nodes children;
  Nodes body;
  Nodes other;
  // Of a call, filter or test.
  Nodes args;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr star;
  NodePtr star_star;
  Function function = nullptr;
  // Of a macro.
  std::vector<std::string> parameters;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool recursive = false;
  // Of what has a scope: names that are undefined when it is entered (symbols.h); of a loop, also
  // those of its else.
  std::vector<std::string> undefined;
  std::vector<std::string> undefined_other;
};

NodePtr ParseTemplate(std::string_view text);  // a kScope; raises Failure

}  // namespace kvcake::jinja
