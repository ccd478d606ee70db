// Codecs as flags name them, with the tables that go with them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "model/config.h"

namespace kvcake::bench {

struct NamedCodec {
  const CodecRow* row = nullptr;
  std::optional<CodecTables> tables;

  // "cachegen", and of other quality levels than the first "cachegen-2".
  std::string name() const;
  CodecSpec Spec(const KvLayout& layout, uint32_t model = 0) const;  // CodecSpec::model
};

// In the order of `names`; a codec with tables once for each of the files that are its.
// kInvalidArgument for a codec that is not there or changes nothing, for one whose tables are in
// none of the files, and for a file that no codec wants.
Result<std::vector<NamedCodec>> CodecsNamed(std::span<const std::string> names,
                                            std::span<const std::string> table_files);

// A model's KvSample::inverse_frequencies.
std::vector<float> InverseFrequencies(const ModelConfig& config);

}  // namespace kvcake::bench
