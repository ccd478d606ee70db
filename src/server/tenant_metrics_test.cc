#include "server/tenant_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcake {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TenantMetricsTest, CountsWhatEachTenantGotAndBoundsTheirNumber) {
  TenantMetrics metrics(/*labels_max=*/2);
  metrics.Answered("ann",
                   {.answers = 1, .prompt_tokens = 10, .cached_tokens = 4, .answer_tokens = 2});
  metrics.Answered("ann",
                   {.answers = 1, .prompt_tokens = 10, .cached_tokens = 4, .answer_tokens = 2});
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

TEST(TenantMetricsTest, BeginsAtZeroAndGoesBackToIt) {
  TenantMetrics metrics(/*labels_max=*/2);
  metrics.SetNames({"ann"});
  const auto text = [&](const std::map<std::string, size_t>& open) {
    PrometheusText scrape;
    metrics.AddTo(open, &scrape);
    return scrape.text();
  };
  const auto has = [](const std::string& scrape, const std::string& line) {
    EXPECT_THAT(scrape, HasSubstr("\n" + line + "\n"));
  };
  has(text({}), "kvcake_tenant_requests_open{tenant=\"ann\"} 0");
  has(text({}), "kvcake_tenant_answers_total{tenant=\"ann\"} 0");
  has(text({{"", 1}, {"bob", 2}}), "kvcake_tenant_requests_open{tenant=\"other\"} 2");
  const std::string quiet = text({});
  for (const std::string label : {"ann", "-", "other"}) {
    has(quiet, "kvcake_tenant_requests_open{tenant=\"" + label + "\"} 0");
    has(quiet, "kvcake_tenant_answers_total{tenant=\"" + label + "\"} 0");
  }
  metrics.SetNames({"bob", "eve", "joe"});  // too many
  EXPECT_THAT(text({}), Not(HasSubstr("eve")));
  TenantMetrics full(/*labels_max=*/2);
  full.SetNames({"ann", "bob"});
  PrometheusText scrape;
  full.AddTo({}, &scrape);
  has(scrape.text(), "kvcake_tenant_answers_total{tenant=\"bob\"} 0");
}

TEST(TenantMetricsTest, TellsWhatEachTenantHasInStores) {
  TenantMetrics metrics(/*labels_max=*/2);
  metrics.SetNames({"ann", "bob", "eve"});
  metrics.Refused("bob");
  const auto text = [&](std::vector<TierOwners> tiers) {
    PrometheusText scrape;
    metrics.AddStored(tiers, &scrape);
    return scrape.text();
  };
  const std::string name = "kvcake_tenant_store_bytes";
  EXPECT_THAT(text({{"disk", {}}}), Not(HasSubstr(name)));
  // Ann has the last label; nobody knows the name of 99.
  const std::string disks = text({{"disk", {{OwnerOf("ann"), 5}, {OwnerOf("bob"), 10}, {99, 3}}},
                                  {"disk2", {{OwnerOf("ann"), 1}}}});
  const auto has = [&](const std::string& scrape, const std::string& line) {
    EXPECT_THAT(scrape, HasSubstr("\n" + name + line + "\n"));
  };
  has(disks, "{tenant=\"ann\",tier=\"disk\"} 5");
  has(disks, "{tenant=\"bob\",tier=\"disk\"} 10");
  has(disks, "{tenant=\"other\",tier=\"disk\"} 3");
  has(disks, "{tenant=\"ann\",tier=\"disk2\"} 1");
  const std::string more = text({{"disk", {{OwnerOf("eve"), 4}, {99, 3}}}});
  has(more, "{tenant=\"other\",tier=\"disk\"} 7");
  EXPECT_THAT(more, Not(HasSubstr("eve")));
}

}  // namespace
}  // namespace kvcake
