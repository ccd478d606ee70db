// Any template text: an error or a template, which renders within its limits or fails.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text =
      kvcake::ReplaceInvalidUtf8(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto parsed = kvcake::jinja::Template::Parse(text);
  if (!parsed) return 0;
  static const auto context = nlohmann::ordered_json::parse(
      R"({"s": "text", "n": 7, "f": 0.5, "l": [1, 2, [3]], "d": {"a": {"b": null}}, "t": true})");
  const auto result = parsed->Render(context, {.steps = 20000, .depth = 100, .output_bytes = 4096});
  CHECK(!result || result->size() <= 4096);
  return 0;
}
