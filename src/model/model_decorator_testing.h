// For tests: a model that does more around another one's forward passes.
#pragma once

#include "model/model.h"

namespace kvcake {

class ModelDecorator : public Model {
 public:
  explicit ModelDecorator(Model& inner) : inner_(inner) {}
  const KvLayout& layout() const override { return inner_.layout(); }
  const KvIdentity& identity() const override { return inner_.identity(); }
  NumericPath numeric_path() const override { return inner_.numeric_path(); }
  int vocab_size() const override { return inner_.vocab_size(); }
  int max_positions() const override { return inner_.max_positions(); }
  int max_batch_tokens() const override { return inner_.max_batch_tokens(); }
  bool samples() const override { return inner_.samples(); }
  std::span<const int32_t> sampled() const override { return inner_.sampled(); }

 protected:
  Model& inner_;
};

}  // namespace kvcake
