// What tests of encoded chunks share: disk tiers behind each codec, and pages of natural numbers
// behind lossy ones.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "codec/codec_testing.h"
#include "io/file_system.h"
#include "store/chunk_seal.h"
#include "store/disk_tier.h"
#include "store/encoded_tier.h"
#include "store/named_tier.h"
#include "store/store_codec.h"
#include "store/tier_decorator.h"
#include "store/tier_testing.h"

namespace kvcake::testing_util {

// With tables of natural slabs where the codec has some.
inline StoreCodec NaturalCodec(Codec codec, const KvLayout& layout) {
  StoreCodec made;
  made.row = FindCodec(codec);
  if (auto tables = NaturalTables(*made.row, layout)) {
    made.tables_digest = TablesDigest(*tables);
    made.tables = std::make_shared<const CodecTables>(std::move(*tables));
  }
  return made;
}

// The natural numbers that stand for a chunk.
inline std::vector<std::byte> NaturalPage(const ChunkKey& key, const KvLayout& layout) {
  std::vector<std::byte> page(layout.page_bytes());
  uint64_t seed;
  std::memcpy(&seed, key.digest.data(), sizeof(seed));
  for (int layer = 0; layer < layout.layers; ++layer) {
    const auto slab = NaturalSlab(layout, seed + layer);
    std::memcpy(&page[layout.slab_offset(layer)], slab.data(), layout.slab_payload_bytes());
  }
  return page;
}

// What a codec makes of it, where its first token is that of its prompt.
inline std::vector<std::byte> DecodedPage(const ChunkKey& key, const KvLayout& layout,
                                          const LayerCodec& codec, int64_t position = 0) {
  std::vector<std::byte> page = NaturalPage(key, layout);
  std::vector<std::byte> part(codec.part_bytes_max());
  for (int layer = 0; layer < layout.layers; ++layer) {
    const std::span<uint16_t> slab(reinterpret_cast<uint16_t*>(&page[layout.slab_offset(layer)]),
                                   layout.slab_payload_bytes() / 2);
    const uint64_t bytes = codec.Encode({.layer = layer, .position = position}, slab, part).value();
    CHECK(codec.Decode({.layer = layer, .position = position}, std::span(part).first(bytes), slab));
  }
  return page;
}

// Lets tests of any bytes run over a lossy codec: what is put is natural numbers, and what is read
// becomes the chunk's any bytes where it is exactly what the codec makes of them.
class AnyBytesTier : public TierDecorator {
 public:
  AnyBytesTier(std::unique_ptr<Tier> inner, const KvLayout& layout,
               std::unique_ptr<LayerCodec> codec)
      : TierDecorator(std::move(inner)), layout_(layout), codec_(std::move(codec)) {}

  ReadId Get(ReadRequest request) override {
    // Nothing of this object: the inner tier, which goes last, may call it then.
    request.done = [layout = layout_, codec = codec_, key = request.key, landing = request.landing,
                    layers = request.layers, done = std::move(request.done)](ReadResult result) {
      if (result.status) Translate(layout, *codec, key, landing, layers);
      done(std::move(result));
    };
    return inner().Get(std::move(request));
  }
  void Cancel(ReadId id) override { inner().Cancel(id); }
  Status Put(const ChunkWrite& chunk) override {
    const std::vector<std::byte> page = NaturalPage(chunk.key, layout_);
    ChunkWrite natural = chunk;
    natural.page = page;
    return inner().Put(natural);
  }

 private:
  static void Translate(const KvLayout& layout, const LayerCodec& codec, const ChunkKey& key,
                        std::span<std::byte> landing, const std::optional<LayerRange>& layers) {
    std::vector<std::byte> any(layout.page_bytes());
    FillPage(key, any);
    const std::vector<std::byte> expected = DecodedPage(key, layout, codec);
    const LayerRange range = layers.value_or(LayerRange{0, layout.layers});
    uint64_t at = layers ? 0 : kPageHeaderBytes;
    for (int i = range.first; i < range.first + range.count; ++i, at += layout.slab_bytes()) {
      const uint64_t offset = layout.slab_offset(i), bytes = layout.slab_payload_bytes();
      if (std::memcmp(&landing[at], &expected[offset], bytes) != 0) continue;
      std::memcpy(&landing[at], &any[offset], bytes);
    }
  }

  const KvLayout layout_;
  const std::shared_ptr<const LayerCodec> codec_;
};

// The options of a tier of files for chunks of this codec; root and form are set.
template <typename Options>
Options EncodedOptions(Options options, const StoreCodec& codec, const StoreKey* key = nullptr) {
  const auto layer_codec = codec.Make(options.layout).value();
  options.form = codec.Form(layer_codec->part_bytes_max());
  options.form.encrypted = key != nullptr;
  options.root = FormRoot(options.root, options.form);
  if (key != nullptr) options.root = NameOf(*key, options.root);
  return options;
}

template <typename Options>
std::unique_ptr<EncodedTier> OverFiles(std::unique_ptr<Tier> files, const Options& encoded,
                                       const StoreCodec& codec) {
  return std::make_unique<EncodedTier>(
      std::move(files), codec.Make(encoded.layout).value(),
      EncodedTierOptions{.layout = encoded.layout, .root = encoded.root, .form = encoded.form});
}

// `options` are those of a disk tier of raw chunks.
inline std::unique_ptr<EncodedTier> OpenEncodedDisk(const DiskTierOptions& options,
                                                    const StoreCodec& codec,
                                                    FileSystem& fs = FileSystem::Real()) {
  const DiskTierOptions encoded = EncodedOptions(options, codec);
  return OverFiles(DiskTier::Open(encoded, fs).value(), encoded, codec);
}

inline std::shared_ptr<const StoreKey> ATestsKey() {
  return std::make_shared<const StoreKey>(StoreKey::Of(std::string(32, 'k'), "a test").value());
}

// Over a tier of encrypted files: `root` is the model's, `encrypted` EncodedOptions by the key.
template <typename Options>
std::unique_ptr<EncodedTier> OverNames(std::unique_ptr<Tier> files, const ChunkKey& root,
                                       const Options& encrypted, const StoreCodec& codec,
                                       std::shared_ptr<const StoreKey> key) {
  return std::make_unique<EncodedTier>(std::make_unique<NamedTier>(std::move(files), key),
                                       codec.Make(encrypted.layout).value(),
                                       EncodedTierOptions{.layout = encrypted.layout,
                                                          .root = FormRoot(root, encrypted.form),
                                                          .form = encrypted.form,
                                                          .key = key});
}

inline std::unique_ptr<EncodedTier> OpenEncryptedDisk(const DiskTierOptions& options,
                                                      const StoreCodec& codec) {
  const auto key = ATestsKey();
  const DiskTierOptions encrypted = EncodedOptions(options, codec, key.get());
  return OverNames(DiskTier::Open(encrypted).value(), options.root, encrypted, codec, key);
}

}  // namespace kvcake::testing_util
