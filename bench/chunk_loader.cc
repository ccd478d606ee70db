#include "bench/chunk_loader.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/mutex.h"

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
    MutexLock lock(mutex_);
    while (done_ < keys_.size() && !(failed_ && in_flight_ == 0)) finished_.Wait(mutex_);
    return failed_ ? Status(tl::unexpected(*failed_)) : Status();
  }

 private:
  void Next() EXCLUDES(mutex_) {
    size_t i;
    {
      MutexLock lock(mutex_);
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

  void Done(const Status& status) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++done_;
    --in_flight_;
    if (!status && !failed_) failed_ = status.error();
    finished_.NotifyAll();
  }

  Tier& tier_;
  PagePool& pool_;
  const ChunkKey root_;
  const std::vector<ChunkKey>& keys_;

  Mutex mutex_;
  CondVar finished_;
  size_t next_ GUARDED_BY(mutex_) = 0;
  size_t done_ GUARDED_BY(mutex_) = 0;
  size_t in_flight_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> failed_ GUARDED_BY(mutex_);
};

}  // namespace

Status LoadChunks(Tier& tier, PagePool& pool, const ChunkKey& root,
                  const std::vector<ChunkKey>& keys) {
  return Loader(tier, pool, root, keys).Run();
}

}  // namespace kvcake::bench
