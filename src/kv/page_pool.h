// Pages: fixed slots of memory, one chunk each, and the page cache that finds them by key.
//
// The life of a page:
//   free -> drawn (private: its one handle's owner may write) -> published under its key
//   (immutable, shared by handles) -> unreferenced (no handle; keeps its key, adopted by Lookup
//   without a copy)
//   -> free again when it is the coldest and a page is needed.
// A page that is never published returns to the free list with its last handle.
//
// Thread-safe. The pool outlives its handles.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "kv/memory_populator.h"

namespace kvcake {

using PageId = uint32_t;
constexpr PageId kNoPage = UINT32_MAX;

class PagePool;

// One reference to one page. Move-only: a second reference is made on purpose, by Share().
class PageHandle {
 public:
  PageHandle() = default;
  PageHandle(PageHandle&& other) noexcept : pool_(other.pool_), id_(other.id_) {
    other.pool_ = nullptr;
    other.id_ = kNoPage;
  }
  PageHandle& operator=(PageHandle&& other) noexcept;
  ~PageHandle() { Reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  PageId id() const { return id_; }
  PageHandle Share() const;
  void Reset();

 private:
  friend class PagePool;
  PageHandle(PagePool* pool, PageId id) : pool_(pool), id_(id) {}

  PagePool* pool_ = nullptr;
  PageId id_ = kNoPage;
};

// What a page is worth to a holder that can do without it: less comes first.
struct PageWorth {
  int kind = 0;
  int position = 0;
  uint64_t number = 0;  // unique

  auto operator<=>(const PageWorth&) const = default;
};

struct PagePoolStats {
  uint64_t pages = 0;       // fixed at start
  uint64_t referenced = 0;  // held by at least one handle
  uint64_t cached = 0;      // unreferenced, findable by key
  uint64_t evicted = 0;     // pages that lost their key to a Draw
};

// Where pages lie. Outside the rooms ops and io nobody looks into them: it need not be the host's.
struct PageMemory {
  uint64_t segment_bytes_max = 0;
  // Aligned to 4 KiB.
  std::function<Result<std::byte*>(uint64_t bytes)> allocate;
  std::function<void(std::byte* segment, uint64_t bytes)> free;
  MemoryPopulator::Populate populate = nullptr;  // null: it is committed when it is allocated
  uint64_t populate_ahead_bytes = 64 << 20;      // of the pages in use

  // Anonymous segments of at most 1 GiB, committed when touched or populated.
  static PageMemory Host();
};

class PagePool {
 public:
  // As many pages as fit into capacity_bytes, in segments that no page crosses. kResourceExhausted
  // names the numbers when not even one page fits, or so many that there is no memory to count
  // them; or what `memory` says.
  static Result<std::unique_ptr<PagePool>> Create(const KvLayout& layout, uint64_t capacity_bytes,
                                                  PageMemory memory = PageMemory::Host());
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvLayout& layout() const { return layout_; }
  uint64_t pages() const { return pages_; }

  // A private page with undefined contents; empty when every page is referenced. Takes a free
  // page, else the unreferenced page used longest ago, else one that the reclaimer gives back.
  std::optional<PageHandle> Draw();
  // Called by Draw while every page is referenced, on the drawing thread and without the pool's
  // lock: lets go of one page, or returns false. Null: nobody has any to give. Returns when no
  // call of the one before is under way.
  void SetReclaimer(std::function<bool()> reclaimer);
  // The published page of this key, if it is in memory.
  std::optional<PageHandle> Lookup(const ChunkKey& key);
  // Makes a private page findable and immutable; `path` is what made its contents. When the key is
  // published already, the handle returned is that page's (of the path that it was published with)
  // and the given page goes back to the pool.
  PageHandle Publish(PageHandle page, const ChunkKey& key, NumericPath path);
  // What made a published page that the caller has a handle of.
  NumericPath path(PageId page) const;
  // The holder of a handle, whose page it is to give by the reclaimer, can do without it; nullopt:
  // cannot any more, as is so at first and before the handle goes.
  void SetSpare(PageId page, std::optional<PageWorth> worth);
  // What is worth least of the spare pages that have no other handle.
  std::optional<PageWorth> LeastSpare() const;
  // Whether it is in memory; no use of it.
  bool Contains(const ChunkKey& key) const EXCLUDES(mutex_);
  // Forgets every unreferenced page's key, or these. Referenced pages stay.
  void DropCached() EXCLUDES(mutex_);
  void DropCached(std::span<const ChunkKey> keys) EXCLUDES(mutex_);

  PagePoolStats Stats() const;

  // ---- for the rooms ops and io (and store, which hands landings to io) only ----
  std::byte* Data(PageId page) const {
    return segments_[page / pages_per_segment_].data() +
           (page % pages_per_segment_) * layout_.page_bytes();
  }
  // True if page i lies at Data(0) + i * page_bytes, as pages of a device do.
  bool contiguous() const { return segments_.size() == 1; }
  // K, then V, of one layer of a page: [2][kv_head][token][head_dim] of bf16.
  uint16_t* Slab(PageId page, int layer) const {
    return reinterpret_cast<uint16_t*>(Data(page) + layout_.slab_offset(layer));
  }
  // Where the bytes of a stored chunk must land to become this page. Raw chunks land in the page
  // itself, header and all.
  std::span<std::byte> LandingFor(PageId page, Codec codec) const;

 private:
  friend class PageHandle;
  struct PageState {
    uint32_t references = 0;
    bool published = false;
    NumericPath path = NumericPath::kUnknown;  // valid while published
    ChunkKey key;
    std::list<PageId>::iterator lru;  // its node, in lru_ or idle_
    std::optional<PageWorth> spare;
    std::set<PageWorth>::node_type spare_node;  // while spare and not in spare_
  };

  PagePool(const KvLayout& layout, PageMemory memory, uint64_t pages_per_segment, uint64_t pages);
  Status AllocateSegments();
  Status CheckCountable(uint64_t capacity_bytes) const;
  void FreeAllPages() EXCLUDES(mutex_);  // once there is memory for them
  void Reference(PageId page) EXCLUDES(mutex_);
  void Release(PageId page) EXCLUDES(mutex_);
  PageHandle AdoptLocked(PageId page) REQUIRES(mutex_);
  void AddReferenceLocked(PageState& state) REQUIRES(mutex_);
  std::optional<PageHandle> DrawUnreferenced() EXCLUDES(mutex_);

  // Constant after Create.
  const KvLayout layout_;
  const PageMemory memory_;
  const uint64_t pages_per_segment_, pages_;
  std::vector<std::span<std::byte>> segments_;

  mutable Mutex mutex_;
  std::vector<PageState> states_ GUARDED_BY(mutex_);
  std::vector<PageId> free_ GUARDED_BY(mutex_);
  // Each page has a node in one of these, so that letting go of one, which destructors do, wants no
  // memory.
  std::list<PageId> lru_ GUARDED_BY(mutex_);   // published and unreferenced, coldest first
  std::list<PageId> idle_ GUARDED_BY(mutex_);  // all others
  std::unordered_map<ChunkKey, PageId> by_key_ GUARDED_BY(mutex_);
  std::set<PageWorth> spare_ GUARDED_BY(mutex_);  // of pages with one handle
  uint64_t referenced_ GUARDED_BY(mutex_) = 0;
  uint64_t evicted_ GUARDED_BY(mutex_) = 0;
  PageId fresh_ GUARDED_BY(mutex_) = 0;  // the first that nobody has drawn, nor any after it

  Mutex reclaim_mutex_;  // before mutex_
  std::function<bool()> reclaimer_ GUARDED_BY(reclaim_mutex_);

  std::unique_ptr<MemoryPopulator> populator_;  // null where there is none
};

// The pages of one sequence's chunks in order; the last may be partly filled.
using PageTable = std::vector<PageHandle>;
std::vector<PageId> IdsOf(std::span<const PageHandle> pages);

}  // namespace kvcake
