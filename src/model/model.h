// A model that runs forward passes over pages. The engine sees no more of it than this.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "kv/layer_gate.h"
#include "kv/page_pool.h"
#include "ops/sample.h"

namespace kvcake {

// The tokens that one step computes for one sequence, of which it has no other slice: but for
// those of one gate, which are of one prompt, the earlier first.
struct Slice {
  enum class Logits { kNone, kLast, kAll };

  std::span<const int32_t> tokens;  // at positions [start, start + tokens.size())
  int start = 0;
  std::span<const PageId> pages;  // page of chunk i at [i]; covers [0, start + tokens.size())
  bool write_kv = true;           // false: the pages hold these tokens' KV already
  Logits logits = Logits::kNone;
  // With kLast, of a model that samples: the token that follows is chosen by this, and the logits
  // are not returned.
  std::optional<RowSampling> sampling = {};
  LayerGate* gate = nullptr;  // slices of one gate are alone in their step
  // Not 0: attention also computes what it then masks, up to this position, as the KV-Runahead
  // paper's did. The pages cover it; results are the same.
  int dense_keys = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const KvLayout& layout() const = 0;
  // What the KV cache depends on: architecture, weights digest, RoPE, layout, chunk size.
  virtual const KvIdentity& identity() const = 0;
  virtual NumericPath numeric_path() const = 0;
  virtual int vocab_size() const = 0;
  virtual int max_positions() const = 0;
  // The most tokens that the slices of one step may hold together.
  virtual int max_batch_tokens() const = 0;

  // Runs one batch. Returns the logits that the slices asked for, in their order, f32
  // [rows][vocab_size]; valid until the next call. Calls come from one thread. Fails only with what
  // a gate returned. The result of a row never depends on the rows around it, on the slicing, or on
  // the number of threads.
  [[nodiscard]] virtual Result<std::span<const float>> Forward(std::span<const Slice> batch) = 0;

  // Whether slices may have `sampling`.
  virtual bool samples() const { return false; }
  // The tokens of the last Forward's slices that had it, in their order; valid until the next call.
  virtual std::span<const int32_t> sampled() const { return {}; }
};

}  // namespace kvcake
