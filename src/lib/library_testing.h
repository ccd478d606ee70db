// What the tests of the library share: caches of small chunks whose bytes are made of their place.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/temp_dir_testing.h"
#include "lib/kvcake.h"

namespace kvcake::testing_util {

inline constexpr int kLibraryLayers = 3, kLibraryChunkTokens = 4;
inline constexpr size_t kLibrarySlabBytes = 1000;  // of a slab of 4096
inline constexpr size_t kLibraryPageBytes = 4096 * (1 + kLibraryLayers);

// A structure of zeros that knows its size.
template <typename T>
T Sized() {
  T value = {};
  value.struct_size = sizeof(T);
  return value;
}

inline std::byte ByteOf(int document, int chunk, int layer, size_t i) {
  return static_cast<std::byte>(17 * document + 5 * chunk + 3 * layer + i);
}

class LibraryTest : public testing::Test {
 protected:
  void TearDown() override {
    if (cache_ == 0) return;
    EXPECT_EQ(kvcake_close(cache_), KVCAKE_OK) << kvcake_last_error();
  }

  kvcake_options Options(int memory_chunks = 64) {
    store_ = Sized<kvcake_store>();
    store_.where = dir_.path().c_str();
    auto options = Sized<kvcake_options>();
    options.name_space = "test";
    options.layers = kLibraryLayers;
    options.chunk_tokens = kLibraryChunkTokens;
    options.slab_bytes = kLibrarySlabBytes;
    options.stores = &store_;
    options.store_count = 1;
    options.memory_bytes = memory_chunks * kLibraryPageBytes;
    options.write_queue_share = 1;  // nothing is dropped because the disk is slow
    return options;
  }
  void Open(const kvcake_options& options) {
    ASSERT_EQ(kvcake_open(&options, &cache_), KVCAKE_OK) << kvcake_last_error();
  }
  void Open() { Open(Options()); }
  void Reopen(const kvcake_options& options) {
    ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK) << kvcake_last_error();
    Open(options);
  }
  void Reopen() { Reopen(Options()); }

  // The root, then the keys of the document's chunks.
  std::vector<kvcake_key> Keys(int document, int chunks) const {
    const std::vector<int32_t> tokens(chunks * kLibraryChunkTokens, document);
    std::vector<kvcake_key> keys(chunks + 1);
    EXPECT_EQ(kvcake_root(cache_, nullptr, 0, &keys[0]), KVCAKE_OK);
    EXPECT_EQ(kvcake_keys(cache_, &keys[0], tokens.data(), tokens.size(), &keys[1], chunks),
              KVCAKE_OK);
    return keys;
  }
  int Put(int document, int chunk, const std::vector<kvcake_key>& keys) const {
    const std::vector<std::byte> data = BytesOf(document, chunk);
    auto write = Sized<kvcake_write>();
    write.parent = keys[chunk];
    write.key = keys[chunk + 1];
    write.position = chunk;
    write.data = data.data();
    return kvcake_put(cache_, &write);
  }
  // The bytes of a chunk, slab after slab.
  static std::vector<std::byte> BytesOf(int document, int chunk) {
    std::vector<std::byte> data(kLibraryLayers * kLibrarySlabBytes);
    for (int layer = 0; layer < kLibraryLayers; ++layer) {
      for (size_t i = 0; i < kLibrarySlabBytes; ++i) {
        data[layer * kLibrarySlabBytes + i] = ByteOf(document, chunk, layer, i);
      }
    }
    return data;
  }
  // Chunks in pieces of half a slab; what `pieces` holds has to stay until they are put.
  int PutAsync(int document, int chunks, const std::vector<kvcake_key>& keys,
               std::vector<std::vector<std::byte>>& pieces) const {
    constexpr size_t kHalf = kLibrarySlabBytes / 2;
    std::vector<kvcake_async_write> writes;
    std::vector<std::vector<const void*>> parts(chunks);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::vector<std::byte> bytes = BytesOf(document, chunk);
      for (size_t at = 0; at < bytes.size(); at += kHalf) {
        pieces.emplace_back(bytes.begin() + at, bytes.begin() + at + kHalf);
        parts[chunk].push_back(pieces.back().data());
      }
      auto write = Sized<kvcake_async_write>();
      write.parent = keys[chunk];
      write.key = keys[chunk + 1];
      write.position = chunk;
      write.parts = parts[chunk].data();
      write.parts_per_slab = 2;
      writes.push_back(write);
    }
    return kvcake_put_async(cache_, writes.data(), writes.size());
  }
  // In the store, and not in memory any more.
  void Keep(int document, int chunks) {
    const auto keys = Keys(document, chunks);
    for (int i = 0; i < chunks; ++i) ASSERT_EQ(Put(document, i, keys), KVCAKE_OK);
    ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
    Reopen();
  }
  int Begin(const std::vector<kvcake_key>& keys, kvcake_restoration* restoration,
            int policy = KVCAKE_POLICY_CAKE) const {
    auto request = Sized<kvcake_request>();
    request.parent = &keys[0];
    request.keys = &keys[1];
    request.key_count = keys.size() - 1;
    request.policy = policy;
    return kvcake_begin(cache_, &request, restoration);
  }
  // Opens a cache whose memory is all held by a restoration of document 1.
  void HoldAllOfMemory(int chunks, kvcake_restoration* restoration) {
    Open(Options(chunks));
    const auto keys = Keys(1, chunks);
    for (int i = 0; i < chunks; ++i) ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
    ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
    ASSERT_EQ(Begin(keys, restoration), KVCAKE_OK);
    ASSERT_EQ(Progress(*restoration).reused, chunks);
  }
  kvcake_progress_info Progress(kvcake_restoration restoration) const {
    auto progress = Sized<kvcake_progress_info>();
    EXPECT_EQ(kvcake_progress(restoration, &progress), KVCAKE_OK) << kvcake_last_error();
    return progress;
  }
  // As a caller whose chunks take a millisecond each does.
  kvcake_progress_info Restore(kvcake_restoration restoration) const {
    auto turn = Sized<kvcake_turn>();
    while (true) {
      EXPECT_EQ(kvcake_claim_front(restoration, 4, 1, &turn), KVCAKE_OK) << kvcake_last_error();
      if (turn.kind == KVCAKE_TURN_DONE || testing::Test::HasFailure()) break;
      if (turn.kind == KVCAKE_TURN_WAIT) {
        EXPECT_EQ(kvcake_wait(cache_, turn.wait_s), KVCAKE_OK) << kvcake_last_error();
      } else {
        EXPECT_EQ(kvcake_computed(restoration, turn.count, 1e-3 * turn.count), KVCAKE_OK);
      }
    }
    return Progress(restoration);
  }
  // How many chunks are in memory; their bytes are the document's.
  int ExpectBytes(kvcake_restoration restoration, int document) const {
    int here = 0;
    for (int chunk = 0; chunk < Progress(restoration).chunks; ++chunk) {
      auto slabs = Sized<kvcake_slabs>();
      const int status = kvcake_acquire(restoration, chunk, &slabs);
      if (status == KVCAKE_NOT_FOUND) continue;
      EXPECT_EQ(status, KVCAKE_OK) << kvcake_last_error();
      ++here;
      for (int layer = 0; layer < kLibraryLayers; ++layer) {
        const auto* slab = static_cast<const std::byte*>(slabs.data) + layer * slabs.stride;
        size_t same = 0;
        while (same < kLibrarySlabBytes && slab[same] == ByteOf(document, chunk, layer, same)) {
          ++same;
        }
        EXPECT_EQ(same, kLibrarySlabBytes) << "chunk " << chunk << ", layer " << layer;
      }
      EXPECT_EQ(kvcake_release(slabs.chunk), KVCAKE_OK);
    }
    return here;
  }
  kvcake_stats_info Stats() const {
    auto stats = Sized<kvcake_stats_info>();
    EXPECT_EQ(kvcake_stats(cache_, &stats), KVCAKE_OK);
    return stats;
  }
  std::vector<std::string> ChunkFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      const bool is_chunk =
          entry.is_regular_file() && entry.path().filename().string().size() == 64;
      if (is_chunk) files.push_back(entry.path());
    }
    return files;
  }

  const TempDir dir_;
  kvcake_store store_ = {};
  kvcake_cache cache_ = 0;
};

}  // namespace kvcake::testing_util
