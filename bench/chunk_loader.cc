#include "bench/chunk_loader.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

namespace kvcake::bench {
namespace {

// Keeps as many reads in flight as the tier allows.
class Loader {
 public:
  Loader(Tier& tier, PagePool& pool, const ChunkKey& root, const std::vector<ChunkKey>& keys)
      : tier_(tier), pool_(pool), root_(root), keys_(keys) {}

  Status Run() {
    const uint64_t page = pool_.layout().page_bytes();
    const auto ahead =
        std::min<uint64_t>(tier_.max_reads_in_flight(), tier_.max_read_bytes_in_flight() / page);
    for (uint64_t i = 0; i < std::max<uint64_t>(ahead, 1); ++i) Next();
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return done_ == keys_.size() || (failed_ && in_flight_ == 0); });
    return failed_ ? Status(tl::unexpected(*failed_)) : Status();
  }

 private:
  void Next() {
    size_t i;
    {
      std::lock_guard lock(mutex_);
      if (next_ == keys_.size() || failed_) return;
      i = next_++;
      ++in_flight_;
    }
    auto page = pool_.Draw();
    const auto landing = pool_.LandingFor(page->id(), Codec::kRaw);
    auto shared = std::make_shared<PageHandle>(std::move(*page));
    tier_.Get({.key = keys_[i],
               .parent = i == 0 ? root_ : keys_[i - 1],
               .landing = landing,
               .done = [this, i, shared](ReadResult result) {
                 if (result.status) {
                   pool_.Publish(std::move(*shared), keys_[i], result.numeric_path);
                 }
                 shared->Reset();
                 Next();
                 Done(result.status);
               }});
  }

  void Done(const Status& status) {
    std::lock_guard lock(mutex_);
    ++done_;
    --in_flight_;
    if (!status && !failed_) failed_ = status.error();
    finished_.notify_all();
  }

  Tier& tier_;
  PagePool& pool_;
  const ChunkKey root_;
  const std::vector<ChunkKey>& keys_;

  std::mutex mutex_;
  std::condition_variable finished_;
  // Guarded by mutex_.
  size_t next_ = 0, done_ = 0, in_flight_ = 0;
  std::optional<Error> failed_;
};

}  // namespace

Status LoadChunks(Tier& tier, PagePool& pool, const ChunkKey& root,
                  const std::vector<ChunkKey>& keys) {
  return Loader(tier, pool, root, keys).Run();
}

}  // namespace kvcake::bench
