#include "jinja/expression_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <set>

namespace kvcake::jinja {

using K = NodeKind;

namespace {

// The filter or test that map, select and the like are given by name.
void CheckNamed(const Node& filter) {
  const bool by_attribute = filter.text == "selectattr" || filter.text == "rejectattr";
  const bool tests = by_attribute || filter.text == "select" || filter.text == "reject";
  const size_t at = by_attribute ? 1 : 0;
  if ((!tests && filter.text != "map") || filter.args.size() <= at || filter.star) return;
  const Node& name = *filter.args[at];
  if (name.kind != K::kConstant || !name.constant.Is(Type::kString)) return;
  const std::string& text = name.constant.Text();
  if (tests ? !FindTest(text) : !FindFilter(text)) {
    RaiseUnsupported("the {} {}", tests ? "test" : "filter", text);
  }
}

// Makes a node one of the constants that have names, or the variable of that name.
void SetNamed(std::string_view name, Node* node) {
  if (name == "true" || name == "True") {
    node->constant = Value::Bool(true);
  } else if (name == "false" || name == "False") {
    node->constant = Value::Bool(false);
  } else if (name == "none" || name == "None") {
    node->constant = Value::None();
  } else {
    node->kind = K::kName;
    node->text = name;
  }
}

}  // namespace

Token ExpressionParser::Next() {
  Token token = Peek();
  ++pos_;
  return token;
}

bool ExpressionParser::IsName(std::string_view text, size_t ahead) const {
  return pos_ + ahead < tokens_.size() && Peek(ahead).kind == TokenKind::kName &&
         Peek(ahead).text == text;
}

bool ExpressionParser::IsOp(std::string_view text) const {
  return IsKind(TokenKind::kOperator) && Peek().text == text;
}

void ExpressionParser::ExpectOp(std::string_view text) {
  if (!SkipOp(text)) Raise("{} is expected before {}", text, Describe());
}

std::string ExpressionParser::ExpectName() {
  if (!IsKind(TokenKind::kName)) Raise("a name is expected before {}", Describe());
  return Next().text;
}

void ExpressionParser::ExpectBlockEnd() {
  if (!IsKind(TokenKind::kBlockEnd)) Raise("%}} is expected before {}", Describe());
  ++pos_;
}

std::string ExpressionParser::Describe() const {
  if (AtEnd()) return "the end of the template";
  const Token& token = Peek();
  if (token.kind == TokenKind::kBlockEnd) return "%}";
  if (token.kind == TokenKind::kVariableEnd) return "}}";
  return fmt::format("\"{}\"", token.text.substr(0, 40));
}

NodePtr ExpressionParser::Make(K kind, std::string text) const {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = Peek().line;
  node->text = std::move(text);
  return node;
}

void ExpressionParser::Add(const NodePtr& node, NodePtr child) const {
  if (child) node->depth = std::max(node->depth, child->depth + 1);
  if (node->depth > kMaxDepth) Raise("an expression is nested more than {} deep", kMaxDepth);
  node->children.push_back(std::move(child));
}

NodePtr ExpressionParser::With(NodePtr node, NodePtr a, NodePtr b) const {
  Add(node, std::move(a));
  if (b) Add(node, std::move(b));
  return node;
}

NodePtr ExpressionParser::Tuple(bool with_conditional, std::string_view end, bool in_brackets) {
  auto tuple = Make(K::kTuple);
  bool is_tuple = false;
  while (!IsKind(TokenKind::kBlockEnd) && !IsKind(TokenKind::kVariableEnd) && !IsOp(")") &&
         !(end.size() && IsName(end))) {
    Add(tuple, with_conditional ? Expression() : Or());
    if (!SkipOp(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (tuple->children.empty() && in_brackets)) return tuple;
  if (tuple->children.empty()) Raise("an expression is expected before {}", Describe());
  return std::move(tuple->children[0]);
}

NodePtr ExpressionParser::Expression() {
  if (++nesting_ > 60) Raise("an expression is nested too deep");
  auto node = Or();
  while (SkipName("if")) {
    auto conditional = Make(K::kConditional);
    Add(conditional, Or());
    Add(conditional, std::move(node));
    Add(conditional, SkipName("else") ? Expression() : nullptr);
    node = std::move(conditional);
  }
  --nesting_;
  return node;
}

NodePtr ExpressionParser::Or() {
  auto left = And();
  while (SkipName("or")) {
    auto node = Make(K::kOr);
    left = With(std::move(node), std::move(left), And());
  }
  return left;
}

NodePtr ExpressionParser::And() {
  auto left = Not();
  while (SkipName("and")) {
    auto node = Make(K::kAnd);
    left = With(std::move(node), std::move(left), Not());
  }
  return left;
}

NodePtr ExpressionParser::Not() {
  if (!IsName("not")) return Compare();
  auto node = Make(K::kNot);
  ++pos_;
  if (++nesting_ > 60) Raise("an expression is nested too deep");
  node = With(std::move(node), Not());
  --nesting_;
  return node;
}

NodePtr ExpressionParser::Compare() {
  auto node = Make(K::kCompare);
  Add(node, Sum());
  while (true) {
    std::string op;
    for (const auto word : {"==", "!=", "<", "<=", ">", ">="}) {
      if (IsOp(word)) op = word;
    }
    if (IsName("in")) op = "in";
    if (IsName("not") && IsName("in", 1)) op = "not in", ++pos_;
    if (op.empty()) break;
    ++pos_;
    node->text += op + "\n";
    Add(node, Sum());
  }
  return node->children.size() == 1 ? std::move(node->children[0]) : std::move(node);
}

NodePtr ExpressionParser::Sum() {
  auto left = Concat();
  while (IsOp("+") || IsOp("-")) {
    auto node = Make(K::kBinary, Next().text);
    left = With(std::move(node), std::move(left), Concat());
  }
  return left;
}

NodePtr ExpressionParser::Concat() {
  auto first = Product();
  if (!IsOp("~")) return first;
  auto node = With(Make(K::kConcat), std::move(first));
  while (SkipOp("~")) Add(node, Product());
  return node;
}

NodePtr ExpressionParser::Product() {
  auto left = Power();
  while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
    auto node = Make(K::kBinary, Next().text);
    left = With(std::move(node), std::move(left), Power());
  }
  return left;
}

NodePtr ExpressionParser::Power() {
  auto left = Unary(true);
  while (IsOp("**")) {
    auto node = Make(K::kBinary, Next().text);
    left = With(std::move(node), std::move(left), Unary(true));
  }
  return left;
}

NodePtr ExpressionParser::Unary(bool with_filter) {
  NodePtr node;
  if (IsOp("-") || IsOp("+")) {
    node = Make(IsOp("-") ? K::kNegative : K::kPositive);
    ++pos_;
    if (++nesting_ > 60) Raise("an expression is nested too deep");
    Add(node, Unary(false));
    --nesting_;
  } else {
    node = Primary();
  }
  node = Postfix(std::move(node));
  return with_filter ? Filters(std::move(node), false) : std::move(node);
}

NodePtr ExpressionParser::Primary() {
  auto node = Make(K::kConstant);
  if (IsKind(TokenKind::kName)) {
    SetNamed(ExpectName(), node.get());
  } else if (IsKind(TokenKind::kString)) {
    std::string text;
    while (IsKind(TokenKind::kString)) text += Next().text;
    node->constant = Value::String(std::move(text));
  } else if (IsKind(TokenKind::kInteger)) {
    node->constant = Value::Int(Integer(Next().text));
  } else if (IsKind(TokenKind::kFloat)) {
    node->constant = Value::Float(std::strtod(Next().text.c_str(), nullptr));
  } else if (SkipOp("(")) {
    node = Tuple(true, "", true);
    ExpectOp(")");
  } else if (SkipOp("[")) {
    node->kind = K::kList;
    while (!SkipOp("]")) {
      if (!node->children.empty()) ExpectOp(",");
      if (SkipOp("]")) break;
      Add(node, Expression());
    }
  } else if (SkipOp("{")) {
    node->kind = K::kDict;
    while (!SkipOp("}")) {
      if (!node->children.empty()) ExpectOp(",");
      if (SkipOp("}")) break;
      Add(node, Expression());
      ExpectOp(":");
      Add(node, Expression());
    }
  } else {
    Raise("an expression is expected before {}", Describe());
  }
  return node;
}

int64_t ExpressionParser::Integer(const std::string& text) const {
  const char prefix = text.size() > 1 ? text[1] : '0';
  const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
  int64_t value = 0;
  const char* begin = text.data() + (base == 10 ? 0 : 2);
  if (std::from_chars(begin, text.data() + text.size(), value, base).ec != std::errc()) {
    RaiseUnsupported("an integer beyond 64 bits: {}", text);
  }
  return value;
}

NodePtr ExpressionParser::Postfix(NodePtr node) {
  while (true) {
    if (SkipOp(".")) {
      auto next = Make(K::kAttribute);
      if (IsKind(TokenKind::kInteger)) {
        next->kind = K::kItem;
        auto index = Make(K::kConstant);
        index->constant = Value::Int(Integer(Next().text));
        node = With(std::move(next), std::move(node), std::move(index));
        continue;
      }
      next->text = ExpectName();
      node = With(std::move(next), std::move(node));
    } else if (SkipOp("[")) {
      node = Subscript(std::move(node));
    } else if (IsOp("(")) {
      node = With(Make(K::kCall), std::move(node));
      Arguments(node.get());
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::Subscript(NodePtr object) {
  auto node = With(Make(K::kItem), std::move(object));
  NodePtr begin = IsOp(":") ? nullptr : Expression();
  if (IsOp(",")) RaiseUnsupported("more than one subscript");
  if (SkipOp(":")) {
    node->kind = K::kSlice;
    Add(node, std::move(begin));
    Add(node, IsOp(":") || IsOp("]") ? nullptr : Expression());
    Add(node, SkipOp(":") && !IsOp("]") ? Expression() : nullptr);
  } else {
    Add(node, std::move(begin));
  }
  ExpectOp("]");
  return node;
}

void ExpressionParser::Arguments(Node* call) {
  ExpectOp("(");
  bool first = true;
  while (!SkipOp(")")) {
    if (!first) ExpectOp(",");
    if (!first && SkipOp(")")) break;
    first = false;
    if (call->star_star) Raise("an argument follows **");
    if (SkipOp("**")) {
      call->star_star = Expression();
    } else if (SkipOp("*")) {
      if (call->star) Raise("an argument follows another *");
      call->star = Expression();
    } else if (IsKind(TokenKind::kName) && pos_ + 1 < tokens_.size() &&
               Peek(1).kind == TokenKind::kOperator && Peek(1).text == "=") {
      std::string name = ExpectName();
      ++pos_;
      call->named.emplace_back(std::move(name), Expression());
    } else {
      if (!call->named.empty() || call->star) Raise("a value follows a named argument");
      call->args.push_back(Expression());
    }
  }
  std::set<std::string_view> names;
  for (const auto& entry : call->named) {
    if (!names.insert(entry.first).second) {
      Raise("the keyword argument {} is repeated", entry.first);
    }
  }
}

NodePtr ExpressionParser::Filters(NodePtr node, bool inline_start) {
  while (IsOp("|") || inline_start || (node && IsName("is")) ||
         (node && node->kind == K::kFilter && IsOp("("))) {
    if (!inline_start && IsName("is")) {
      node = Test(std::move(node));
      continue;
    }
    if (!inline_start && IsOp("(")) {
      node = With(Make(K::kCall), std::move(node));
      Arguments(node.get());
      continue;
    }
    if (!inline_start) ++pos_;
    inline_start = false;
    auto filter = Make(K::kFilter);
    filter->text = ExpectName();
    filter->function = FindFilter(filter->text);
    if (!filter->function) RaiseUnsupported("the filter {}", filter->text);
    Add(filter, std::move(node));
    if (IsOp("(")) Arguments(filter.get());
    CheckNamed(*filter);
    node = std::move(filter);
  }
  return node;
}

NodePtr ExpressionParser::Test(NodePtr value) {
  auto node = Make(K::kTest);
  ++pos_;
  const bool negated = SkipName("not");
  node->text = ExpectName();
  node->function = FindTest(node->text);
  if (!node->function) RaiseUnsupported("the test {}", node->text);
  Add(node, std::move(value));
  if (IsOp("(")) {
    Arguments(node.get());
  } else if ((IsKind(TokenKind::kName) && !IsName("else") && !IsName("or") && !IsName("and")) ||
             IsKind(TokenKind::kString) || IsKind(TokenKind::kInteger) ||
             IsKind(TokenKind::kFloat) || IsOp("[") || IsOp("{")) {
    // As in jinja2: "x is defined if y" takes the if for an argument, and fails.
    if (IsName("is")) Raise("tests cannot be chained");
    node->args.push_back(Postfix(Primary()));
  }
  return negated ? With(Make(K::kNot), std::move(node)) : std::move(node);
}

}  // namespace kvcake::jinja
