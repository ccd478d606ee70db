// Pictures of chains: the time to the first token by length and method beside the partitions, and
// what every rank does when.
#pragma once

#include <string>
#include <vector>

#include "bench/runahead_cell.h"
#include "runahead/kv_gate.h"

namespace kvcake::bench {

class RunaheadPicture {
 public:
  void Add(const CellNames& names, const std::vector<MethodResult>& results) {
    cells_.push_back({names, results});
  }
  // Both axes logarithmic; a bar per length with the shares of `kvr`. At least one cell, all of
  // one model.
  std::string Draw() const;

 private:
  struct Cell {
    CellNames names;
    std::vector<MethodResult> results;
  };
  std::vector<Cell> cells_;
};

// The ranks of one prompt, layer by layer.
struct RankTimeline {
  int begin = 0, end = 0;  // its tokens
  std::vector<LayerExchange> layers = {};
  TimePoint done{};
};
// `began` is when the prompt did. At least one rank.
std::string DrawTimeline(const std::string& title, TimePoint began,
                         const std::vector<RankTimeline>& ranks);

}  // namespace kvcake::bench
