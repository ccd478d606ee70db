// json.dumps as transformers' tojson calls it.
#include <cmath>

#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

class Writer {
 public:
  explicit Writer(const Args& args) {
    const auto bound = Bind(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    if (bound[0]) ascii_ = bound[0]->Truth();
    if (bound[1] && !bound[1]->Is(Type::kNone)) {
      indents_ = true;
      if (bound[1]->Is(Type::kString)) {
        indent_ = bound[1]->Text();
      } else if (bound[1]->IsInteger()) {
        Budget::CheckSize(std::max<int64_t>(bound[1]->integer, 0));
        indent_ = std::string(std::max<int64_t>(bound[1]->integer, 0), ' ');
      } else {
        Raise("tojson's indent is a number or a string");
      }
      comma_.assign(1, ',');  // g++ 12 warns of = here
    }
    if (bound[2] && !bound[2]->Is(Type::kNone)) {
      const Values pair = Iterate(*bound[2]);
      if (pair.size() != 2 || !pair[0].Is(Type::kString) || !pair[1].Is(Type::kString)) {
        Raise("tojson's separators are two strings");
      }
      comma_ = pair[0].Text();
      colon_ = pair[1].Text();
    }
    if (bound[3]) sorted_ = bound[3]->Truth();
  }

  void Write(const Value& value) {
    const DepthGuard guard;
    Budget::Spend(1);
    Budget::CheckSize(out_.size());
    if (value.Is(Type::kString)) {
      String(value.Text());
    } else if (value.Is(Type::kNone)) {
      out_ += "null";
    } else if (value.Is(Type::kBool)) {
      out_ += value.integer ? "true" : "false";
    } else if (value.IsNumber()) {
      out_ += Number(value);
    } else if (value.Is(Type::kList) || value.Is(Type::kTuple)) {
      List(value.List());
    } else if (value.Is(Type::kDict)) {
      Dict(value.Dict());
    } else {
      Raise("Object of type {} is not JSON serializable", TypeName(value));
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  static std::string Number(const Value& value) {
    if (value.Is(Type::kFloat)) {
      if (std::isnan(value.real)) return "NaN";
      if (std::isinf(value.real)) return value.real < 0 ? "-Infinity" : "Infinity";
    }
    return Str(value);
  }
  void NewLine() {
    if (!indents_) return;
    out_ += '\n';
    Budget::CheckSize(out_.size() + level_ * indent_.size());
    for (int i = 0; i < level_; ++i) out_ += indent_;
  }
  void List(const Values& values) {
    if (values.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < values.size(); ++i) {
      if (i) out_ += comma_;
      NewLine();
      Write(values[i]);
    }
    --level_;
    NewLine();
    out_ += ']';
  }
  void Dict(Items items) {
    if (items.empty()) {
      out_ += "{}";
      return;
    }
    if (sorted_) {
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return Compare(a.first, b.first) < 0; });
    }
    out_ += '{';
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out_ += comma_;
      NewLine();
      Key(items[i].first);
      out_ += colon_;
      Write(items[i].second);
    }
    --level_;
    NewLine();
    out_ += '}';
  }
  void Key(const Value& key) {
    if (key.Is(Type::kString)) return String(key.Text());
    if (key.Is(Type::kNone)) return String("null");
    if (key.Is(Type::kBool)) return String(key.integer ? "true" : "false");
    if (!key.IsNumber()) Raise("keys must be str, int, float, bool or None");
    String(Number(key));
  }
  void Escape(uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); }
  void String(const std::string& text) {
    out_ += '"';
    for (const char32_t c : ToCodes(text)) {
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += static_cast<char>(c);
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\r') {
        out_ += "\\r";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (c == '\b') {
        out_ += "\\b";
      } else if (c == '\f') {
        out_ += "\\f";
      } else if (c < 0x20 || (ascii_ && c >= 0x7F && c < 0x10000)) {
        Escape(c);
      } else if (ascii_ && c >= 0x10000) {
        Escape(0xD800 + ((c - 0x10000) >> 10));
        Escape(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_ += FromCodes(std::u32string_view(&c, 1));
      }
    }
    out_ += '"';
  }

  std::string out_;
  std::string indent_;
  std::string comma_ = ", ";
  std::string colon_ = ": ";
  bool ascii_ = false;
  bool indents_ = false;
  bool sorted_ = false;
  int level_ = 0;
};

}  // namespace

std::string ToJson(const Value& value, const Args& args) {
  Writer writer(args);
  writer.Write(value);
  return writer.Take();
}

}  // namespace kvcake::jinja
