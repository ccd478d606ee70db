#include <initializer_list>

#include "jinja/ast.h"
#include "jinja/expression_parser.h"
#include "jinja/lexer.h"
#include "jinja/symbols.h"

namespace kvcake::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Nodes Run() { return Body({}); }

 private:
  // Statements until one of the words, which stays; the end of the template where there is none.
  Nodes Body(std::initializer_list<std::string_view> ends) {
    if (++nesting_ > 60) Raise("blocks are nested too deep");
    Nodes out;
    while (true) {
      if (AtEnd()) {
        if (ends.size()) Raise("{} is missing at the end of the template", *(ends.end() - 1));
        break;
      }
      if (IsKind(TokenKind::kText)) {
        out.push_back(Make(K::kText, Peek().text));
        ++pos_;
      } else if (IsKind(TokenKind::kVariableBegin)) {
        auto node = Make(K::kOutput);
        ++pos_;
        Add(node, Tuple(true));
        if (!IsKind(TokenKind::kVariableEnd)) Raise("}}}} is expected before {}", Describe());
        ++pos_;
        out.push_back(std::move(node));
      } else {
        ++pos_;  // {%
        if (!IsKind(TokenKind::kName)) Raise("a tag is expected before {}", Describe());
        bool done = false;
        for (const auto end : ends) done = done || IsName(end);
        if (done) break;
        Statement(&out);
      }
    }
    --nesting_;
    return out;
  }
  Nodes BodyTo(std::string_view end) {
    ExpectBlockEnd();
    Nodes out = Body({end});
    ++pos_;
    ExpectBlockEnd();
    return out;
  }

  void Statement(Nodes* out) {
    const std::string tag = Peek().text;
    auto node = Make(K::kIf);
    ++pos_;
    if (tag == "if") {
      If(node.get());
    } else if (tag == "for") {
      For(node.get());
    } else if (tag == "set") {
      Set(node.get());
    } else if (tag == "macro") {
      node->kind = K::kMacro;
      node->text = ExpectName();
      Signature(node.get());
      MacroBody(node.get(), "endmacro");
    } else if (tag == "call") {
      node->kind = K::kCallBlock;
      auto macro = Make(K::kMacro, "caller");
      if (IsOp("(")) Signature(macro.get());
      Add(node, Expression());
      if (node->children[0]->kind != K::kCall) Raise("call needs a call");
      MacroBody(macro.get(), "endcall");
      node->children.push_back(std::move(macro));
    } else if (tag == "filter") {
      node->kind = K::kFilterBlock;
      Add(node, Filters(nullptr, true));
      node->body = BodyTo("endfilter");
    } else if (tag == "generation") {
      node->kind = K::kScope;
      const int loops = std::exchange(loops_, 0);  // the body is a function's, as a call's is
      node->body = BodyTo("endgeneration");
      loops_ = loops;
    } else if (tag == "with") {
      node->kind = K::kScope;
      while (!IsKind(TokenKind::kBlockEnd)) {
        if (!node->children.empty()) ExpectOp(",");
        Add(node, Target(false));
        ExpectOp("=");
        Add(node, Expression());
      }
      node->body = BodyTo("endwith");
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) Raise("{} stands outside of a loop", tag);
      node->kind = tag == "break" ? K::kBreak : K::kContinue;
      ExpectBlockEnd();
    } else {
      RaiseUnsupported("the tag {}", tag);
    }
    out->push_back(std::move(node));
  }

  void If(Node* node) {
    const NodePtr holder = Make(K::kIf);
    Add(holder, Tuple(false));
    node->children = std::move(holder->children);
    ExpectBlockEnd();
    node->body = Body({"elif", "else", "endif"});
    if (SkipName("elif")) {
      if (++elifs_ > 200) Raise("an if has too many elif");
      node->other.push_back(Make(K::kIf));
      If(node->other[0].get());
      --elifs_;
      return;
    }
    if (SkipName("else")) {
      ExpectBlockEnd();
      node->other = Body({"endif"});
    }
    ++pos_;
    ExpectBlockEnd();
  }

  void For(Node* node) {
    node->kind = K::kFor;
    node->children.push_back(Target(false));
    if (!SkipName("in")) Raise("in is expected before {}", Describe());
    node->children.push_back(Tuple(false, "recursive"));
    node->children.push_back(SkipName("if") ? Expression() : nullptr);
    node->recursive = SkipName("recursive");
    ExpectBlockEnd();
    ++loops_;
    node->body = Body({"else", "endfor"});
    --loops_;
    if (SkipName("else")) {
      ExpectBlockEnd();
      // The else of a recursive loop is a function's, outside of every loop.
      const int loops = node->recursive ? std::exchange(loops_, 0) : loops_;
      node->other = Body({"endfor"});
      loops_ = loops;
    }
    ++pos_;
    ExpectBlockEnd();
  }

  void Set(Node* node) {
    node->children.push_back(Target(true));
    if (SkipOp("=")) {
      node->kind = K::kSet;
      node->children.push_back(Tuple(true));
      return ExpectBlockEnd();
    }
    node->kind = K::kSetBlock;
    node->children.push_back(IsOp("|") ? Filters(nullptr, false) : nullptr);
    node->body = BodyTo("endset");
  }

  void Signature(Node* macro) {
    ExpectOp("(");
    while (!SkipOp(")")) {
      if (!macro->parameters.empty()) ExpectOp(",");
      macro->parameters.push_back(AssignableName());
      if (SkipOp("=")) {
        macro->children.push_back(Expression());
      } else if (!macro->children.empty()) {
        Raise("a parameter without default follows one with a default");
      }
    }
  }

  void MacroBody(Node* macro, std::string_view end) {
    const size_t begin = pos_;
    const int loops = std::exchange(loops_, 0);
    macro->body = BodyTo(end);
    loops_ = loops;
    for (size_t i = begin; i < pos_; ++i) {
      if (tokens_[i].kind != TokenKind::kName) continue;
      macro->uses_caller |= tokens_[i].text == "caller";
      macro->uses_varargs |= tokens_[i].text == "varargs";
      macro->uses_kwargs |= tokens_[i].text == "kwargs";
    }
  }

  std::string AssignableName() {
    std::string name = ExpectName();
    for (const auto word : {"true", "false", "none", "True", "False", "None"}) {
      if (name == word) Raise("{} cannot be set", name);
    }
    return name;
  }

  NodePtr Target(bool with_namespace) {
    auto first = Target1(with_namespace);
    if (!IsOp(",")) return first;
    auto tuple = With(Make(K::kTuple), std::move(first));
    while (SkipOp(",")) {
      if (IsName("in") || IsOp("=")) break;
      Add(tuple, Target1(false));
    }
    return tuple;
  }
  NodePtr Target1(bool with_namespace) {
    if (SkipOp("(")) {
      if (++nesting_ > 60) Raise("a target is nested too deep");
      auto inner = Target(false);
      --nesting_;
      ExpectOp(")");
      return inner;
    }
    auto node = Make(K::kName);
    node->text = AssignableName();
    if (!with_namespace || !SkipOp(".")) return node;
    auto attribute = Make(K::kAttribute);
    attribute->text = ExpectName();
    return With(std::move(attribute), std::move(node));
  }

  int loops_ = 0;
  int elifs_ = 0;
};

}  // namespace

NodePtr ParseTemplate(std::string_view text) {
  auto tokens = Lex(text);
  if (!tokens) throw Failure{tokens.error().code, tokens.error().message};
  Parser parser(std::move(*tokens));
  try {
    auto root = std::make_unique<Node>();
    root->kind = NodeKind::kScope;
    root->line = 1;
    root->body = parser.Run();
    FindUndefined(root.get());
    return root;
  } catch (Failure& failure) {
    failure.message = fmt::format("line {}: {}{}", parser.line(), failure.message,
                                  failure.code == ErrorCode::kUnsupported ? " is not known" : "");
    throw;
  }
}

}  // namespace kvcake::jinja
