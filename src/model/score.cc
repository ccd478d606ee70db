#include "model/score.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace kvcake {
namespace {

Status CheckTokens(const Model& model, std::span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(model.max_positions())) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} tokens are more than the model's context of {}; shorten the text",
                tokens.size(), model.max_positions());
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < model.vocab_size()) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "token {} is {}, outside the model's vocabulary of {} (ids from 0)", i, tokens[i],
                model.vocab_size());
  }
  return {};
}

Result<PageTable> DrawPages(PagePool& pool, size_t tokens) {
  const size_t chunk_tokens = static_cast<size_t>(pool.layout().chunk_tokens);
  const size_t needed = (tokens + chunk_tokens - 1) / chunk_tokens;
  PageTable table;
  while (table.size() < needed) {
    std::optional<PageHandle> page = pool.Draw();
    if (!page) {
      return Fail(ErrorCode::kResourceExhausted,
                  "{} tokens need {} KV pages of {} bytes and only {} of {} are free; raise "
                  "--ram-capacity",
                  tokens, needed, pool.layout().page_bytes(), table.size(), pool.pages());
    }
    table.push_back(std::move(*page));
  }
  return table;
}

}  // namespace

Status VisitLogits(Model& model, PagePool& pool, std::span<const int32_t> tokens,
                   const ScoreOptions& options, const LogitsVisitor& visit) {
  CHECK(model.layout() == pool.layout());
  if (options.slice_tokens < 1) {
    return Fail(ErrorCode::kInvalidArgument, "slices of {} tokens: at least 1 is needed",
                options.slice_tokens);
  }
  RETURN_IF_ERROR(CheckTokens(model, tokens));
  const size_t begin = options.kept.size() * pool.layout().chunk_tokens;
  CHECK(begin <= tokens.size());
  ASSIGN_OR_RETURN(const PageTable table, DrawPages(pool, tokens.size() - begin));
  std::vector<PageId> pages(options.kept.begin(), options.kept.end());
  for (const PageHandle& page : table) pages.push_back(page.id());

  const size_t most = static_cast<size_t>(std::min(options.slice_tokens, model.max_batch_tokens()));
  const size_t vocab = static_cast<size_t>(model.vocab_size());
  for (size_t start = begin; start < tokens.size(); start += most) {
    const Slice slice{.tokens = tokens.subspan(start, std::min(most, tokens.size() - start)),
                      .start = static_cast<int>(start),
                      .pages = pages,
                      .logits = Slice::Logits::kAll};
    ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward(std::span(&slice, 1)));
    for (size_t i = 0; i < slice.tokens.size(); ++i) {
      visit(static_cast<int>(start + i), logits.subspan(i * vocab, vocab));
    }
  }
  return {};
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t token) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const size_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  const double top = logits[best];
  double others = 0;  // against the likeliest: small sums keep their digits
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != best) others += std::exp(logits[i] - top);
  }
  return (top - logits[token]) + std::log1p(others);
}

}  // namespace kvcake
