// What the flags that commands share make of what is given: each sets what it names, in its unit.
#include "app/flags.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cpu.h"
#include "server/chat_template.h"

namespace kvcake {
namespace {

using testing::ElementsAre;

RuntimeOptions Parse(const std::string& flags) {
  CLI::App app;
  RuntimeOptions options;
  AddRuntimeFlags(app, &options);
  AddScheduleFlags(app, &options);
  app.parse("--model m " + flags);
  return options;
}

// No value is a default, and none is another's.
TEST(FlagsTest, EachOfARuntimesFlagsSetsWhatItNames) {
  const int cpu = AllowedCpus().back();
  const RuntimeOptions options = Parse(fmt::format(
      "--store s --store-writes second-use --no-single-flight --single-flight-min 7ms "
      "--write-queue-share 0.125 --promote --store-ttl 2min --stall-timeout 4s --durable "
      "--ram-capacity 3MiB --no-ram-pinned --gpu-memory-utilization 0.75 --staging-capacity 5MiB "
      "--enforce-eager --cuda-device 6 --attention-backend mma --chunk-tokens 64 "
      "--slice-tokens 640 --threads 9 --cpu-list {} --numeric-path f32 --weights int8 "
      "--disable-sliding-window --hf-overrides {{}} --schedule fcfs --restore-wait-max 11s "
      "--pass-over-max 12s "
      "--load-order fair",
      cpu));
  EXPECT_EQ(options.model_dir, "m");
  EXPECT_EQ(options.store_writes, StoreWrites::kSecondUse);
  EXPECT_FALSE(options.single_flight);
  EXPECT_EQ(options.single_flight_min, Seconds(0.007));
  EXPECT_EQ(options.write_queue_share, 0.125);
  EXPECT_TRUE(options.promote);
  EXPECT_EQ(options.store_ttl, Seconds(120));
  EXPECT_EQ(options.stall_timeout, Seconds(4));
  EXPECT_TRUE(options.durable);
  EXPECT_EQ(options.ram_capacity_bytes, 3u << 20);
  EXPECT_FALSE(options.ram_pinned);
  EXPECT_EQ(options.gpu_memory_utilization, 0.75);
  EXPECT_EQ(options.staging_capacity_bytes, 5u << 20);
  EXPECT_TRUE(options.enforce_eager);
  EXPECT_EQ(options.cuda_device, "6");
  EXPECT_EQ(options.attention_backend, AttentionBackend::kMma);
  EXPECT_EQ(options.chunk_tokens, 64);
  EXPECT_EQ(options.slice_tokens, 640);
  EXPECT_EQ(options.threads, 9);
  EXPECT_THAT(options.cpus, ElementsAre(cpu));
  EXPECT_EQ(options.path, NumericPath::kF32);
  EXPECT_EQ(options.weights, WeightFormat::kInt8);
  EXPECT_TRUE(options.config.within_window);
  EXPECT_EQ(options.config.overrides, "{}");
  EXPECT_EQ(options.schedule, Schedule::kFcfs);
  EXPECT_EQ(options.restore_wait_max, Seconds(11));
  EXPECT_EQ(options.pass_over_max, Seconds(12));
  EXPECT_EQ(options.load_order, LoadOrder::kFair);
  EXPECT_EQ(Parse("--backend cuda").path, NumericPath::kBf16Tensor);
}

TEST(FlagsTest, EachOfAStoresFlagsSetsWhatItNames) {
  const std::vector<StoreOptions> stores =
      Parse(
          "--store a --store b --disk-capacity 1GiB --disk-capacity 2GiB --disk-free-min 0.25 "
          "--disk-free-min 0.5 --store-threads 3 --store-threads 4 --store-open-wait 5ms "
          "--store-open-wait 6ms --load-rate 7MB --load-rate 8MB --load-latency 9ms "
          "--load-latency 10ms --load-trace c --load-trace d --load-stall-share 0.125 "
          "--load-stall-share 0.375 --load-stall 11ms --load-stall 12ms --write-stall-share 0.625 "
          "--write-stall-share 0.875 --write-stall 13ms --write-stall 14ms")
          .stores;
  ASSERT_EQ(stores.size(), 2u);
  for (const int i : {0, 1}) {
    const StoreOptions& store = stores[i];
    EXPECT_EQ(store.dir, i == 0 ? "a" : "b");
    EXPECT_EQ(store.capacity_bytes, (1u + i) << 30);
    EXPECT_EQ(store.free_share_min, 0.25 + 0.25 * i);
    EXPECT_EQ(store.call_threads, 3 + i);
    EXPECT_EQ(store.open_wait, Seconds(i == 0 ? 0.005 : 0.006));
    EXPECT_EQ(store.load_rate_bytes_per_s, 7e6 + 1e6 * i);
    EXPECT_EQ(store.load_latency, Seconds(i == 0 ? 0.009 : 0.01));
    EXPECT_EQ(store.load_trace, i == 0 ? "c" : "d");
    EXPECT_EQ(store.load_stall_share, 0.125 + 0.25 * i);
    EXPECT_EQ(store.load_stall, Seconds(i == 0 ? 0.011 : 0.012));
    EXPECT_EQ(store.write_stall_share, 0.625 + 0.25 * i);
    EXPECT_EQ(store.write_stall, Seconds(i == 0 ? 0.013 : 0.014));
  }
}

TEST(FlagsTest, WhatIsGivenOnceIsOfAllStores) {
  for (const StoreOptions& store : Parse("--store a --store b --store-threads 3").stores) {
    EXPECT_EQ(store.call_threads, 3);
  }
}

TEST(FlagsTest, EachOfTheSamplingsAndTheTemplatesFlagsSetsWhatItNames) {
  CLI::App app;
  SamplingParams sampling;
  ChatTemplateOptions chat;
  AddSamplingFlags(app, &sampling);
  AddChatTemplateFlags(app, &chat);
  app.parse(
      "--temperature 0.25 --top-k 3 --top-p 0.5 --seed 4 --chat-template f "
      "--chat-template-content-format openai --chat-template-steps 5 --chat-template-output 6KiB");
  EXPECT_EQ(sampling.temperature, 0.25);
  EXPECT_EQ(sampling.top_k, 3);
  EXPECT_EQ(sampling.top_p, 0.5);
  EXPECT_EQ(sampling.seed, 4u);
  EXPECT_EQ(chat.file, "f");
  EXPECT_EQ(chat.content_format, "openai");
  EXPECT_EQ(chat.limits.steps, 5u);
  EXPECT_EQ(chat.limits.output_bytes, 6u << 10);
}

TEST(FlagsTest, ASizeIsDecimalAndNotNegative) {
  const auto size = [](const std::string& text) {
    return Parse("--store s --disk-capacity '" + text + "'").stores[0].capacity_bytes;
  };
  EXPECT_EQ(size("010MiB"), 10u << 20);
  EXPECT_EQ(size("007"), 7u);
  EXPECT_EQ(size("08 KiB"), 8u << 10);
  EXPECT_EQ(size(" 100"), 100u);
  EXPECT_EQ(size("00"), 0u);
  EXPECT_THROW(size(" -5"), CLI::ValidationError);
  EXPECT_THROW(size(" "), CLI::ValidationError);
}

}  // namespace
}  // namespace kvcake
