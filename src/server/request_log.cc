#include "server/request_log.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include "base/dump_json.h"
#include "engine/chain_json.h"
#include "server/openai_response.h"

namespace kvcake {
namespace {

using nlohmann::ordered_json;

// That of the engine; "refused" for what it never had.
const char* Reason(const RequestRecord& record) {
  if (record.completion) return FinishReasonName(record.completion->finish_reason);
  return "refused";
}

// What clients wrote is in messages: it begins no line and commands no terminal.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const unsigned char c : text) {
    if (c < 0x20 || c == 0x7f) {
      escaped += fmt::format("\\x{:02x}", c);
    } else {
      escaped += static_cast<char>(c);
    }
  }
  return escaped;
}

}  // namespace

ordered_json RequestJson(const RequestRecord& record) {
  ordered_json line = {{"request", record.id},
                       {"path", record.path},
                       {"status", record.status},
                       {"tenant", record.tenant},
                       {"finish_reason", Reason(record)},
                       {"total_s", record.total_s}};
  if (record.error) {
    line["error"] = {{"message", record.error->message}};
    if (!record.error->param.empty()) line["error"]["param"] = record.error->param;
    if (!record.error->code.empty()) line["error"]["code"] = record.error->code;
  }
  if (!record.completion) return line;
  const Completion& completion = *record.completion;
  const RestoreReport& report = completion.report;
  const ordered_json answered = {
      {"prompt_tokens", report.prompt_tokens},     {"cached_tokens", CachedTokens(completion)},
      {"answer_tokens", completion.tokens.size()}, {"queue_s", completion.queue_s},
      {"restore_s", completion.restore_s},         {"ttft_s", completion.ttft_s},
      {"decode_s", completion.decode_s},           {"steps_s", completion.steps_s},
      {"preemptions", completion.preemptions},     {"tokens_computed", report.tokens_computed},
      {"tokens_loaded", report.tokens_loaded},     {"tokens_reused", report.tokens_reused},
      {"chunks_failed", report.chunks_failed},     {"efficiency", report.efficiency}};
  line.update(answered);
  if (completion.chain) line["chain"] = ChainJson(completion.chain);
  return line;
}

std::string RequestText(const RequestRecord& record) {
  std::string line = fmt::format("{} {} {}: ", record.id, record.path, record.status);
  if (record.error) line += Escaped(record.error->message) + "; ";
  if (!record.completion) return line + fmt::format("refused after {:.3f} s", record.total_s);
  const Completion& completion = *record.completion;
  std::string prefill;
  if (completion.chain) prefill = fmt::format(", by {} ranks", completion.chain->ranks.size());
  return line +
         fmt::format(
             "{} prompt tokens ({} cached{}), {} answered; queue {:.3f} s, restore {:.3f} s, "
             "first token {:.3f} s, decode {:.3f} s, {}",
             completion.report.prompt_tokens, CachedTokens(completion), prefill,
             completion.tokens.size(), completion.queue_s, completion.restore_s, completion.ttft_s,
             completion.decode_s, Reason(record));
}

void LogRequest(const RequestRecord& record, bool json) {
  const bool ours = record.error && record.error->status >= 500;
  spdlog::log(ours ? spdlog::level::warn : spdlog::level::info, "{}",
              json ? DumpJson(RequestJson(record)) : RequestText(record));
}

}  // namespace kvcake
