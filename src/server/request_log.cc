#include "server/request_log.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include "base/dump_json.h"
#include "base/utf8.h"
#include "engine/chain_json.h"
#include "server/completion_sum.h"
#include "server/request_head.h"

namespace kvcake {
namespace {

using nlohmann::ordered_json;

// That of the engine; "refused" for what it never had.
const char* Reason(const RequestRecord& record) {
  if (record.completion) return FinishReasonName(record.completion->finish_reason);
  return "refused";
}

// What is too long for a line says so.
std::string Shown(const std::string& text) {
  constexpr size_t kShownMax = 512;
  if (text.empty()) return "-";
  return Printable(text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...");
}

// Asked every few seconds by machines, and answered as is to be expected: that the server is not
// ready is no fault while it loads its model, or goes away.
bool IsProbe(const RequestRecord& record) {
  if (record.method != "GET" && record.method != "HEAD") return false;
  const bool unready = record.status == 503 && record.error && record.error->code != kEngineStuck;
  if (record.path == "/ready" && unready) return true;
  return record.status == 200 &&
         (record.path == "/health" || record.path == "/ready" || record.path == "/metrics");
}

}  // namespace

RequestRecord RecordOf(const HttpRequest& request) {
  return {.client = request.client,
          .request_id = request.id,
          .method = request.method,
          .path = request.path};
}

ordered_json RequestJson(const RequestRecord& record) {
  ordered_json line = {{"client", record.client},         {"request_id", record.request_id},
                       {"method", record.method},         {"path", record.path},
                       {"status", record.status},         {"received_bytes", record.received_bytes},
                       {"sent_bytes", record.sent_bytes}, {"total_s", record.total_s}};
  if (!record.id.empty()) {
    line["request"] = record.id;
    line["finish_reason"] = Reason(record);
  }
  if (!record.tenant.empty() || !record.id.empty()) line["tenant"] = record.tenant;
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
      {"chunks_failed", report.chunks_failed}};
  line.update(answered);
  if (record.choices > 1) {
    line["choices"] = record.choices;
  } else {
    line["efficiency"] = report.efficiency;
  }
  if (completion.chain) line["chain"] = ChainJson(completion.chain);
  return line;
}

std::string RequestText(const RequestRecord& record) {
  std::string line = fmt::format("{} {} {} {} {}: ", Shown(record.client), Shown(record.request_id),
                                 Shown(record.method), Shown(record.path), record.status);
  if (record.error) line += Printable(record.error->message) + "; ";
  if (record.completion) {
    const Completion& completion = *record.completion;
    std::string prefill;
    if (completion.chain) prefill = fmt::format(", by {} ranks", completion.chain->ranks.size());
    const std::string answers =
        record.choices > 1 ? fmt::format(" in {} answers", record.choices) : "";
    line += fmt::format(
        "{}: {} prompt tokens ({} cached{}), {} answered{}, queue {:.3f} s, restore {:.3f} s, "
        "first "
        "token {:.3f} s, decode {:.3f} s, {}; ",
        record.id, completion.report.prompt_tokens, CachedTokens(completion), prefill,
        completion.tokens.size(), answers, completion.queue_s, completion.restore_s,
        completion.ttft_s, completion.decode_s, Reason(record));
  } else if (!record.id.empty()) {
    line += "refused; ";
  }
  return line + fmt::format("{} B in, {} B out, {:.3f} s", record.received_bytes, record.sent_bytes,
                            record.total_s);
}

void LogRequest(const RequestRecord& record, bool json) {
  const bool ours = record.error && record.error->status >= 500;
  const auto level = IsProbe(record) ? spdlog::level::debug
                     : ours          ? spdlog::level::warn
                                     : spdlog::level::info;
  if (!spdlog::should_log(level)) return;
  spdlog::log(level, "{}", json ? DumpJson(RequestJson(record)) : RequestText(record));
}

}  // namespace kvcake
