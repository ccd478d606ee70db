#include "runahead/partition_search.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/dump_json.h"
#include "base/json_field.h"
#include "base/json_file.h"
#include "io/file_system.h"
#include "model/config_limits.h"

namespace kvcake {
namespace {

constexpr double kSecondsMax = 1e6;

Result<Partition> ParseBounds(const JsonField& field, int tokens) {
  const nlohmann::json& json = field.value();
  if (!json.is_array() || json.size() < 2) return field.Bad("is not a list of bounds");
  Partition partition;
  for (const auto& bound : json) {
    if (!bound.is_number_integer()) return field.Bad("has a bound that is not a whole number");
    const int64_t value = bound.get<int64_t>();
    if (value < 0 || value > tokens) return field.Bad("has a bound beyond the prompt");
    partition.bounds.push_back(static_cast<int>(value));
  }
  if (const Status ok = CheckPartition(partition, tokens, partition.ranks()); !ok) {
    return field.Bad("is wrong: " + ok.error().message);
  }
  return partition;
}

class Search {
 public:
  Search(const SearchOptions& options, const MeasurePartition& measure, SearchState state)
      : options_(options), measure_(measure), state_(std::move(state)) {
    for (const MeasuredPartition& m : state_.measured) known_[m.partition.bounds] = m.seconds;
    resumed_ = static_cast<int>(state_.measured.size());
  }

  Result<SearchResult> Run() {
    RETURN_IF_ERROR(Try(state_.seed));
    const int ranks = state_.seed.ranks();
    // Five values reach half of an even part to either side.
    int stride = state_.stride_min_tokens;
    const int first = state_.tokens / (4 * ranks) / (state_.seeded ? 4 : 1);
    while (ranks > 1 && stride * 2 <= first) stride *= 2;
    for (int reach = 2; ranks > 1 && stride >= state_.stride_min_tokens; stride /= 2, reach = 1) {
      stride_ = stride;
      RETURN_IF_ERROR(Level(stride, reach));
    }
    return SearchResult{.best = best_,
                        .measurements = static_cast<int>(state_.measured.size()),
                        .resumed = resumed_};
  }

 private:
  Status Level(int stride, int reach) {
    constexpr int kSweepsMax = 3;
    const int last = state_.seed.ranks() - 1;
    for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
      const Partition before = best_.partition;
      for (int peak = 1; peak <= last; ++peak) {
        RETURN_IF_ERROR(Grid(Tent(peak, stride), reach));
        if (last > 1) RETURN_IF_ERROR(Grid(Single(peak, stride), reach));
      }
      if (best_.partition == before) break;
    }
    return {};
  }

  // The offsets of bounds 0 to p that move one bound only: a token from one rank to its neighbour.
  std::vector<int> Single(int bound, int stride) const {
    std::vector<int> offsets(state_.seed.bounds.size(), 0);
    offsets[bound] = stride;
    return offsets;
  }

  // Those that take the same from each rank after the bound and give the same to each before it.
  std::vector<int> Tent(int peak, int stride) const {
    const int ranks = state_.seed.ranks(), step = state_.stride_min_tokens;
    std::vector<int> offsets;
    for (int i = 0; i <= ranks; ++i) {
      const double height =
          i <= peak ? 1.0 * i / peak : static_cast<double>(ranks - i) / (ranks - peak);
      offsets.push_back(static_cast<int>(std::lround(height * stride / step)) * step);
    }
    return offsets;
  }

  // The best so far, and it with multiples of the offsets.
  Status Grid(const std::vector<int>& offsets, int reach) {
    const Partition center = best_.partition;
    for (int k = -reach; k <= reach; ++k) {
      Partition next = center;
      for (size_t i = 0; i < offsets.size(); ++i) next.bounds[i] += k * offsets[i];
      if (CheckPartition(next, state_.tokens, next.ranks())) RETURN_IF_ERROR(Try(next));
    }
    return {};
  }

  Status Try(const Partition& partition) {
    const auto known = known_.find(partition.bounds);
    if (known != known_.end()) {
      Keep({partition, known->second});
      return {};
    }
    ASSIGN_OR_RETURN(const double seconds, measure_(partition));
    if (!(seconds > 0) || seconds > kSecondsMax) {
      return Fail(ErrorCode::kInvalidArgument, "the partition {} was measured to take {} s",
                  FormatPartition(partition), seconds);
    }
    known_[partition.bounds] = seconds;
    state_.measured.push_back({partition, seconds});
    Keep(state_.measured.back());
    if (!options_.state_path.empty()) {
      RETURN_IF_ERROR(
          WriteText(FileSystem::Real(), options_.state_path, DumpJson(state_.ToJson(), 1) + "\n"));
    }
    if (options_.progress) {
      options_.progress({.stride_tokens = stride_,
                         .measurements = static_cast<int>(state_.measured.size()),
                         .last = state_.measured.back(),
                         .best = best_});
    }
    return {};
  }

  void Keep(const MeasuredPartition& measured) {
    if (best_.partition.bounds.empty() || measured.seconds < best_.seconds) best_ = measured;
  }

  const SearchOptions& options_;
  const MeasurePartition& measure_;
  SearchState state_;
  std::map<std::vector<int>, double> known_;
  MeasuredPartition best_;
  int resumed_ = 0;
  int stride_ = 0;
};

SearchState StateFor(const SearchOptions& options) {
  const Partition even = EvenPartition(options.tokens, options.ranks);
  return {.what = options.what,
          .tokens = options.tokens,
          .stride_min_tokens = options.stride_min_tokens,
          .seed = OnMultiples(options.seed.value_or(even), options.stride_min_tokens),
          .seeded = options.seed.has_value()};
}

Status CheckSame(const SearchState& kept, const SearchOptions& options) {
  const auto other = [&](const char* field, const auto& has, const auto& wanted) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: {} is {}, this search's is {}; delete the file or name another",
                options.state_path, field, has, wanted);
  };
  if (kept.what != options.what) return other("what", kept.what, options.what);
  if (kept.tokens != options.tokens) return other("tokens", kept.tokens, options.tokens);
  if (kept.seed.ranks() != options.ranks) {
    return other("the number of ranks", kept.seed.ranks(), options.ranks);
  }
  if (kept.stride_min_tokens != options.stride_min_tokens) {
    return other("stride_min_tokens", kept.stride_min_tokens, options.stride_min_tokens);
  }
  return {};
}

}  // namespace

nlohmann::json SearchState::ToJson() const {
  auto list = nlohmann::json::array();
  for (const MeasuredPartition& m : measured) {
    list.push_back({{"bounds", m.partition.bounds}, {"seconds", m.seconds}});
  }
  return {{"version", 1},
          {"what", what},
          {"tokens", tokens},
          {"stride_min_tokens", stride_min_tokens},
          {"seed", seed.bounds},
          {"seeded", seeded},
          {"measured", std::move(list)}};
}

Result<SearchState> SearchState::FromJson(const nlohmann::json& json, const std::string& source) {
  const JsonField fields(json, source);
  if (!json.is_object()) return fields.Bad("a search's state is a JSON object");
  RETURN_IF_ERROR(fields["version"].Int(1, 1));
  SearchState state;
  ASSIGN_OR_RETURN(state.what, fields["what"].Text());
  ASSIGN_OR_RETURN(state.tokens, fields["tokens"].Int(1, kMaxPositions));
  ASSIGN_OR_RETURN(state.stride_min_tokens, fields["stride_min_tokens"].Int(1, state.tokens));
  ASSIGN_OR_RETURN(state.seed, ParseBounds(fields["seed"], state.tokens));
  ASSIGN_OR_RETURN(state.seeded, fields["seeded"].Flag(false));
  const JsonField list = fields["measured"];
  if (!list.value().is_array()) return list.Bad("is not a list");
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonField entry = list[i];
    if (!entry.value().is_object()) return entry.Bad("is not an object");
    MeasuredPartition m;
    ASSIGN_OR_RETURN(m.partition, ParseBounds(entry["bounds"], state.tokens));
    if (m.partition.ranks() != state.seed.ranks()) {
      return entry["bounds"].Bad("has another number of ranks than seed");
    }
    ASSIGN_OR_RETURN(m.seconds, entry.AsRoot()["seconds"].Number(1e-9, kSecondsMax));
    state.measured.push_back(std::move(m));
  }
  return state;
}

Result<SearchResult> SearchPartition(const SearchOptions& options,
                                     const MeasurePartition& measure) {
  if (options.ranks < 1 || options.tokens < options.ranks || options.stride_min_tokens < 1 ||
      !HasMultiples(options.tokens, options.ranks, options.stride_min_tokens)) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} tokens are too few for {} ranks in strides of {}: use fewer ranks",
                options.tokens, options.ranks, options.stride_min_tokens);
  }
  if (options.seed) {
    RETURN_IF_ERROR(CheckPartition(*options.seed, options.tokens, options.ranks));
  }
  SearchState state = StateFor(options);
  if (!options.state_path.empty()) {
    const auto json = ReadJsonFile(options.state_path);
    if (!json && json.error().code != ErrorCode::kNotFound) {
      return tl::unexpected<Error>(json.error());
    }
    if (json) {
      ASSIGN_OR_RETURN(state, SearchState::FromJson(*json, options.state_path));
      RETURN_IF_ERROR(CheckSame(state, options));
    }
  }
  return Search(options, measure, std::move(state)).Run();
}

}  // namespace kvcake
