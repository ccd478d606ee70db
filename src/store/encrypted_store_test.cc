// Stores with a key, as --store names them: who finds what, and what a new key does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/faulty_file_system_testing.h"
#include "store/chunk_format.h"
#include "store/disk_testing.h"
#include "store/open_store.h"
#include "store/owner.h"
#include "store/rekey.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;
namespace stdfs = std::filesystem;

class EncryptedStoreTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr size_t kChunks = 6;

  std::string KeyFile(char letter) const {
    const std::string path = secrets_.path() + "/" + letter;
    std::ofstream(path) << std::string(32, letter) << "\n";
    stdfs::permissions(path, stdfs::perms::owner_read | stdfs::perms::owner_write);
    return path;
  }
  StoreKey KeyOf(char letter) const { return StoreKey::Load(KeyFile(letter), "a test").value(); }
  std::string Url(const std::string& key_file) const {
    return dir_.path() + "?codec=" + GetParam() + "&key-file=" + key_file;
  }
  static Result<std::unique_ptr<Tier>> TryOpen(const std::string& url, uint64_t quota = 0) {
    ASSIGN_OR_RETURN(const StoreOptions options, ReadStoreUrl(url));
    return OpenStore(0, options,
                     {.layout = SmallLayout(),
                      .root = Root(),
                      .description = R"({"model": "a secret name"})",
                      .owner_quota_bytes = quota});
  }
  // Nothing where the key is none: as the store was before there were keys.
  std::unique_ptr<Tier> Open(char letter = '\0') const {
    return TryOpen(letter == '\0' ? dir_.path() : Url(KeyFile(letter)), 1 << 30).value();
  }
  void Fill(Tier& tier) const {
    for (size_t i = 0; i < kChunks; ++i) {
      ASSERT_TRUE(PutChunk(tier, SmallLayout(), chain_[i], ParentOf(chain_, i), kAnn));
    }
  }
  // How many of the chunks a tier reads, each as it was kept.
  size_t Readable(Tier& tier) const {
    Reads reads;
    size_t readable = 0;
    for (size_t i = 0; i < kChunks; ++i) {
      const size_t read = reads.Start(tier, SmallLayout(), chain_[i], ParentOf(chain_, i));
      const ReadResult result = reads.Wait(read);
      if (result.status) {
        EXPECT_TRUE(HoldsChunk(chain_[i], reads.landing(read)));
        ++readable;
      } else {
        EXPECT_EQ(result.status.error().code, ErrorCode::kNotFound);
      }
    }
    return readable;
  }
  size_t Readable(char letter) const { return Readable(*Open(letter)); }
  // The file of the first chunk.
  std::string NamedBy(char letter) const {
    const StoreOptions options = ReadStoreUrl(Url(KeyFile(letter))).value();
    return StoreDir(dir_.path())
        .ChunkPath({FilesRoot(options, Root()), {KeyOf(letter).NameOf(chain_[0].digest)}});
  }
  std::vector<std::string> ChunkFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename();
      if (entry.is_regular_file() && ParseKeyHex(name)) files.push_back(entry.path());
    }
    return files;
  }
  // Every name and every byte.
  std::string AllThatIsThere() const {
    std::string all;
    for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
      all += entry.path().string() + "\n";
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }

  const TempDir dir_, secrets_;
  const std::vector<ChunkKey> chain_ = Chain(kChunks);
};

INSTANTIATE_TEST_SUITE_P(Codecs, EncryptedStoreTest, testing::Values("raw", "lossless"),
                         [](const auto& param) { return param.param; });

TEST_P(EncryptedStoreTest, WhoHasTheKeyFindsWhatWasKept) {
  Fill(*Open('a'));
  const auto again = Open('a');
  EXPECT_EQ(Held(*again, chain_), std::vector<bool>(kChunks, true));
  EXPECT_EQ(Readable(*again), kChunks);
  EXPECT_EQ(again->Stats().decodes.calls, kChunks);
}

TEST_P(EncryptedStoreTest, WithAnotherKeyNothingIsFoundAndNothingDestroyed) {
  Fill(*Open('a'));
  const auto files = ChunkFiles();
  const auto other = Open('b');
  EXPECT_EQ(Held(*other, chain_), std::vector<bool>(kChunks, false));
  EXPECT_EQ(Readable(*other), 0u);
  EXPECT_EQ(Readable(char{}), 0u) << "without a key";
  EXPECT_EQ(ChunkFiles(), files);
  Fill(*other);
  EXPECT_EQ(Readable(*other), kChunks);
  EXPECT_EQ(Readable('a'), kChunks);
  EXPECT_EQ(ChunkFiles().size(), 2 * kChunks);
}

TEST_P(EncryptedStoreTest, OneMayNotKnowWhatIsKept) {
  Fill(*Open('a'));
  const std::string all = AllThatIsThere();
  std::vector<std::byte> page(SmallLayout().page_bytes());
  for (const ChunkKey& key : chain_) {
    EXPECT_EQ(all.find(key.Hex()), all.npos);
    EXPECT_EQ(all.find(std::string_view(reinterpret_cast<const char*>(key.digest.data()), 16)),
              all.npos);
    FillPage(key, page);
    const auto* const bytes = reinterpret_cast<const char*>(&page[SmallLayout().slab_offset(1)]);
    EXPECT_EQ(all.find(std::string_view(bytes, 16)), all.npos);
  }
  EXPECT_EQ(all.find(Root().Hex()), all.npos);
  EXPECT_EQ(all.find("a secret name"), all.npos);
}

// As a stranger would who may write to the disk: the checksums of what was changed are right.
TEST_P(EncryptedStoreTest, WhatWasExchangedIsNotServedAndGoes) {
  Fill(*Open('a'));
  const StoreKey key = KeyOf('a');
  StoreOptions options = ReadStoreUrl(Url(KeyFile('a'))).value();
  const auto path = [&](size_t i) {
    return StoreDir(dir_.path())
        .ChunkPath({FilesRoot(options, Root()), {key.NameOf(chain_[i].digest)}});
  };
  std::string first(kPageHeaderBytes, '\0'), second = first;
  std::ifstream(path(0), std::ios::binary).read(first.data(), first.size());
  std::ifstream(path(1), std::ios::binary).read(second.data(), second.size());
  // The first chunk's header with the salt of the second.
  std::copy_n(second.begin() + 224, 32, first.begin() + 224);
  const uint64_t checksum = Xxh3_64(std::as_bytes(std::span(first)).first(4088));
  std::memcpy(&first[4088], &checksum, 8);
  std::fstream(path(0), std::ios::binary | std::ios::in | std::ios::out)
      .write(first.data(), first.size());
  const auto tier = Open('a');
  Reads reads;
  const size_t read = reads.Start(*tier, SmallLayout(), chain_[0], Root());
  EXPECT_EQ(reads.Wait(read).status.error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(stdfs::exists(path(0)));
  EXPECT_EQ(tier->Stats().reads_failed, 1u);
  EXPECT_EQ(Readable(*tier), kChunks - 1);
}

TEST_P(EncryptedStoreTest, AKeyThatCannotBeReadIsSaid) {
  const auto error = [&](const std::string& file) { return TryOpen(Url(file)).error().message; };
  EXPECT_THAT(error(secrets_.path() + "/none"), HasSubstr(secrets_.path() + "/none"));
  const std::string path = KeyFile('a');
  std::ofstream(path) << "short";
  EXPECT_THAT(error(path), HasSubstr("openssl rand"));
  std::ofstream(path) << std::string(32, 'a');
  stdfs::permissions(path, stdfs::perms::others_read, stdfs::perm_options::add);
  EXPECT_THAT(error(path), HasSubstr("chmod"));
  EXPECT_FALSE(stdfs::exists(dir_.path() + "/v1"));
}

TEST_P(EncryptedStoreTest, ANewKeyGetsAllThatTheOldOneHad) {
  Fill(*Open('a'));
  Fill(*Open('c'));
  Fill(*Open());
  for (const std::string& file : ChunkFiles()) ASSERT_TRUE(FileSystem::Real().Touch(file, 1000000));
  const auto rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'));
  ASSERT_TRUE(rekeyed) << rekeyed.error().message;
  EXPECT_EQ(rekeyed->chunks, kChunks);
  EXPECT_EQ(rekeyed->others, 2 * kChunks);
  EXPECT_TRUE(rekeyed->failed.empty());
  EXPECT_EQ(ChunkFiles().size(), 3 * kChunks);
  for (const std::string& file : ChunkFiles()) {
    EXPECT_EQ(FileSystem::Real().Stat(file)->mtime_s, 1000000);
    EXPECT_EQ(ReadOwner(FileSystem::Real(), file), kAnn);
  }
  uint64_t bytes = 0;
  for (const std::string& file : ChunkFiles()) bytes += stdfs::file_size(file);
  EXPECT_EQ(rekeyed->bytes, kChunks * stdfs::file_size(NamedBy('b')));
  const auto after = Open('b');
  EXPECT_EQ(after->Owners(), (std::vector<OwnedBytes>{{kAnn, bytes}}));
  EXPECT_EQ(Readable(*after), kChunks);
  EXPECT_EQ(Readable('a'), 0u);
  EXPECT_EQ(Readable('c'), kChunks);
  EXPECT_EQ(Readable(char{}), kChunks);
}

// Each chunk is there by one key or by both, wherever it was cut short.
TEST_P(EncryptedStoreTest, WhatWasCutShortLosesNothingAndGoesOn) {
  Fill(*Open('a'));
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.change_error = 0.1, .change_errno = EIO});
  RekeyedStore rekeyed;
  int runs = 0;
  do {
    ASSERT_LT(++runs, 1000);
    rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'), {.threads = 1}, fs).value();
    std::vector<bool> there(kChunks);
    for (const char letter : {'a', 'b'}) {
      const auto held = Held(*Open(letter), chain_);
      for (size_t i = 0; i < kChunks; ++i) there[i] = there[i] || held[i];
    }
    EXPECT_EQ(there, std::vector<bool>(kChunks, true));
  } while (!rekeyed.failed.empty());
  EXPECT_GT(fs.faults(), 0u);
  EXPECT_EQ(Readable('b'), kChunks);
  EXPECT_EQ(Readable('a'), 0u);
}

TEST_P(EncryptedStoreTest, WhatCannotBeListedStaysWithTheOldKeyAndIsSaid) {
  Fill(*Open('a'));
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.list_error = 1});
  const auto rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'), {}, fs);
  ASSERT_TRUE(rekeyed) << rekeyed.error().message;
  ASSERT_EQ(rekeyed->failed.size(), 1u);
  EXPECT_EQ(rekeyed->failed[0].path, StoreDir(dir_.path()).Base());
  EXPECT_EQ(Readable('a'), kChunks);
}

TEST_P(EncryptedStoreTest, TheKeyThatItHasIsNoNewOne) {
  Fill(*Open('a'));
  EXPECT_EQ(RekeyStore(dir_.path(), KeyOf('a'), KeyOf('a')).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Readable('a'), kChunks);
}

TEST_P(EncryptedStoreTest, ARekeyedChunkKeepsItsLatestUse) {
  Fill(*Open('a'));
  Fill(*Open('b'));
  for (const std::string& file : ChunkFiles()) ASSERT_TRUE(FileSystem::Real().Touch(file, 1000000));
  ASSERT_TRUE(FileSystem::Real().Touch(NamedBy('b'), 2000000));
  ASSERT_EQ(RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'))->chunks, kChunks);
  EXPECT_EQ(FileSystem::Real().Stat(NamedBy('b'))->mtime_s, 2000000);
}

// Another process uses the old file while the new one is being written.
TEST_P(EncryptedStoreTest, ARekeyedChunkKeepsAUseOfMeanwhile) {
  Fill(*Open('a'));
  for (const std::string& file : ChunkFiles()) ASSERT_TRUE(FileSystem::Real().Touch(file, 1000000));
  HookedFileSystem fs;
  fs.before_create = [&](const std::string& path) {
    if (!path.starts_with(NamedBy('b'))) return;
    EXPECT_TRUE(FileSystem::Real().Touch(NamedBy('a'), 2000000));
  };
  ASSERT_EQ(RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'), {.threads = 1}, fs)->chunks, kChunks);
  EXPECT_EQ(FileSystem::Real().Stat(NamedBy('b'))->mtime_s, 2000000);
}

TEST_P(EncryptedStoreTest, ANewKeysRootIsDescribedAsTheOldOnesWas) {
  Fill(*Open('a'));
  const auto described = [&] {
    std::vector<std::string> texts;
    const auto roots = ListStore(dir_.path()).value();
    for (const StoreRoot& root : roots) texts.push_back(root.description);
    return texts;
  };
  const auto before = described();
  ASSERT_EQ(before.size(), 1u);
  ASSERT_THAT(before[0], HasSubstr("AES-256-GCM"));
  ASSERT_EQ(RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'))->chunks, kChunks);
  EXPECT_EQ(described(), (std::vector{before[0], before[0]}));
}

TEST_P(EncryptedStoreTest, AChunkThatCannotBeRekeyedLeavesNothingHalfDone) {
  Fill(*Open('a'));
  Open('b').reset();  // its root is there
  FaultyFileSystem fs(FileSystem::Real(), 1);
  fs.Set({.write_error = 1});
  const auto rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'), {}, fs);
  ASSERT_EQ(rekeyed.value().failed.size(), kChunks);
  EXPECT_TRUE(std::is_sorted(rekeyed->failed.begin(), rekeyed->failed.end()));
  for (const auto& entry : stdfs::recursive_directory_iterator(dir_.path())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".tmp.")));
  }
}

TEST_P(EncryptedStoreTest, WhatHasGoneBeforeItIsRekeyedHasNotFailed) {
  Fill(*Open('a'));
  HookedFileSystem fs;
  fs.after_list = [&](const std::string& path) {
    if (stdfs::path(NamedBy('a')).parent_path() == path) stdfs::remove(NamedBy('a'));
  };
  const auto rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'), {}, fs);
  EXPECT_EQ(rekeyed.value().chunks, kChunks - 1);
  EXPECT_TRUE(rekeyed->failed.empty());
}

TEST_P(EncryptedStoreTest, NothingIsRekeyedThroughALink) {
  Fill(*Open('a'));
  const StoreOptions options = ReadStoreUrl(Url(KeyFile('b'))).value();
  const std::string root = StoreDir(dir_.path()).RootDir(FilesRoot(options, Root()));
  const TempDir elsewhere;
  stdfs::create_directory_symlink(elsewhere.path(), root);
  const auto rekeyed = RekeyStore(dir_.path(), KeyOf('a'), KeyOf('b'));
  ASSERT_TRUE(rekeyed) << rekeyed.error().message;
  ASSERT_EQ(rekeyed->failed.size(), kChunks);
  EXPECT_THAT(rekeyed->failed[0].reason, HasSubstr(root));
  EXPECT_TRUE(stdfs::is_empty(elsewhere.path()));
  stdfs::remove(root);
  EXPECT_EQ(Readable('a'), kChunks);
}

// A file without a tag, under the name of one that has: as whoever can write there may make it.
TEST_P(EncryptedStoreTest, WhatIsNotEncryptedIsNotServedForWhatIs) {
  const std::string codec = GetParam();
  if (codec == "raw") return;  // such a file is of another version, and length
  Fill(*Open('a'));
  ASSERT_TRUE(PutChunk(*TryOpen(dir_.path() + "?codec=" + codec).value(), SmallLayout(), chain_[0],
                       Root()));
  const StoreOptions plain = ReadStoreUrl(dir_.path() + "?codec=" + codec).value(),
                     secret = ReadStoreUrl(Url(KeyFile('a'))).value();
  const StoreKey key = KeyOf('a');
  const ChunkId id{FilesRoot(secret, Root()), {key.NameOf(chain_[0].digest)}};
  const StoreDir store(dir_.path());
  std::string file;
  {
    std::ifstream in(store.ChunkPath({FilesRoot(plain, Root()), chain_[0]}), std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto bytes = std::as_writable_bytes(std::span(file)).first<kPageHeaderBytes>();
  ChunkHeader header = DecodeHeader(bytes).value();
  header.root = id.root;
  header.key = id.key;
  header.parent = {key.NameOf(Root().digest)};
  EncodeHeader(bytes, header);
  std::ofstream(store.ChunkPath(id), std::ios::binary) << file;
  const auto tier = Open('a');
  Reads reads;
  EXPECT_EQ(reads.Wait(reads.Start(*tier, SmallLayout(), chain_[0], Root())).status.error().code,
            ErrorCode::kCorrupt);
  EXPECT_EQ(Readable(*tier), kChunks - 1);
}

TEST_P(EncryptedStoreTest, VerifyingByTheKeySeesWhatChecksumsDoNot) {
  Fill(*Open('a'));
  const auto key = std::make_shared<const StoreKey>(KeyOf('a'));
  EXPECT_EQ(VerifyStore(dir_.path(), {.key = key})->decrypted, kChunks);
  const std::string path = ChunkFiles()[0];
  std::string file;
  {
    std::ifstream in(path, std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(in), {});
  }
  file[368 + 12] ^= 1;  // a tag
  const uint64_t checksum = Xxh3_64(std::as_bytes(std::span(file)).first(4088));
  std::memcpy(&file[4088], &checksum, 8);
  std::ofstream(path, std::ios::binary) << file;
  EXPECT_TRUE(VerifyStore(dir_.path(), {})->bad.empty());
  const auto other =
      VerifyStore(dir_.path(), {.key = std::make_shared<const StoreKey>(KeyOf('b'))});
  EXPECT_TRUE(other->bad.empty());
  EXPECT_EQ(other->decrypted, 0u) << "and says so";
  const auto verified = VerifyStore(dir_.path(), {.key = key});
  ASSERT_EQ(verified->bad.size(), 1u);
  EXPECT_EQ(verified->bad[0].path, path);
}

}  // namespace
}  // namespace kvcake
