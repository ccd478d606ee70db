// Whose the slots of a cache are: the bytes that each owner has against its quota, and its slots in
// the order of last use.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <unordered_map>
#include <vector>

#include "store/owner.h"

namespace kvcake {

// Slots are numbers that the cache gives out, small ones first. Takes 24 bytes for each number up
// to the largest with an owner; an owner without slots is forgotten. Not thread-safe.
class OwnerLists {
 public:
  using Slot = uint32_t;
  static constexpr Slot kNone = UINT32_MAX;

  // The most bytes of one owner; 0: there is no quota, and nothing is remembered.
  explicit OwnerLists(uint64_t quota_bytes) : quota_bytes_(quota_bytes) {}

  // The slot holds so many bytes, the owner's; of kNobody: of whoever had it. What an owner is
  // given is its warmest.
  void Set(Slot slot, OwnerId owner, uint64_t bytes);
  // Makes it its owner's warmest, if it has one.
  void Use(Slot slot);
  void Remove(Slot slot);

  OwnerId OwnerOf(Slot slot) const;
  // The owner's slot that was used longest ago, and the one used next after a slot; kNone: no more.
  Slot Coldest(OwnerId owner) const;
  Slot Warmer(Slot slot) const { return nodes_[slot].warmer; }

  // Whether the owner is over its quota, or would be with so many bytes more.
  bool IsOver(OwnerId owner, uint64_t more = 0) const;
  // Who is over it now.
  std::vector<OwnerId> Over() const { return {over_.begin(), over_.end()}; }
  // By owner, in no order.
  std::vector<OwnedBytes> Totals() const;

 private:
  struct Node {
    OwnerId owner = kNobody;
    uint64_t bytes = 0;
    Slot colder = kNone, warmer = kNone;
  };
  struct List {
    uint64_t bytes = 0;
    Slot coldest = kNone, warmest = kNone;
  };

  void Link(Slot slot, List& list);
  void Unlink(Slot slot, List& list);
  // The owner's bytes have changed by this; modulo 2^64.
  void Count(OwnerId owner, List& list, uint64_t more);

  const uint64_t quota_bytes_;
  std::deque<Node> nodes_;  // by slot; never shrinks
  std::unordered_map<OwnerId, List> lists_;
  std::set<OwnerId> over_;
};

}  // namespace kvcake
