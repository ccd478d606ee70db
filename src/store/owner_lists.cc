#include "store/owner_lists.h"

namespace kvcake {

void OwnerLists::Set(Slot slot, OwnerId owner, uint64_t bytes) {
  if (quota_bytes_ == 0) return;
  const OwnerId before = OwnerOf(slot);
  if (owner == kNobody) owner = before;
  if (owner == kNobody) return;
  if (slot >= nodes_.size()) nodes_.resize(slot + 1);
  if (owner != before) {
    Remove(slot);
    nodes_[slot].owner = owner;
    Link(slot, lists_[owner]);
  }
  Node& node = nodes_[slot];
  Count(owner, lists_[owner], bytes - node.bytes);
  node.bytes = bytes;
}

void OwnerLists::Use(Slot slot) {
  const OwnerId owner = OwnerOf(slot);
  if (owner == kNobody) return;
  List& list = lists_[owner];
  Unlink(slot, list);
  Link(slot, list);
}

void OwnerLists::Remove(Slot slot) {
  const OwnerId owner = OwnerOf(slot);
  if (owner == kNobody) return;
  const auto list = lists_.find(owner);
  Unlink(slot, list->second);
  Count(owner, list->second, -nodes_[slot].bytes);
  if (list->second.coldest == kNone) lists_.erase(list);
  nodes_[slot] = {};
}

OwnerId OwnerLists::OwnerOf(Slot slot) const {
  return slot < nodes_.size() ? nodes_[slot].owner : kNobody;
}

OwnerLists::Slot OwnerLists::Coldest(OwnerId owner) const {
  const auto list = lists_.find(owner);
  return list == lists_.end() ? kNone : list->second.coldest;
}

bool OwnerLists::IsOver(OwnerId owner, uint64_t more) const {
  if (quota_bytes_ == 0 || owner == kNobody) return false;
  const auto list = lists_.find(owner);
  return (list == lists_.end() ? 0 : list->second.bytes) + more > quota_bytes_;
}

std::vector<OwnedBytes> OwnerLists::Totals() const {
  std::vector<OwnedBytes> totals;
  totals.reserve(lists_.size());
  for (const auto& [owner, list] : lists_) totals.push_back({owner, list.bytes});
  return totals;
}

void OwnerLists::Link(Slot slot, List& list) {
  nodes_[slot].colder = list.warmest;
  nodes_[slot].warmer = kNone;
  (list.warmest == kNone ? list.coldest : nodes_[list.warmest].warmer) = slot;
  list.warmest = slot;
}

void OwnerLists::Unlink(Slot slot, List& list) {
  const Node& node = nodes_[slot];
  (node.colder == kNone ? list.coldest : nodes_[node.colder].warmer) = node.warmer;
  (node.warmer == kNone ? list.warmest : nodes_[node.warmer].colder) = node.colder;
}

void OwnerLists::Count(OwnerId owner, List& list, uint64_t more) {
  list.bytes += more;
  if (list.bytes > quota_bytes_) {
    over_.insert(owner);
  } else {
    over_.erase(owner);
  }
}

}  // namespace kvcake
