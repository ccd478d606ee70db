// The papers' setting with kvcake's codecs.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/benches.h"
#include "model/emulated_profile.h"

namespace kvcake::bench {

// Prints what compute-only, load-only and Cake take on the papers' machine over 2, 5 and 10 Gbit/s
// where chunks are stored by each codec, as `kvcake bench codecs` measured them: their bits, and
// their decoding on the cores of the host, beside which the GPU computes. Simulated.
Status PrintCodecsSetting(const PapersOptions& options,
                          const std::map<std::string, EmulatedProfile>& profiles,
                          nlohmann::ordered_json* json);

}  // namespace kvcake::bench
