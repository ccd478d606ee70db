#include <charconv>
#include <initializer_list>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace kvcake::jinja {
namespace {

constexpr int kMaxDepth = 250;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  int line() const { return Peek().line; }
  Nodes Run() { return Body({}); }

 private:
  using K = NodeKind;

  const Token& Peek(size_t ahead = 0) const {
    static const Token kEnd = {TokenKind::kText, "", 0};
    return pos_ + ahead < tokens_.size() ? tokens_[pos_ + ahead]
           : tokens_.empty()             ? kEnd
                                         : tokens_.back();
  }
  bool AtEnd() const { return pos_ >= tokens_.size(); }
  Token Next() {
    Token token = Peek();
    ++pos_;
    return token;
  }
  bool IsKind(TokenKind kind) const { return !AtEnd() && Peek().kind == kind; }
  bool IsName(std::string_view text, size_t ahead = 0) const {
    return pos_ + ahead < tokens_.size() && Peek(ahead).kind == TokenKind::kName &&
           Peek(ahead).text == text;
  }
  bool IsOp(std::string_view text) const {
    return IsKind(TokenKind::kOperator) && Peek().text == text;
  }
  bool SkipOp(std::string_view text) { return IsOp(text) && ++pos_; }
  bool SkipName(std::string_view text) { return IsName(text) && ++pos_; }
  void ExpectOp(std::string_view text) {
    if (!SkipOp(text)) Raise("{} is expected before {}", text, Describe());
  }
  std::string ExpectName() {
    if (!IsKind(TokenKind::kName)) Raise("a name is expected before {}", Describe());
    return Next().text;
  }
  void ExpectBlockEnd() {
    if (!IsKind(TokenKind::kBlockEnd)) Raise("%}} is expected before {}", Describe());
    ++pos_;
  }
  std::string Describe() const {
    if (AtEnd()) return "the end of the template";
    const Token& token = Peek();
    if (token.kind == TokenKind::kBlockEnd) return "%}";
    if (token.kind == TokenKind::kVariableEnd) return "}}";
    return "\"" + token.text.substr(0, 40) + "\"";
  }

  NodePtr Make(K kind, std::string text = "") const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = Peek().line;
    node->text = std::move(text);
    return node;
  }
  void Add(const NodePtr& node, NodePtr child) const {
    if (child) node->depth = std::max(node->depth, child->depth + 1);
    if (node->depth > kMaxDepth) Raise("an expression is nested more than {} deep", kMaxDepth);
    node->children.push_back(std::move(child));
  }
  NodePtr With(NodePtr node, NodePtr a, NodePtr b = nullptr) const {
    Add(node, std::move(a));
    if (b) Add(node, std::move(b));
    return node;
  }

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
      node->body = BodyTo("endgeneration");
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
      node->other = Body({"endfor"});
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

  // One expression, or a tuple without brackets.
  NodePtr Tuple(bool with_conditional, std::string_view end = "", bool in_brackets = false) {
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

  NodePtr Expression() {
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
  NodePtr Or() {
    auto left = And();
    while (SkipName("or")) {
      auto node = Make(K::kOr);
      left = With(std::move(node), std::move(left), And());
    }
    return left;
  }
  NodePtr And() {
    auto left = Not();
    while (SkipName("and")) {
      auto node = Make(K::kAnd);
      left = With(std::move(node), std::move(left), Not());
    }
    return left;
  }
  NodePtr Not() {
    if (!IsName("not")) return Compare();
    auto node = Make(K::kNot);
    ++pos_;
    if (++nesting_ > 60) Raise("an expression is nested too deep");
    node = With(std::move(node), Not());
    --nesting_;
    return node;
  }
  NodePtr Compare() {
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
  NodePtr Sum() {
    auto left = Concat();
    while (IsOp("+") || IsOp("-")) {
      auto node = Make(K::kBinary, Next().text);
      left = With(std::move(node), std::move(left), Concat());
    }
    return left;
  }
  NodePtr Concat() {
    auto first = Product();
    if (!IsOp("~")) return first;
    auto node = With(Make(K::kConcat), std::move(first));
    while (SkipOp("~")) Add(node, Product());
    return node;
  }
  NodePtr Product() {
    auto left = Power();
    while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
      auto node = Make(K::kBinary, Next().text);
      left = With(std::move(node), std::move(left), Power());
    }
    return left;
  }
  NodePtr Power() {
    auto left = Unary(true);
    while (IsOp("**")) {
      auto node = Make(K::kBinary, Next().text);
      left = With(std::move(node), std::move(left), Unary(true));
    }
    return left;
  }
  NodePtr Unary(bool with_filter) {
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

  NodePtr Primary() {
    auto node = Make(K::kConstant);
    if (IsKind(TokenKind::kName)) {
      const std::string name = Next().text;
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

  int64_t Integer(const std::string& text) const {
    const char prefix = text.size() > 1 ? text[1] : '0';
    const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    int64_t value = 0;
    const char* begin = text.data() + (base == 10 ? 0 : 2);
    if (std::from_chars(begin, text.data() + text.size(), value, base).ec != std::errc()) {
      RaiseUnsupported("an integer beyond 64 bits: {}", text);
    }
    return value;
  }

  NodePtr Postfix(NodePtr node) {
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

  NodePtr Subscript(NodePtr object) {
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

  void Arguments(Node* call) {
    ExpectOp("(");
    bool first = true;
    while (!SkipOp(")")) {
      if (!first) ExpectOp(",");
      if (!first && SkipOp(")")) break;
      first = false;
      if (SkipOp("**")) {
        call->star_star = Expression();
      } else if (SkipOp("*")) {
        call->star = Expression();
      } else if (IsKind(TokenKind::kName) && pos_ + 1 < tokens_.size() &&
                 Peek(1).kind == TokenKind::kOperator && Peek(1).text == "=") {
        std::string name = Next().text;
        ++pos_;
        call->named.emplace_back(std::move(name), Expression());
      } else {
        if (!call->named.empty() || call->star) Raise("a value follows a named argument");
        call->args.push_back(Expression());
      }
    }
  }

  NodePtr Filters(NodePtr node, bool inline_start) {
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
      node = std::move(filter);
    }
    return node;
  }

  NodePtr Test(NodePtr value) {
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

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  int elifs_ = 0;
};

}  // namespace

Nodes ParseTemplate(std::string_view text) {
  auto tokens = Lex(text);
  if (!tokens) throw Failure{tokens.error().code, tokens.error().message};
  Parser parser(std::move(*tokens));
  try {
    return parser.Run();
  } catch (Failure& failure) {
    failure.message = fmt::format("line {}: {}{}", parser.line(), failure.message,
                                  failure.code == ErrorCode::kUnsupported ? " is not known" : "");
    throw;
  }
}

}  // namespace kvcake::jinja
