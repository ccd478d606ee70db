#include "server/tenant_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TenantMetricsTest, CountsWhatEachTenantGotAndBoundsTheirNumber) {
  TenantMetrics metrics(/*labels_max=*/2);
  metrics.Answered("ann", {.prompt_tokens = 10, .cached_tokens = 4, .answer_tokens = 2});
  metrics.Answered("ann", {.prompt_tokens = 10, .cached_tokens = 4, .answer_tokens = 2});
  metrics.Refused("");
  metrics.Refused("bob");  // no label is left for either
  metrics.Refused("eve");
  PrometheusText text;
  metrics.AddTo({{"", 1}, {"ann", 3}, {"bob", 2}, {"eve", 5}}, &text);
  const auto has = [&](const std::string& line) {
    EXPECT_THAT(text.text(), HasSubstr("\n" + line + "\n"));
  };
  has("kvcake_tenant_requests_open{tenant=\"-\"} 1");
  has("kvcake_tenant_requests_open{tenant=\"ann\"} 3");
  has("kvcake_tenant_requests_open{tenant=\"other\"} 7");
  has("kvcake_tenant_answers_total{tenant=\"ann\"} 2");
  has("kvcake_tenant_prompt_tokens_total{tenant=\"ann\"} 20");
  has("kvcake_tenant_cached_tokens_total{tenant=\"ann\"} 8");
  has("kvcake_tenant_generation_tokens_total{tenant=\"ann\"} 4");
  has("kvcake_tenant_refused_total{tenant=\"-\"} 1");
  has("kvcake_tenant_refused_total{tenant=\"other\"} 2");
  EXPECT_THAT(text.text(), Not(HasSubstr("bob")));
}

}  // namespace
}  // namespace kvcake
