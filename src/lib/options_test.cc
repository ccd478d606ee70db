// What a cache's options do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <set>

#include "lib/library_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr double kForEver = 1e9;

class OptionsTest : public LibraryTest {
 protected:
  // How long the document takes to come from the store.
  double LoadSeconds(int document, int chunks) {
    const auto began = std::chrono::steady_clock::now();
    kvcake_restoration restoration = 0;
    EXPECT_EQ(Begin(Keys(document, chunks), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
    EXPECT_EQ(Restore(restoration).loaded, chunks);
    EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  kvcake_turn Turn(kvcake_restoration restoration) const {
    auto turn = Sized<kvcake_turn>();
    EXPECT_EQ(kvcake_claim_front(restoration, 4, 1, &turn), KVCAKE_OK);
    return turn;
  }
  // Two stores, of which the second has chunks of the document.
  kvcake_options OptionsOfTwo(int document, int chunks) {
    auto options = Options();
    store_.where = second_.path().c_str();
    Open(options);
    const auto keys = Keys(document, chunks);
    for (int i = 0; i < chunks; ++i) EXPECT_EQ(Put(document, i, keys), KVCAKE_OK);
    EXPECT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
    store_.where = dir_.path().c_str();
    stores_ = {store_, store_};
    stores_[1].where = second_.path().c_str();
    options.stores = stores_.data();
    options.store_count = 2;
    return options;
  }
  static int CostFiles(const std::string& dir) {
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
      files += entry.path().filename().string().starts_with("cost-") ? 1 : 0;
    }
    return files;
  }
  // Learns something, and closes.
  void Learn(const kvcake_options& options) {
    Open(options);
    kvcake_restoration restoration = 0;
    ASSERT_EQ(Begin(Keys(1, 2), &restoration), KVCAKE_OK);
    Restore(restoration);
    ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
    ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
  }

  const TempDir second_;
  std::vector<kvcake_store> stores_;
};

TEST_F(OptionsTest, ALinkIsAsSlowAsItIsSaidToBe) {
  Open();
  Keep(1, 6);
  auto options = Options();
  store_.load_latency_s = 0.05;
  Reopen(options);
  EXPECT_GE(LoadSeconds(1, 1), 0.05);
  options = Options();
  store_.load_rate_bytes_per_s = 100.0 * kLibraryPageBytes;  // a chunk in ten milliseconds
  Reopen(options);
  EXPECT_GE(LoadSeconds(1, 6), 0.04);
}

TEST_F(OptionsTest, ASilentStoreIsGivenUpAfterTheTimeThatIsSaid) {
  Open();
  Keep(1, 2);
  auto options = Options();
  store_.load_latency_s = kForEver;
  options.stall_timeout_s = 0.01;
  Reopen(options);
  struct Heard {
    int silent_s = -1;
    static void Listen(void* context, int, const char* message) {
      const char* const at = std::strstr(message, " s: its chunks are computed");
      if (at == nullptr) return;
      const std::string until(message, at);
      static_cast<Heard*>(context)->silent_s = std::stoi(until.substr(until.rfind(' ')));
    }
  } heard;
  ASSERT_EQ(kvcake_set_log(&Heard::Listen, &heard), KVCAKE_OK);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 2), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  EXPECT_EQ(Restore(restoration).computed, 2);
  ASSERT_EQ(kvcake_set_log(nullptr, nullptr), KVCAKE_OK);
  EXPECT_THAT(heard.silent_s, AllOf(testing::Ge(0), testing::Lt(30))) << "the default";
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(OptionsTest, ReadsThatAreUnderWayAreCountedAndWaitedFor) {
  Open();
  Keep(1, 2);
  auto options = Options();
  store_.load_latency_s = kForEver;
  Reopen(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 2), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  const kvcake_turn turn = Turn(restoration);
  EXPECT_EQ(turn.kind, KVCAKE_TURN_WAIT);
  EXPECT_GT(turn.wait_s, 0) << "or the caller would ask without end";
  EXPECT_EQ(Stats().reads_in_flight, 2u);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(OptionsTest, WhatNobodyHasUsedForTheTimeToLiveGoes) {
  Open();
  Keep(1, 3);
  for (const std::string& file : ChunkFiles()) {
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  }
  auto options = Options();
  options.store_ttl_s = 3 * 3600;
  Reopen(options);
  EXPECT_THAT(ChunkFiles(), SizeIs(3));
  options.store_ttl_s = 3600;
  Reopen(options);
  EXPECT_THAT(ChunkFiles(), SizeIs(0));
}

TEST_F(OptionsTest, ChunksOfAnotherShapeHaveOtherKeys) {
  auto options = Options(/*memory_chunks=*/100);
  std::set<std::string> roots;
  const auto open = [&](auto change) {
    auto other = options;
    change(other);
    Open(other);
    kvcake_key root;
    ASSERT_EQ(kvcake_root(cache_, nullptr, 0, &root), KVCAKE_OK);
    roots.emplace(reinterpret_cast<const char*>(root.bytes), sizeof(root.bytes));
    ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
  };
  open([](kvcake_options&) {});
  open([](kvcake_options& other) { other.layers += 1; });
  open([](kvcake_options& other) { other.chunk_tokens += 1; });
  open([](kvcake_options& other) { other.slab_bytes += 1; });
  EXPECT_THAT(roots, SizeIs(4));
}

TEST_F(OptionsTest, WhatWasMeasuredOfOneLinkSaysNothingOfAnother) {
  auto options = Options();
  options.device = "a test's";
  Learn(options);
  Learn(options);
  EXPECT_EQ(CostFiles(dir_.path()), 1);
  store_.load_rate_bytes_per_s = 1e12;
  Learn(options);
  EXPECT_EQ(CostFiles(dir_.path()), 2);
  store_.load_latency_s = 1e-6;
  Learn(options);
  EXPECT_EQ(CostFiles(dir_.path()), 3);
}

TEST_F(OptionsTest, ChunksAreLoadedFromAllStoresAndKeptInTheFirst) {
  auto options = OptionsOfTwo(1, 4);
  options.device = "a test's";
  Open(options);
  const auto others = Keys(2, 3);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Put(2, i, others), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  EXPECT_THAT(ChunkFiles(), SizeIs(3)) << "of the first store";
  Reopen(options);
  EXPECT_EQ(Stats().stored_chunks, 7u);
  LoadSeconds(1, 4);
  LoadSeconds(2, 3);
  EXPECT_EQ(Stats().reads, 7u);
  EXPECT_EQ(Stats().read_bytes, 7 * kLibraryPageBytes);
  ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
  EXPECT_EQ(CostFiles(dir_.path()), 1);
  EXPECT_EQ(CostFiles(second_.path()), 1);
}

// As `kvcake store ls` shows it.
TEST_F(OptionsTest, AStoreSaysWhoseChunksItKeeps) {
  Open();
  Keep(1, 1);
  std::string said;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    said.append(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(said,
              AllOf(HasSubstr("\"model\": \"test\""), HasSubstr("\"layers\": \"3\""),
                    HasSubstr("\"chunk_tokens\": \"4\""), HasSubstr("\"slab_bytes\": \"1000\"")));
}

TEST_F(OptionsTest, AStoreIsNamedOnce) {
  auto options = OptionsOfTwo(1, 1);
  stores_[1].where = dir_.path().c_str();
  EXPECT_EQ(kvcake_open(&options, &cache_), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr(dir_.path()));
  EXPECT_EQ(cache_, 0u);
}

// Both lie in one directory, as those of two processes do.
TEST_F(OptionsTest, AStoreThatOthersWriteToIsAsked) {
  const auto options = Options();
  Open(options);
  kvcake_cache other = 0;
  ASSERT_EQ(kvcake_open(&options, &other), KVCAKE_OK);
  std::swap(cache_, other);
  const auto keys = Keys(1, 3);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  std::swap(cache_, other);
  std::vector<uint8_t> held(3, 99);
  EXPECT_EQ(kvcake_lookup(cache_, &keys[1], 3, kForEver, held.data()), KVCAKE_OK);
  EXPECT_THAT(held, Each(KVCAKE_STORED));
  EXPECT_EQ(kvcake_close(other), KVCAKE_OK);
}

}  // namespace
}  // namespace kvcake
