#include "jinja/interpreter.h"

#include <algorithm>
#include <ctime>

namespace kvcake::jinja {

Interpreter::~Interpreter() {
  for (const auto& object : cyclic_) {
    if (auto* scope = dynamic_cast<Scope*>(object.get())) scope->names.clear();
    if (auto* space = dynamic_cast<DictObject*>(object.get())) space->items.clear();
  }
}

void Interpreter::Scope::Set(const std::string& name, Value value) {
  for (auto& entry : names) {
    if (entry.first == name) {
      entry.second = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Interpreter::ScopePtr Interpreter::Inside(const ScopePtr& parent, const Names& names) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  scope->names = names;
  return scope;
}

std::string Interpreter::Run(const Node& root, const Value& context) {
  if (!context.Is(Type::kDict)) Raise("a template's context is an object");
  const ScopePtr globals = Inside(nullptr);
  AddGlobals(globals.get());
  const ScopePtr given = Inside(globals);
  for (const auto& [key, value] : context.Dict()) given->names.emplace_back(key.Text(), value);
  std::string out;
  ExecOne(root, given, &out);
  return out;
}

void Interpreter::Append(std::string_view text, std::string* out) {
  Budget::CheckSize(out->size() + text.size());
  Budget::Spend(text.size() / 64);
  out->append(text);
}

namespace {

// What dict() and namespace() are given. A name takes the place of the dictionary's.
Items ItemsOf(const Args& args, std::string_view what) {
  if (args.values.size() > 1) Raise("{}() takes at most one value without a name", what);
  Items items;
  for (const Value& value : args.values) {
    if (!value.Is(Type::kDict)) RaiseUnsupported("{}() of what is no dictionary", what);
    items = value.Dict();
  }
  for (const auto& named : args.named) {
    Budget::Spend(items.size() / 8);
    const auto found = std::find_if(items.begin(), items.end(), [&named](const auto& item) {
      return item.first.Is(Type::kString) && item.first.Text() == named.first;
    });
    if (found != items.end()) {
      found->second = named.second;
    } else {
      items.emplace_back(Value::String(named.first), named.second);
    }
  }
  return items;
}

}  // namespace

Value Interpreter::MakeNamespace(Args& args) {
  Value value = Value::Dict({});
  value.Dict() = ItemsOf(args, "namespace");
  value.type = Type::kNamespace;
  cyclic_.push_back(value.object);
  return value;
}

namespace {

Value Range(Args& args) {
  const auto bound = Bind(args, "range", {"start", "stop", "step"});
  int64_t numbers[3] = {0, 0, 1};
  for (int i = 0; i < 3; ++i) {
    if (!bound[i]) continue;
    if (!bound[i]->IsInteger()) Raise("range() takes integers");
    numbers[i] = bound[i]->integer;
  }
  if (!bound[0]) Raise("range() takes an argument");
  if (!bound[1]) std::swap(numbers[0], numbers[1]);
  const auto [start, stop, step] = numbers;
  if (step == 0) Raise("range() takes no step of 0");
  Values values;
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (values.size() >= 100000) Raise("a range is longer than 100000, which the sandbox allows");
    values.push_back(Value::Int(static_cast<int64_t>(i)));
  }
  std::string text = step == 1 ? fmt::format("range({}, {})", start, stop)
                               : fmt::format("range({}, {}, {})", start, stop, step);
  return Value::List(std::move(values), Type::kSequence, std::move(text));
}

Value Dictionary(Args& args) { return Value::Dict(ItemsOf(args, "dict")); }

Value StrftimeNow(Args& args) {
  const auto bound = Bind(args, "strftime_now", {"format"});
  if (!bound[0] || !bound[0]->Is(Type::kString)) Raise("strftime_now() takes a format");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(bound[0]->Text().size() * 16 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), bound[0]->Text().c_str(), &local));
  return Value::String(std::move(out));
}

Value Cycler(Args& args) {
  if (args.values.empty()) Raise("cycler() takes values");
  auto values = std::make_shared<Values>(args.values);
  auto index = std::make_shared<size_t>(0);
  auto object = std::make_shared<AttributesObject>();
  object->get = [values, index](const std::string& name) {
    if (name == "current") return (*values)[*index];
    if (name != "next" && name != "reset") RaiseUnsupported("a cycler's {}", name);
    const bool next = name == "next";
    return Value::Callable(name, [values, index, next](Args&) {
      Value current = (*values)[*index];
      *index = next ? (*index + 1) % values->size() : 0;
      return next ? current : Value::None();
    });
  };
  Value value;
  value.type = Type::kObject;
  value.object = std::move(object);
  return value;
}

Value Joiner(Args& args) {
  const auto bound = Bind(args, "joiner", {"sep"});
  auto used = std::make_shared<bool>(false);
  const Value sep = bound[0] ? *bound[0] : Value::String(", ");
  return Value::Callable("joiner", [used, sep](Args&) {
    return std::exchange(*used, true) ? sep : Value::String("");
  });
}

}  // namespace

void Interpreter::AddGlobals(Scope* scope) {
  const auto add = [&](const char* name, std::function<Value(Args&)> call) {
    scope->names.emplace_back(name, Value::Callable(name, std::move(call)));
  };
  add("range", Range);
  add("dict", Dictionary);
  add("cycler", Cycler);
  add("joiner", Joiner);
  add("strftime_now", StrftimeNow);
  add("namespace", [this](Args& args) { return MakeNamespace(args); });
  add("lipsum", [](Args&) -> Value { RaiseUnsupported("lipsum"); });
  add("raise_exception", [](Args& args) -> Value {
    const auto bound = Bind(args, "raise_exception", {"message"});
    Raise("{}", bound[0] ? Str(*bound[0]) : "raise_exception");
  });
}

Value Interpreter::Lookup(const std::string& name, const ScopePtr& scope) const {
  for (const Scope* at = scope.get(); at; at = at->parent.get()) {
    Budget::Spend(1);
    for (const auto& entry : at->names) {
      if (entry.first == name) return entry.second;
    }
  }
  return Value::Undefined(fmt::format("'{}' is undefined", name));
}

void Interpreter::Assign(const Node& target, const Value& value, const ScopePtr& scope) {
  if (target.kind == NodeKind::kName) {
    scope->Set(target.text, value);
  } else if (target.kind == NodeKind::kAttribute) {
    const Value space = Lookup(target.children[0]->text, scope);
    if (!space.Is(Type::kNamespace)) Raise("cannot assign attribute on non-namespace object");
    for (auto& [key, old] : space.Dict()) {
      if (key.Text() == target.text) {
        const Value gone = std::exchange(old, value);
        return;
      }
    }
    space.Dict().emplace_back(Value::String(target.text), value);
  } else {
    const Values values = Iterate(value);
    if (values.size() != target.children.size()) {
      Raise("{} values for {} names", values.size(), target.children.size());
    }
    for (size_t i = 0; i < values.size(); ++i) Assign(*target.children[i], values[i], scope);
  }
}

Interpreter::Flow Interpreter::Exec(const Nodes& nodes, const ScopePtr& scope, std::string* out) {
  for (const auto& node : nodes) {
    const Flow flow = ExecOne(*node, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecOne(const Node& node, const ScopePtr& scope, std::string* out) {
  const DepthGuard guard;
  Budget::Spend(1);
  line_ = node.line;
  switch (node.kind) {
    case NodeKind::kText:
      Append(node.text, out);
      break;
    case NodeKind::kOutput:
      Append(Str(Eval(*node.children[0], scope)), out);
      break;
    case NodeKind::kIf:
      return Exec(Eval(*node.children[0], scope).Truth() ? node.body : node.other, scope, out);
    case NodeKind::kFor:
      return RunLoop(node, Eval(*node.children[1], scope), scope, 1, out);
    case NodeKind::kSet:
      Assign(*node.children[0], Eval(*node.children[1], scope), scope);
      break;
    case NodeKind::kSetBlock:
    case NodeKind::kFilterBlock: {
      std::string text;
      const Flow flow = Exec(node.body, Inside(scope, node.undefined), &text);
      if (flow != Flow::kNext) return flow;  // the block is left, its text lost
      const bool sets = node.kind == NodeKind::kSetBlock;
      Value value = Value::String(std::move(text));
      const Node* filter = node.children[sets ? 1 : 0].get();
      if (filter) value = ApplyFilter(*filter, &value, scope);
      if (sets) {
        Assign(*node.children[0], value, scope);
      } else {
        if (!value.Is(Type::kString)) Raise("a filter block makes text, not {}", TypeName(value));
        Append(value.Text(), out);
      }
      break;
    }
    case NodeKind::kMacro:
      scope->Set(node.text, MakeMacro(node, scope));
      break;
    case NodeKind::kCallBlock: {
      const Node& call = *node.children[0];
      const Value callee = Eval(*call.children[0], scope);
      Args args = EvalArgs(call, scope);
      AddNamed("caller", MakeMacro(*node.children[1], scope), &args);
      Append(Str(Call(callee, args)), out);
      break;
    }
    case NodeKind::kScope: {
      const ScopePtr inner = Inside(scope, node.undefined);
      for (size_t i = 0; i < node.children.size(); i += 2) {
        Assign(*node.children[i], Eval(*node.children[i + 1], scope), inner);
      }
      return Exec(node.body, inner, out);
    }
    case NodeKind::kBreak:
      return Flow::kBreak;
    case NodeKind::kContinue:
      return Flow::kContinue;
    default:
      RaiseUnsupported("the statement");
  }
  return Flow::kNext;
}

// What a loop goes through. A condition is asked of an item when that is wanted, as in jinja2: the
// body may change what it says, and of what is never wanted it cannot fail.
class Interpreter::LoopItems {
 public:
  LoopItems(Values items, std::function<bool(const Value&)> lets_in)
      : items_(std::move(items)), lets_in_(std::move(lets_in)) {
    if (!lets_in_) in_ = asked_ = items_.size();
  }

  bool Has(size_t index) {
    for (; in_ <= index && asked_ < items_.size(); ++asked_) {
      if (lets_in_(items_[asked_])) items_[in_++] = Value(items_[asked_]);
    }
    return index < in_;
  }
  size_t size() {
    Has(items_.size());  // asks them all
    return in_;
  }
  // One that it has.
  const Value& operator[](size_t index) const { return items_[index]; }

 private:
  Values items_;  // those that are in first
  const std::function<bool(const Value&)> lets_in_;
  size_t in_ = 0, asked_ = 0;
};

bool Interpreter::LetsIn(const Node& loop, const Value& item, const ScopePtr& scope) {
  const ScopePtr inner = Inside(scope);
  Assign(*loop.children[0], item, inner);
  return Eval(*loop.children[2], inner).Truth();
}

Interpreter::Flow Interpreter::RunLoop(const Node& node, const Value& iterable,
                                       const ScopePtr& scope, int depth, std::string* out) {
  std::function<bool(const Value&)> lets_in;
  if (node.children[2]) {
    lets_in = [this, &node, scope](const Value& item) { return LetsIn(node, item, scope); };
  }
  const auto items = std::make_shared<LoopItems>(Iterate(iterable), std::move(lets_in));
  auto changed = std::make_shared<Value>(Value::Undefined("changed"));
  bool whole = false;  // the body came to its end
  for (size_t i = 0; items->Has(i); ++i) {
    Budget::Spend(4);
    const ScopePtr inner = Inside(scope, node.undefined);
    inner->Set("loop", MakeLoop(node, items, i, scope, depth, changed));
    Assign(*node.children[0], (*items)[i], inner);
    const Flow flow = Exec(node.body, inner, out);
    if (flow == Flow::kBreak) {
      if (iterable.IsGenerator()) Leave(iterable);
      break;
    }
    whole = whole || flow == Flow::kNext;
  }
  // The else is run in jinja2, too, where each turn is broken off.
  if (whole) return Flow::kNext;
  return Exec(node.other, Inside(scope, node.undefined_other), out);
}

Value Interpreter::MakeLoop(const Node& node, std::shared_ptr<LoopItems> items, size_t index,
                            const ScopePtr& scope, int depth, std::shared_ptr<Value> changed) {
  auto object = std::make_shared<AttributesObject>();
  object->get = [items, index, depth, changed](const std::string& name) {
    if (name == "index") return Value::Int(index + 1);
    if (name == "index0") return Value::Int(index);
    if (name == "first") return Value::Bool(index == 0);
    if (name == "last") return Value::Bool(!items->Has(index + 1));
    if (name == "length") return Value::Int(items->size());
    if (name == "revindex") return Value::Int(items->size() - index);
    if (name == "revindex0") return Value::Int(items->size() - index - 1);
    if (name == "depth") return Value::Int(depth);
    if (name == "depth0") return Value::Int(depth - 1);
    if (name == "previtem") {
      return index ? (*items)[index - 1] : Value::Undefined("there is no previous item");
    }
    if (name == "nextitem") {
      return items->Has(index + 1) ? (*items)[index + 1]
                                   : Value::Undefined("there is no next item");
    }
    if (name == "cycle") {
      return Value::Callable("cycle", [index](Args& args) {
        if (args.values.empty()) Raise("no items for cycling given");
        return args.values[index % args.values.size()];
      });
    }
    if (name == "changed") {
      return Value::Callable("changed", [changed](Args& args) {
        const Value now = Value::List(args.values, Type::kTuple);
        if (changed->Is(Type::kTuple) && Equal(*changed, now)) return Value::Bool(false);
        *changed = now;
        return Value::Bool(true);
      });
    }
    return Value::Undefined(fmt::format("a loop has no {}", name));
  };
  if (node.recursive) {
    const Node* loop = &node;
    object->call = [this, loop, scope, depth](Args& args) {
      const DepthGuard guard;
      const auto bound = Bind(args, "loop", {"iterable"});
      if (!bound[0]) Raise("loop() takes an argument");
      std::string text;
      RunLoop(*loop, *bound[0], scope, depth + 1, &text);
      return Value::String(std::move(text));
    };
  }
  Value value;
  value.type = Type::kObject;
  value.object = std::move(object);
  return value;
}

Value Interpreter::MakeMacro(const Node& node, const ScopePtr& scope) {
  cyclic_.push_back(scope);
  const Node* macro = &node;
  return Value::Callable(
      node.text, [this, macro, scope](Args& args) { return CallMacro(*macro, scope, args); });
}

Value Interpreter::CallMacro(const Node& node, const ScopePtr& scope, Args& args) {
  const DepthGuard guard;
  const ScopePtr inner = Inside(scope, node.undefined);
  const size_t count = node.parameters.size();
  std::vector<bool> given(count);
  Values more;
  for (size_t i = 0; i < args.values.size(); ++i) {
    if (i < count) {
      inner->Set(node.parameters[i], args.values[i]);
      given[i] = true;
    } else if (node.uses_varargs) {
      more.push_back(args.values[i]);
    } else {
      Raise("macro '{}' takes not more than {} argument(s)", node.text, count);
    }
  }
  Items named;
  Value caller = Value::Undefined("No caller defined");
  for (auto& [name, value] : args.named) {
    const auto found = std::find(node.parameters.begin(), node.parameters.end(), name);
    const size_t at = found - node.parameters.begin();
    if (at < count) {
      if (given[at]) Raise("macro '{}' has two values for {}", node.text, name);
      inner->Set(name, value);
      given[at] = true;
    } else if (name == "caller" && node.uses_caller) {
      caller = value;
    } else if (node.uses_kwargs) {
      named.emplace_back(Value::String(name), value);
    } else {
      Raise("macro '{}' takes no keyword argument '{}'", node.text, name);
    }
  }
  if (node.uses_caller) inner->Set("caller", caller);
  if (node.uses_varargs) inner->Set("varargs", Value::List(std::move(more), Type::kTuple));
  if (node.uses_kwargs) inner->Set("kwargs", Value::Dict(std::move(named)));
  // In a default a parameter hides what has its name outside, also before it has a value.
  for (size_t i = 0; i < count; ++i) {
    if (given[i]) continue;
    inner->Set(node.parameters[i], Value::Undefined(fmt::format("parameter '{}' was not provided",
                                                                node.parameters[i])));
  }
  const size_t required = count - node.children.size();
  for (size_t i = required; i < count; ++i) {
    if (given[i]) continue;
    inner->Set(node.parameters[i], Eval(*node.children[i - required], inner));
  }
  const int line = line_;
  std::string out;
  Exec(node.body, inner, &out);
  line_ = line;
  return Value::String(std::move(out));
}

}  // namespace kvcake::jinja
