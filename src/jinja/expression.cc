#include <cmath>

#include "jinja/interpreter.h"

namespace kvcake::jinja {

namespace {

bool HasName(const Node& node) {
  bool has = node.kind == NodeKind::kName;
  EachPart(node, [&](const Node& part) { has = has || HasName(part); });
  return has;
}

// jinja2 writes -2 ** x for Python as it stands where -2 is a constant and x is none: -(2 ** x).
void CheckPower(const Node& node, const Value& base) {
  const bool negative =
      base.IsNumber() &&
      std::signbit(base.IsInteger() ? static_cast<double>(base.integer) : base.real);
  if (negative && !HasName(*node.children[0]) && HasName(*node.children[1])) {
    RaiseUnsupported("** of a constant below 0");
  }
}

}  // namespace

void Interpreter::AddNamed(const std::string& name, Value value, Args* args) {
  Budget::Spend(args->named.size() / 8);
  for (const auto& entry : args->named) {
    if (entry.first == name) Raise("there are two values for the keyword argument {}", name);
  }
  args->named.emplace_back(name, std::move(value));
}

Args Interpreter::EvalArgs(const Node& node, const ScopePtr& scope) {
  Args args;
  for (const auto& arg : node.args) args.values.push_back(Eval(*arg, scope));
  if (node.star) {
    for (Value& value : Iterate(Eval(*node.star, scope))) args.values.push_back(std::move(value));
  }
  for (const auto& [name, arg] : node.named) args.named.emplace_back(name, Eval(*arg, scope));
  if (node.star_star) {
    const Value more = Eval(*node.star_star, scope);
    if (!more.Is(Type::kDict)) Raise("** takes a dictionary");
    for (const auto& [key, value] : more.Dict()) AddNamed(Str(key), value, &args);
  }
  return args;
}

Value Interpreter::ApplyFilter(const Node& node, const Value* piped, const ScopePtr& scope) {
  const Node* inner = node.children[0].get();
  Value value;
  if (!inner) {
    value = *piped;
  } else if (inner->kind == NodeKind::kFilter) {
    value = ApplyFilter(*inner, piped, scope);
  } else {
    value = Eval(*inner, scope);
  }
  Args args = EvalArgs(node, scope);
  line_ = node.line;
  Budget::Spend(1);
  return node.function(value, args);
}

Value Interpreter::Comparison(const Node& node, const ScopePtr& scope) {
  Value left = Eval(*node.children[0], scope);
  std::string_view ops = node.text;
  for (size_t i = 1; i < node.children.size(); ++i) {
    const auto op = ops.substr(0, ops.find('\n'));
    ops.remove_prefix(op.size() + 1);
    Value right = Eval(*node.children[i], scope);
    bool holds = false;
    if (op == "==")
      holds = Equal(left, right);
    else if (op == "!=")
      holds = !Equal(left, right);
    else if (op == "in")
      holds = Contains(left, right);
    else if (op == "not in")
      holds = !Contains(left, right);
    else if (op == "<")
      holds = Compare(left, right) < 0;
    else if (op == "<=")
      holds = Compare(left, right) <= 0;
    else if (op == ">")
      holds = Compare(left, right) > 0;
    else
      holds = Compare(left, right) >= 0;
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvalCollection(const Node& node, const ScopePtr& scope) {
  if (node.kind == NodeKind::kDict) {
    Value dict = Value::Dict({});
    Items items;
    for (size_t i = 0; i < node.children.size(); i += 2) {
      Value key = Eval(*node.children[i], scope);
      Value value = Eval(*node.children[i + 1], scope);
      const Value* found = dict.Find(key);
      if (found) {
        *const_cast<Value*>(found) = std::move(value);
      } else {
        dict.Dict().emplace_back(std::move(key), std::move(value));
      }
    }
    return Value::Dict(std::move(dict.Dict()));
  }
  Values values;
  for (const auto& child : node.children) values.push_back(Eval(*child, scope));
  return Value::List(std::move(values), node.kind == NodeKind::kList ? Type::kList : Type::kTuple);
}

Value Interpreter::EvalOperator(const Node& node, const ScopePtr& scope) {
  switch (node.kind) {
    case NodeKind::kAnd: {
      Value left = Eval(*node.children[0], scope);
      return left.Truth() ? Eval(*node.children[1], scope) : left;
    }
    case NodeKind::kOr: {
      Value left = Eval(*node.children[0], scope);
      return left.Truth() ? left : Eval(*node.children[1], scope);
    }
    case NodeKind::kNot:
      return Value::Bool(!Eval(*node.children[0], scope).Truth());
    case NodeKind::kConcat: {
      std::string text;
      for (const auto& child : node.children) Append(Str(Eval(*child, scope)), &text);
      return Value::String(std::move(text));
    }
    case NodeKind::kBinary: {
      const Value left = Eval(*node.children[0], scope);
      if (node.text == "**") CheckPower(node, left);
      return Binary(node.text, left, Eval(*node.children[1], scope));
    }
    default: {
      Value value = Eval(*node.children[0], scope);
      if (!value.IsNumber()) Raise("bad operand type for unary sign: '{}'", TypeName(value));
      if (node.kind == NodeKind::kPositive) return Binary("+", Value::Int(0), value);
      return value.Is(Type::kFloat) ? Value::Float(-value.real) : Binary("-", Value::Int(0), value);
    }
  }
}

Value Interpreter::Eval(const Node& node, const ScopePtr& scope) {
  const DepthGuard guard;
  Budget::Spend(1);
  line_ = node.line;
  switch (node.kind) {
    case NodeKind::kConstant:
      return node.constant;
    case NodeKind::kName:
      return Lookup(node.text, scope);
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kDict:
      return EvalCollection(node, scope);
    case NodeKind::kAttribute:
      return GetAttribute(Eval(*node.children[0], scope), node.text);
    case NodeKind::kItem: {
      const Value object = Eval(*node.children[0], scope);
      return GetItem(object, Eval(*node.children[1], scope));
    }
    case NodeKind::kSlice: {
      Value parts[4];
      for (int i = 0; i < 4; ++i) {
        parts[i] = node.children[i] ? Eval(*node.children[i], scope) : Value::None();
      }
      return Slice(parts[0], parts[1], parts[2], parts[3]);
    }
    case NodeKind::kCall: {
      const Value callee = Eval(*node.children[0], scope);
      Args args = EvalArgs(node, scope);
      line_ = node.line;
      return Call(callee, args);
    }
    case NodeKind::kFilter:
      return ApplyFilter(node, nullptr, scope);
    case NodeKind::kTest: {
      const Value value = Eval(*node.children[0], scope);
      Args args = EvalArgs(node, scope);
      return node.function(value, args);
    }
    case NodeKind::kConditional:
      if (Eval(*node.children[0], scope).Truth()) return Eval(*node.children[1], scope);
      if (node.children[2]) return Eval(*node.children[2], scope);
      return Value::Undefined("the inline if has no else");
    case NodeKind::kCompare:
      return Comparison(node, scope);
    default:
      return EvalOperator(node, scope);
  }
}

}  // namespace kvcake::jinja
