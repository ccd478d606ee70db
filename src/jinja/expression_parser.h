// Expressions as trees: what the parser of statements builds upon.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace kvcake::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  int line() const { return Peek().line; }

 protected:
  using K = NodeKind;
  static constexpr int kMaxDepth = 250;

  const Token& Peek(size_t ahead = 0) const {
    static const Token kEnd = {TokenKind::kText, "", 0};
    return pos_ + ahead < tokens_.size() ? tokens_[pos_ + ahead]
           : tokens_.empty()             ? kEnd
                                         : tokens_.back();
  }
  bool AtEnd() const { return pos_ >= tokens_.size(); }
  Token Next();
  bool IsKind(TokenKind kind) const { return !AtEnd() && Peek().kind == kind; }
  bool IsName(std::string_view text, size_t ahead = 0) const;
  bool IsOp(std::string_view text) const;
  bool SkipOp(std::string_view text) { return IsOp(text) && ++pos_; }
  bool SkipName(std::string_view text) { return IsName(text) && ++pos_; }
  void ExpectOp(std::string_view text);
  std::string ExpectName();
  void ExpectBlockEnd();
  std::string Describe() const;

  // A node of the line that is read.
  NodePtr Make(K kind, std::string text = "") const;
  // The last child; raises where the tree would be too deep to walk.
  void Add(const NodePtr& node, NodePtr child) const;
  NodePtr With(NodePtr node, NodePtr a, NodePtr b = nullptr) const;

  // One expression, or a tuple without brackets.
  NodePtr Tuple(bool with_conditional, std::string_view end = "", bool in_brackets = false);
  NodePtr Expression();
  // What follows a value: filters and tests. `inline_start`: the name of a filter comes next.
  NodePtr Filters(NodePtr node, bool inline_start);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;

 private:
  NodePtr Or();
  NodePtr And();
  NodePtr Not();
  NodePtr Compare();
  NodePtr Sum();
  NodePtr Concat();
  NodePtr Product();
  NodePtr Power();
  NodePtr Unary(bool with_filter);
  NodePtr Primary();
  NodePtr Postfix(NodePtr node);
  NodePtr Subscript(NodePtr object);
  // Arguments in brackets, added to a call, a filter or a test.
  void Arguments(Node* call);
  NodePtr Test(NodePtr value);
  int64_t Integer(const std::string& text) const;
};

}  // namespace kvcake::jinja
