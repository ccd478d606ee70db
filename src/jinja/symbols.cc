#include "jinja/symbols.h"

#include <map>
#include <set>

namespace kvcake::jinja {
namespace {

enum class Load { kFound, kUndefined };

// What jinja2's compiler knows of the names of one frame (jinja2.idtracking).
struct Frame {
  const Frame* parent = nullptr;
  std::map<std::string, Load> names = {};
  std::set<std::string> stores = {};

  bool Has(const std::string& name) const {
    return names.contains(name) || (parent && parent->Has(name));
  }
  void Read(const std::string& name) {
    if (!Has(name)) names.emplace(name, Load::kFound);
  }
  void Store(const std::string& name) {
    stores.insert(name);
    if (names.contains(name)) return;
    names.emplace(name, parent && parent->Has(name) ? Load::kFound : Load::kUndefined);
  }
  void Declare(const std::string& name) { names[name] = Load::kFound; }
};

void VisitExpression(const Node& node, Frame* frame) {
  if (node.kind == NodeKind::kName) frame->Read(node.text);
  EachPart(node, [&](const Node& part) { VisitExpression(part, frame); });
}

void VisitTarget(const Node& target, Frame* frame, bool declares) {
  if (target.kind == NodeKind::kName) {
    declares ? frame->Declare(target.text) : frame->Store(target.text);
  } else if (target.kind == NodeKind::kAttribute) {
    VisitExpression(target, frame);
  } else {
    for (const auto& part : target.children) VisitTarget(*part, frame, declares);
  }
}

void VisitStatements(const Nodes& nodes, Frame* frame);

// Either branch may set a name: what is then read may be the context's.
void VisitIf(const Node& node, Frame* frame) {
  VisitExpression(*node.children[0], frame);
  Frame branches[2] = {*frame, *frame};
  VisitStatements(node.body, &branches[0]);
  VisitStatements(node.other, &branches[1]);
  const auto before = frame->stores;
  for (const Frame& branch : branches) {
    for (const auto& [name, load] : branch.names) frame->names[name] = load;
    frame->stores.insert(branch.stores.begin(), branch.stores.end());
  }
  for (const auto& name : frame->stores) {
    if (!before.contains(name)) frame->names[name] = Load::kFound;
  }
}

// What a statement does to the frame that it stands in; frames inside it come later.
void VisitStatement(const Node& node, Frame* frame) {
  switch (node.kind) {
    case NodeKind::kOutput:
      return VisitExpression(*node.children[0], frame);
    case NodeKind::kIf:
      return VisitIf(node, frame);
    case NodeKind::kFor:
      return VisitExpression(*node.children[1], frame);
    case NodeKind::kSet:
      VisitExpression(*node.children[1], frame);
      return VisitTarget(*node.children[0], frame, false);
    case NodeKind::kSetBlock:
      return VisitTarget(*node.children[0], frame, false);
    case NodeKind::kMacro:
      return frame->Store(node.text);
    case NodeKind::kCallBlock:
    case NodeKind::kFilterBlock:
      return VisitExpression(*node.children[0], frame);
    case NodeKind::kScope:
      for (size_t i = 1; i < node.children.size(); i += 2) {
        VisitExpression(*node.children[i], frame);
      }
      return;
    default:
      return;
  }
}

void VisitStatements(const Nodes& nodes, Frame* frame) {
  for (const auto& node : nodes) VisitStatement(*node, frame);
}

Names UndefinedOf(const Frame& frame) {
  Names names;
  for (const auto& [name, load] : frame.names) {
    if (load == Load::kUndefined) {
      names.emplace_back(name, Value::Undefined(fmt::format("'{}' is undefined", name)));
    }
  }
  return names;
}

void EnterFrames(const Nodes& nodes, const Frame& frame);

// A frame of `body`, in which `inner` may have names already.
Names Enter(const Nodes& body, Frame* inner) {
  VisitStatements(body, inner);
  EnterFrames(body, *inner);
  return UndefinedOf(*inner);
}

void EnterMacro(Node* node, const Frame& frame) {
  Frame inner{.parent = &frame};
  for (const auto& name : node->parameters) inner.Declare(name);
  for (const auto& value : node->children) VisitExpression(*value, &inner);
  for (const char* name : {"caller", "varargs", "kwargs"}) inner.names.emplace(name, Load::kFound);
  node->undefined = Enter(node->body, &inner);
}

void EnterFrame(Node* node, const Frame& frame) {
  Frame inner{.parent = &frame};
  switch (node->kind) {
    case NodeKind::kIf:
      EnterFrames(node->body, frame);
      return EnterFrames(node->other, frame);
    case NodeKind::kFor: {
      inner.Declare("loop");
      VisitTarget(*node->children[0], &inner, true);
      node->undefined = Enter(node->body, &inner);
      Frame other{.parent = &frame};
      node->undefined_other = Enter(node->other, &other);
      return;
    }
    case NodeKind::kScope:
      for (size_t i = 0; i < node->children.size(); i += 2) {
        VisitTarget(*node->children[i], &inner, true);
      }
      [[fallthrough]];
    case NodeKind::kSetBlock:
    case NodeKind::kFilterBlock:
      node->undefined = Enter(node->body, &inner);
      return;
    case NodeKind::kMacro:
      return EnterMacro(node, frame);
    case NodeKind::kCallBlock:
      return EnterMacro(node->children[1].get(), frame);
    default:
      return;
  }
}

void EnterFrames(const Nodes& nodes, const Frame& frame) {
  for (const auto& node : nodes) EnterFrame(node.get(), frame);
}

}  // namespace

void FindUndefined(Node* root) {
  Frame frame;
  root->undefined = Enter(root->body, &frame);
}

}  // namespace kvcake::jinja
