#include "kv/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/available_memory.h"
#include "base/check.h"

namespace kvcake {

constexpr uint64_t kSegmentBytesMax = 1ull << 30;

const char* NumericPathName(NumericPath path) {
  switch (path) {
    case NumericPath::kUnknown:
      return "unknown";
    case NumericPath::kBf16Dot:
      return "bf16-dot";
    case NumericPath::kF32Fma:
      return "f32-fma";
    case NumericPath::kF32:
      return "f32";
    case NumericPath::kBf16Tensor:
      return "bf16-tensor";
    case NumericPath::kBf16Amx:
      return "bf16-amx";
  }
  return "unknown";
}

PageHandle& PageHandle::operator=(PageHandle&& other) noexcept {
  if (this != &other) {
    Reset();
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
  }
  return *this;
}

PageHandle PageHandle::Share() const {
  CHECK(pool_ != nullptr);
  pool_->Reference(id_);
  return PageHandle(pool_, id_);
}

void PageHandle::Reset() {
  if (pool_ != nullptr) pool_->Release(id_);
  pool_ = nullptr;
  id_ = kNoPage;
}

PageMemory PageMemory::Host() {
  return {.segment_bytes_max = kSegmentBytesMax,
          .allocate = [](uint64_t bytes) -> Result<std::byte*> {
            // Memory is committed when touched; huge pages keep TLB misses out of attention.
            void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) {
              return Fail(ErrorCode::kResourceExhausted,
                          "cannot map {} bytes of KV pages: {}; lower --ram-capacity", bytes,
                          std::strerror(errno));
            }
            madvise(memory, bytes, MADV_HUGEPAGE);
            return static_cast<std::byte*>(memory);
          },
          .free = [](std::byte* segment, uint64_t bytes) { munmap(segment, bytes); },
          .populate =
              [](std::span<std::byte> memory) {
                return madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0;
              }};
}

Result<std::unique_ptr<PagePool>> PagePool::Create(const KvLayout& layout, uint64_t capacity_bytes,
                                                   PageMemory memory) {
  const uint64_t page_bytes = layout.page_bytes();
  CHECK(layout.layers > 0 && page_bytes > kPageHeaderBytes);
  const uint64_t pages = std::min<uint64_t>(capacity_bytes / page_bytes, kNoPage - 1);
  if (pages == 0) {
    return Fail(ErrorCode::kResourceExhausted,
                "--ram-capacity of {} bytes holds no page: one chunk of {} tokens takes {} bytes",
                capacity_bytes, layout.chunk_tokens, page_bytes);
  }
  const uint64_t per_segment =
      std::clamp<uint64_t>(memory.segment_bytes_max / page_bytes, 1, pages);
  std::unique_ptr<PagePool> pool(new PagePool(layout, std::move(memory), per_segment, pages));
  RETURN_IF_ERROR(pool->AllocateSegments());
  RETURN_IF_ERROR(pool->CheckCountable(capacity_bytes));
  pool->FreeAllPages();
  return pool;
}

PagePool::PagePool(const KvLayout& layout, PageMemory memory, uint64_t pages_per_segment,
                   uint64_t pages)
    : layout_(layout),
      memory_(std::move(memory)),
      pages_per_segment_(pages_per_segment),
      pages_(pages) {}

Status PagePool::AllocateSegments() {
  for (uint64_t made = 0; made < pages(); made += pages_per_segment_) {
    const uint64_t bytes = std::min(pages_per_segment_, pages() - made) * layout_.page_bytes();
    ASSIGN_OR_RETURN(std::byte* const segment, memory_.allocate(bytes));
    segments_.emplace_back(segment, bytes);
  }
  if (memory_.populate) {
    populator_ = std::make_unique<MemoryPopulator>(segments_, memory_.populate_ahead_bytes,
                                                   memory_.populate);
  }
  return {};
}

// Memory for pages is taken when they are used, that to count them now.
Status PagePool::CheckCountable(uint64_t capacity_bytes) const {
  constexpr uint64_t kListNodeBytes = 32;
  const uint64_t bytes = pages_ * (sizeof(PageState) + sizeof(PageId) + kListNodeBytes);
  const uint64_t available = AvailableMemoryBytes();
  if (bytes <= available) return {};
  return Fail(ErrorCode::kResourceExhausted,
              "--ram-capacity of {} bytes is {} pages, to count which takes {} bytes, and this "
              "process may take {} more; lower --ram-capacity",
              capacity_bytes, pages_, bytes, available);
}

void PagePool::FreeAllPages() {
  const MutexLock lock(mutex_);
  states_.resize(pages_);
  free_.reserve(pages_);
  for (uint64_t page = pages_; page-- > 0;) {
    free_.push_back(static_cast<PageId>(page));
    states_[page].lru = idle_.insert(idle_.end(), static_cast<PageId>(page));
  }
}

PagePool::~PagePool() {
  CHECK(referenced_ == 0);
  populator_.reset();
  for (auto& segment : segments_) memory_.free(segment.data(), segment.size());
}

std::optional<PageHandle> PagePool::Draw() {
  if (auto page = DrawUnreferenced()) return page;
  MutexLock lock(reclaim_mutex_);
  // What others let go of, or were given, in the meantime counts.
  while (true) {
    if (auto page = DrawUnreferenced()) return page;
    if (!reclaimer_ || !reclaimer_()) return std::nullopt;
  }
}

void PagePool::SetReclaimer(std::function<bool()> reclaimer) {
  MutexLock lock(reclaim_mutex_);
  reclaimer_ = std::move(reclaimer);
}

std::optional<PageHandle> PagePool::DrawUnreferenced() {
  MutexLock lock(mutex_);
  PageId page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (!lru_.empty()) {
    page = lru_.front();
    idle_.splice(idle_.end(), lru_, lru_.begin());
    by_key_.erase(states_[page].key);
    states_[page].published = false;
    ++evicted_;
  } else {
    return std::nullopt;
  }
  states_[page].references = 1;
  ++referenced_;
  const bool is_fresh = page >= fresh_;
  if (is_fresh) fresh_ = page + 1;
  lock.Unlock();
  if (is_fresh && populator_) populator_->Used((page + 1) * layout_.page_bytes());
  return PageHandle(this, page);
}

std::optional<PageHandle> PagePool::Lookup(const ChunkKey& key) {
  MutexLock lock(mutex_);
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return std::nullopt;
  return AdoptLocked(it->second);
}

PageHandle PagePool::Publish(PageHandle page, const ChunkKey& key, NumericPath path) {
  MutexLock lock(mutex_);
  PageState& state = states_[page.id()];
  CHECK(state.references == 1 && !state.published);
  auto [it, inserted] = by_key_.try_emplace(key, page.id());
  if (!inserted) {
    PageHandle published = AdoptLocked(it->second);
    lock.Unlock();  // `page` is released as it goes out of scope
    return published;
  }
  state.published = true;
  state.key = key;
  state.path = path;
  return page;
}

NumericPath PagePool::path(PageId page) const {
  MutexLock lock(mutex_);
  const PageState& state = states_[page];
  CHECK(state.references > 0 && state.published);
  return state.path;
}

void PagePool::SetSpare(PageId page, std::optional<PageWorth> worth) {
  MutexLock lock(mutex_);
  PageState& state = states_[page];
  CHECK(state.references > 0);
  if (worth) {
    std::set<PageWorth> made = {*worth};  // its node, before anything changes
    if (state.spare) spare_.erase(*state.spare);
    state.spare_node = made.extract(made.begin());
  } else {
    if (state.spare) spare_.erase(*state.spare);
    state.spare_node = {};
  }
  state.spare = worth;
  if (worth && state.references == 1) spare_.insert(std::move(state.spare_node));
}

std::optional<PageWorth> PagePool::LeastSpare() const {
  MutexLock lock(mutex_);
  if (spare_.empty()) return std::nullopt;
  return *spare_.begin();
}

void PagePool::DropCached() {
  MutexLock lock(mutex_);
  for (PageId page : lru_) {
    by_key_.erase(states_[page].key);
    states_[page].published = false;
    free_.push_back(page);
  }
  idle_.splice(idle_.end(), lru_);
}

void PagePool::DropCached(std::span<const ChunkKey> keys) {
  MutexLock lock(mutex_);
  for (const ChunkKey& key : keys) {
    const auto it = by_key_.find(key);
    if (it == by_key_.end() || states_[it->second].references > 0) continue;
    PageState& state = states_[it->second];
    idle_.splice(idle_.end(), lru_, state.lru);
    state.published = false;
    free_.push_back(it->second);
    by_key_.erase(it);
  }
}

bool PagePool::Contains(const ChunkKey& key) const {
  MutexLock lock(mutex_);
  return by_key_.contains(key);
}

PagePoolStats PagePool::Stats() const {
  MutexLock lock(mutex_);
  return {.pages = states_.size(),
          .referenced = referenced_,
          .cached = lru_.size(),
          .evicted = evicted_};
}

std::span<std::byte> PagePool::LandingFor(PageId page, Codec codec) const {
  CHECK(codec == Codec::kRaw);
  return {Data(page), layout_.page_bytes()};
}

PageHandle PagePool::AdoptLocked(PageId page) {
  PageState& state = states_[page];
  if (state.references == 0) {
    idle_.splice(idle_.end(), lru_, state.lru);
    ++referenced_;
  }
  AddReferenceLocked(state);
  return PageHandle(this, page);
}

void PagePool::AddReferenceLocked(PageState& state) {
  if (++state.references == 2 && state.spare) state.spare_node = spare_.extract(*state.spare);
}

void PagePool::Reference(PageId page) {
  MutexLock lock(mutex_);
  AddReferenceLocked(states_[page]);
}

void PagePool::Release(PageId page) {
  MutexLock lock(mutex_);
  PageState& state = states_[page];
  if (--state.references == 1 && state.spare) spare_.insert(std::move(state.spare_node));
  if (state.references > 0) return;
  CHECK(!state.spare);
  --referenced_;
  if (state.published) {
    lru_.splice(lru_.end(), idle_, state.lru);
  } else {
    free_.push_back(page);
  }
}

std::vector<PageId> IdsOf(std::span<const PageHandle> pages) {
  std::vector<PageId> ids;
  ids.reserve(pages.size());
  for (const PageHandle& page : pages) ids.push_back(page.id());
  return ids;
}

}  // namespace kvcake
