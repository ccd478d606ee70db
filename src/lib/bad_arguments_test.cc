// Nothing that a caller hands over ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lib/kvcake.h"
#include "lib/library_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::AllOf;
using testing::HasSubstr;

class BadArgumentsTest : public LibraryTest {
 protected:
  // What opening says with options that something is wrong with.
  std::string Refusal(const std::function<void(kvcake_options&, kvcake_store&)>& spoil,
                      int code = KVCAKE_INVALID_ARGUMENT) {
    auto options = Options();
    spoil(options, store_);
    kvcake_cache cache = 0;
    EXPECT_EQ(kvcake_open(&options, &cache), code) << kvcake_last_error();
    EXPECT_EQ(cache, 0u);
    return kvcake_last_error();
  }
};

TEST_F(BadArgumentsTest, OptionsAreRefusedByName) {
  using O = kvcake_options;
  using S = kvcake_store;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string long_text((1 << 16) + 1, 'x');
  const struct {
    const char* named;
    std::function<void(O&, S&)> spoil;
  } rows[] = {
      {"struct_size", [](O& o, S&) { o.struct_size = 0; }},
      {"struct_size", [](O& o, S&) { o.struct_size = sizeof(O) - 8; }},
      {"struct_size", [](O& o, S&) { o.struct_size = sizeof(O) + 1; }},
      {"name_space", [](O& o, S&) { o.name_space = nullptr; }},
      {"name_space", [](O& o, S&) { o.name_space = ""; }},
      {"name_space", [&](O& o, S&) { o.name_space = long_text.c_str(); }},
      {"layers", [](O& o, S&) { o.layers = 0; }},
      {"layers", [](O& o, S&) { o.layers = -1; }},
      {"layers", [](O& o, S&) { o.layers = 488; }},
      {"chunk_tokens", [](O& o, S&) { o.chunk_tokens = -4; }},
      {"chunk_tokens", [](O& o, S&) { o.chunk_tokens = 1 << 30; }},
      {"slab_bytes", [](O& o, S&) { o.slab_bytes = 0; }},
      {"slab_bytes", [](O& o, S&) { o.slab_bytes = UINT64_MAX; }},
      {"slab_bytes", [](O& o, S&) { o.slab_bytes = (4ull << 20) * o.chunk_tokens + 1; }},
      {"slab_bytes",
       [](O& o, S&) {
         o.chunk_tokens = 1 << 16;
         o.slab_bytes = (1ull << 30) + 1;
       }},
      {"stores", [](O& o, S&) { o.stores = nullptr; }},
      {"store_count", [](O& o, S&) { o.store_count = 9; }},
      {"memory_bytes", [](O& o, S&) { o.memory_bytes = 1; }},
      {"write_queue_share", [](O& o, S&) { o.write_queue_share = 2; }},
      {"write_queue_share", [=](O& o, S&) { o.write_queue_share = nan; }},
      {"write_queue_share", [](O& o, S&) { o.write_queue_share = -0.5; }},
      {"store_ttl_s", [](O& o, S&) { o.store_ttl_s = -1; }},
      {"store_ttl_s", [](O& o, S&) { o.store_ttl_s = 3.1e10; }},
      {"stall_timeout_s", [](O& o, S&) { o.stall_timeout_s = INFINITY; }},
      {"device", [&](O& o, S&) { o.device = long_text.c_str(); }},
      {"stores[0]", [](O&, S& s) { s.struct_size = 1; }},
      {"stores[0].where", [](O&, S& s) { s.where = nullptr; }},
      {"stores[0].where", [](O&, S& s) { s.where = "kv?"; }},
      {"stores[0].where: codec int8", [](O&, S& s) { s.where = "kv?codec=int8"; }},
      {"but raw, lossless", [](O&, S& s) { s.where = "kv?codec=zip"; }},
      {"stores[0].load_rate", [](O&, S& s) { s.load_rate_bytes_per_s = -1; }},
      {"stores[0].load_latency", [=](O&, S& s) { s.load_latency_s = nan; }},
      {"stores[0]: --disk-capacity", [](O&, S& s) { s.capacity_bytes = 1; }},
  };
  for (const auto& row : rows) EXPECT_THAT(Refusal(row.spoil), HasSubstr(row.named));
  EXPECT_THAT(Refusal([](O& o, S&) { o.memory_bytes = UINT64_MAX; }, KVCAKE_FULL),
              HasSubstr("memory_bytes"));
  kvcake_cache cache = 0;
  EXPECT_EQ(kvcake_open(nullptr, &cache), KVCAKE_INVALID_ARGUMENT);
  const auto options = Options();
  EXPECT_EQ(kvcake_open(&options, nullptr), KVCAKE_INVALID_ARGUMENT);
}

TEST_F(BadArgumentsTest, AStoreThatCannotBeOpenedIsAnError) {
  const std::string file = dir_.path() + "/file";
  std::fclose(std::fopen(file.c_str(), "w"));
  const auto spoil = [&](kvcake_options&, kvcake_store& store) { store.where = file.c_str(); };
  EXPECT_THAT(Refusal(spoil, KVCAKE_NOT_FOUND), AllOf(HasSubstr("stores[0]: "), HasSubstr(file)));
  const std::string name(300, 'x');  // which no file system has
  const auto lengthen = [&](kvcake_options&, kvcake_store& store) { store.where = name.c_str(); };
  EXPECT_THAT(Refusal(lengthen, KVCAKE_IO), AllOf(HasSubstr("stores[0]: "), HasSubstr(name)));
}

// A caller that was compiled with a later header.
TEST_F(BadArgumentsTest, FieldsThatTheLibraryDoesNotKnowMustBeZero) {
  struct Later {
    kvcake_options options;
    uint64_t more = 0;
  } later{Options()};
  later.options.struct_size = sizeof(later);
  kvcake_cache cache = 0;
  later.more = 1;
  EXPECT_EQ(kvcake_open(&later.options, &cache), KVCAKE_UNSUPPORTED);
  later.more = 0;
  ASSERT_EQ(kvcake_open(&later.options, &cache), KVCAKE_OK) << kvcake_last_error();
  EXPECT_EQ(kvcake_close(cache), KVCAKE_OK);
  EXPECT_EQ(kvcake_close(cache), KVCAKE_NOT_FOUND);
}

// What a size claims is not looked at, however many zeros may lie there.
TEST_F(BadArgumentsTest, ASizeThatNoStructureHasIsNotBelieved) {
  std::vector<std::byte> room(1 << 17);
  auto options = Options();
  options.struct_size = room.size();
  std::memcpy(room.data(), &options, sizeof(options));
  kvcake_cache cache = 0;
  EXPECT_EQ(kvcake_open(reinterpret_cast<const kvcake_options*>(room.data()), &cache),
            KVCAKE_UNSUPPORTED);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("131072 bytes"));
}

TEST_F(BadArgumentsTest, NumbersThatWereNeverGivenOutAreRefused) {
  Open();
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 2), &restoration), KVCAKE_OK);
  auto stats = Sized<kvcake_stats_info>();
  auto turn = Sized<kvcake_turn>();
  auto slabs = Sized<kvcake_slabs>();
  auto progress = Sized<kvcake_progress_info>();
  const uint64_t of_a_fork = cache_ + (1ull << 58);  // that never was
  const uint64_t ids[] = {0, 1, cache_ + 1000, of_a_fork, UINT64_MAX, ~cache_, restoration + 7};
  for (const uint64_t id : ids) {
    EXPECT_NE(kvcake_stats(id, &stats), KVCAKE_OK) << id;
    EXPECT_NE(kvcake_flush(id), KVCAKE_OK);
    EXPECT_NE(kvcake_wait(id, 0), KVCAKE_OK);
    EXPECT_NE(kvcake_learn(id, 0, 1, 1), KVCAKE_OK);
    EXPECT_NE(kvcake_end(id), KVCAKE_OK);
    EXPECT_NE(kvcake_progress(id, &progress), KVCAKE_OK);
    EXPECT_NE(kvcake_claim_front(id, 1, 1, &turn), KVCAKE_OK);
    EXPECT_NE(kvcake_claim(id, 1, &turn), KVCAKE_OK);
    EXPECT_NE(kvcake_computed(id, 1, 0), KVCAKE_OK);
    EXPECT_NE(kvcake_acquire(id, 0, &slabs), KVCAKE_OK);
    EXPECT_NE(kvcake_release(id), KVCAKE_OK);
    EXPECT_NE(kvcake_close(id), KVCAKE_OK);
  }
  EXPECT_NE(kvcake_close(restoration), KVCAKE_OK);
  EXPECT_NE(kvcake_stats(restoration, &stats), KVCAKE_OK);
  EXPECT_NE(kvcake_release(restoration), KVCAKE_OK);
  EXPECT_NE(kvcake_end(cache_), KVCAKE_OK);
}

TEST_F(BadArgumentsTest, CallsAreRefusedByName) {
  Open();
  const auto keys = Keys(1, 3);
  kvcake_key key;
  const int32_t tokens[8] = {};
  EXPECT_EQ(kvcake_root(cache_, nullptr, 1, &key), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_root(cache_, nullptr, 0, nullptr), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_keys(cache_, nullptr, tokens, 8, &key, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_keys(cache_, &key, nullptr, 8, &key, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_keys(cache_, &key, tokens, 8, nullptr, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_keys(cache_, &key, nullptr, 0, nullptr, 0), KVCAKE_OK) << "no chunks";
  EXPECT_EQ(kvcake_extend_key(nullptr, nullptr, 0, &key), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_extend_key(&key, nullptr, 1, &key), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_extend_key(&key, nullptr, 0, nullptr), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_lookup(cache_, nullptr, 1, 0, nullptr), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_lookup(cache_, nullptr, SIZE_MAX, 0, nullptr), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_lookup(cache_, nullptr, 0, 0, nullptr), KVCAKE_OK);
  uint8_t held[3];
  EXPECT_EQ(kvcake_lookup(cache_, &keys[1], 3, -1, held), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_wait(cache_, NAN), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_learn(cache_, -1, 1, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_learn(cache_, 0, 0, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_learn(cache_, 0, 1, NAN), KVCAKE_INVALID_ARGUMENT);

  kvcake_restoration restoration = 0;
  auto request = Sized<kvcake_request>();
  request.keys = &keys[1];
  request.key_count = 3;
  EXPECT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_INVALID_ARGUMENT) << "no parent";
  request.parent = &keys[0];
  EXPECT_EQ(kvcake_begin(cache_, &request, nullptr), KVCAKE_INVALID_ARGUMENT);
  request.policy = 3;
  EXPECT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_INVALID_ARGUMENT);
  request.policy = 0;
  for (const int chunks : {-1, (1 << 16) + 1}) {
    request.slice_chunks_max = chunks;
    EXPECT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_INVALID_ARGUMENT);
  }
  request.slice_chunks_max = 0;
  request.key_count = SIZE_MAX / sizeof(kvcake_key);
  EXPECT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_INVALID_ARGUMENT);
  request.key_count = 3;
  ASSERT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_OK) << kvcake_last_error();

  EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(BadArgumentsTest, ChunksInPiecesAreRefusedByName) {
  Open();
  const auto keys = Keys(1, 1);
  const std::vector<std::byte> bytes = BytesOf(1, 0);
  std::vector<const void*> parts(kLibraryLayers, bytes.data());
  const auto refused = [&](auto change, size_t count = 1) {
    auto write = Sized<kvcake_async_write>();
    write.parent = keys[0];
    write.key = keys[1];
    write.parts = parts.data();
    write.parts_per_slab = 1;
    change(write);
    EXPECT_EQ(kvcake_put_async(cache_, &write, count), KVCAKE_INVALID_ARGUMENT);
    return std::string(kvcake_last_error());
  };
  EXPECT_THAT(refused([](auto& write) { write.struct_size = 8; }), HasSubstr("writes[0]"));
  EXPECT_THAT(refused([](auto& write) { write.position = -1; }), HasSubstr("writes[0].position"));
  EXPECT_THAT(refused([](auto& write) { write.parts = nullptr; }), HasSubstr("parts is NULL"));
  EXPECT_THAT(refused([](auto& write) { write.parts_per_slab = 0; }), HasSubstr("parts_per_slab"));
  EXPECT_THAT(refused([](auto& write) { write.parts_per_slab = 3; }), HasSubstr("divided"));
  EXPECT_THAT(refused([](auto& write) { write.parts_per_slab = 1 << 20; }),
              HasSubstr("parts_per_slab is 1048576, must be in [1, 4096]"));
  EXPECT_THAT(refused([](auto&) {}, SIZE_MAX), HasSubstr("count"));
  parts[2] = nullptr;
  EXPECT_THAT(refused([](auto&) {}), HasSubstr("parts[2]"));
  EXPECT_EQ(kvcake_put_async(cache_, nullptr, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_put_async(cache_, nullptr, 0), KVCAKE_OK);
  uint64_t kept = 0;
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, nullptr), KVCAKE_OK);
  EXPECT_EQ(kept, 0u);
}

// What one says of its size must not have the next, or what follows the array, read as a part of
// it.
TEST_F(BadArgumentsTest, ElementsOfOneArrayAreOfOneSize) {
  std::vector<kvcake_store> stores(2, store_);
  auto options = Options();
  stores[0] = stores[1] = store_;
  stores[1].struct_size = 8192;
  options.stores = stores.data();
  options.store_count = 2;
  kvcake_cache cache = 0;
  EXPECT_EQ(kvcake_open(&options, &cache), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("struct_size of stores[1] is 8192"));
  Open();
  std::vector<kvcake_async_write> writes(2, Sized<kvcake_async_write>());
  const std::vector<std::byte> bytes = BytesOf(1, 0);
  const std::vector<const void*> parts(kLibraryLayers, bytes.data());
  for (auto& write : writes) {
    write.parts = parts.data();
    write.parts_per_slab = 1;
  }
  writes[1].struct_size = 8192;
  EXPECT_EQ(kvcake_put_async(cache_, writes.data(), 2), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("struct_size of writes[1] is 8192"));
}

TEST_F(BadArgumentsTest, MoreTokensThanAPromptCanHaveAreRefused) {
  Open();
  kvcake_key root, key;
  ASSERT_EQ(kvcake_root(cache_, nullptr, 0, &root), KVCAKE_OK);
  const int32_t token = 1;
  EXPECT_EQ(kvcake_keys(cache_, &root, &token, SIZE_MAX, &key, 1), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("token_count"));
}

TEST_F(BadArgumentsTest, MoreChunksThanAPromptCanHaveAreRefused) {
  auto options = Options(/*memory_chunks=*/300);
  options.chunk_tokens = 1 << 16;
  Open(options);
  const std::vector<kvcake_key> keys((1 << 14) + 2);
  kvcake_restoration restoration = 0;
  EXPECT_EQ(Begin(keys, &restoration), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("16385 chunks of 65536 tokens are more than"));
}

TEST_F(BadArgumentsTest, CallsOfARestorationAreRefusedByName) {
  Open();
  const auto keys = Keys(1, 3);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(keys, &restoration), KVCAKE_OK);
  auto turn = Sized<kvcake_turn>();
  for (const int chunks : {0, -1, INT32_MAX}) {
    EXPECT_EQ(kvcake_claim(restoration, chunks, &turn), KVCAKE_INVALID_ARGUMENT);
    EXPECT_EQ(kvcake_claim_front(restoration, chunks, 1, &turn), KVCAKE_INVALID_ARGUMENT);
  }
  for (const double share : {0.0, -1.0, 1.5, static_cast<double>(NAN)}) {
    EXPECT_EQ(kvcake_claim_front(restoration, 1, share, &turn), KVCAKE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(kvcake_claim(restoration, 1, nullptr), KVCAKE_INVALID_ARGUMENT);
  turn.struct_size = 4;
  EXPECT_EQ(kvcake_claim(restoration, 1, &turn), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(Progress(restoration).claimed_count, 0);
  EXPECT_EQ(kvcake_computed(restoration, -1, 0), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_computed(restoration, 1, 0), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_progress(restoration, nullptr), KVCAKE_INVALID_ARGUMENT);
  auto slabs = Sized<kvcake_slabs>();
  for (const int chunk : {-1, 3, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(kvcake_acquire(restoration, chunk, &slabs), KVCAKE_INVALID_ARGUMENT);
  }
  EXPECT_EQ(kvcake_acquire(restoration, 0, nullptr), KVCAKE_INVALID_ARGUMENT);
  auto write = Sized<kvcake_write>();
  EXPECT_EQ(kvcake_put(cache_, &write), KVCAKE_INVALID_ARGUMENT) << "no data";
  write.data = &keys;
  for (const uint64_t stride : {uint64_t{1}, UINT64_MAX}) {
    write.stride = stride;
    EXPECT_EQ(kvcake_put(cache_, &write), KVCAKE_INVALID_ARGUMENT);
    EXPECT_THAT(kvcake_last_error(), HasSubstr("stride"));
  }
  write.stride = 0;
  for (const int position : {-1, INT32_MAX}) {
    write.position = position;
    EXPECT_EQ(kvcake_put(cache_, &write), KVCAKE_INVALID_ARGUMENT);
    EXPECT_THAT(kvcake_last_error(), HasSubstr("position"));
  }
  EXPECT_EQ(kvcake_put(cache_, nullptr), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

// The Restorer relies on a key's place; a caller may have it wrong.
TEST_F(BadArgumentsTest, KeysThatAreNoChainAreRefused) {
  Open();
  const auto keys = Keys(1, 4);
  kvcake_restoration restoration = 0, other = 0;
  ASSERT_EQ(Begin(keys, &restoration), KVCAKE_OK);
  EXPECT_EQ(Begin({keys[1], keys[2], keys[3]}, &other), KVCAKE_INVALID_ARGUMENT) << "shifted";
  EXPECT_THAT(kvcake_last_error(), HasSubstr("keys[0]"));
  const auto strangers = Keys(2, 4);
  EXPECT_EQ(Begin({keys[0], strangers[1], keys[2]}, &other), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(Begin({keys[0], strangers[1], strangers[1]}, &other), KVCAKE_INVALID_ARGUMENT);
  ASSERT_EQ(Begin({keys[0], keys[1], strangers[1]}, &other), KVCAKE_OK)
      << "of what was refused nothing has a place";
  ASSERT_EQ(kvcake_end(other), KVCAKE_OK);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  ASSERT_EQ(Begin({keys[1], keys[2], keys[3]}, &other), KVCAKE_OK) << "nobody else uses them";
  Restore(other);
  ASSERT_EQ(kvcake_end(other), KVCAKE_OK);
}

}  // namespace
}  // namespace kvcake
