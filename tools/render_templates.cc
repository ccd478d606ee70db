// What tools/check_templates compares with jinja2: reads lines {"source": ..., "context": {...}}
// and writes for each {"text": ...}, or {"error": ..., "unknown": whether this is for want of a
// construct}.
#include <iostream>
#include <string>

#include "jinja/template.h"

namespace {

nlohmann::ordered_json Render(const nlohmann::ordered_json& job) {
  auto parsed = kvcake::jinja::Template::Parse(job["source"].get<std::string>());
  kvcake::Result<std::string> text;
  if (parsed) {
    text = parsed->Render(job["context"]);
  } else {
    text = tl::unexpected<kvcake::Error>(parsed.error());
  }
  if (text) return {{"text", *text}};
  return {{"error", text.error().message},
          {"unknown", text.error().code == kvcake::ErrorCode::kUnsupported}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Render(nlohmann::ordered_json::parse(line)).dump() << '\n';
  }
}
