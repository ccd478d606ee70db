// Runs a template's tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/ast.h"

namespace kvcake::jinja {

class Interpreter {
 public:
  Interpreter() = default;
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string Run(const Node& root, const Value& context);
  int line() const { return line_; }

 private:
  struct Scope : Object {
    std::shared_ptr<Scope> parent;
    Names names;
    void Set(const std::string& name, Value value);
  };
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow { kNext, kBreak, kContinue };
  class LoopItems;

  static ScopePtr Inside(const ScopePtr& parent, const Names& names = {});
  void AddGlobals(Scope* scope);
  Value Lookup(const std::string& name, const ScopePtr& scope) const;
  void Assign(const Node& target, const Value& value, const ScopePtr& scope);
  Value Eval(const Node& node, const ScopePtr& scope);
  Value EvalCollection(const Node& node, const ScopePtr& scope);
  Value EvalOperator(const Node& node, const ScopePtr& scope);
  Value Comparison(const Node& node, const ScopePtr& scope);
  Value ApplyFilter(const Node& node, const Value* piped, const ScopePtr& scope);
  Args EvalArgs(const Node& node, const ScopePtr& scope);
  static void AddNamed(const std::string& name, Value value, Args* args);
  Flow Exec(const Nodes& nodes, const ScopePtr& scope, std::string* out);
  Flow ExecOne(const Node& node, const ScopePtr& scope, std::string* out);
  Flow RunLoop(const Node& node, const Value& iterable, const ScopePtr& scope, int depth,
               std::string* out);
  bool LetsIn(const Node& loop, const Value& item, const ScopePtr& scope);
  Value MakeLoop(const Node& node, std::shared_ptr<LoopItems> items, size_t index,
                 const ScopePtr& scope, int depth, std::shared_ptr<Value> changed);
  Value MakeMacro(const Node& node, const ScopePtr& scope);
  Value CallMacro(const Node& node, const ScopePtr& scope, Args& args);
  Value MakeNamespace(Args& args);
  static void Append(std::string_view text, std::string* out);

  int line_ = 1;
  std::vector<std::shared_ptr<Object>> cyclic_;  // may hold themselves: emptied at the end
};

}  // namespace kvcake::jinja
