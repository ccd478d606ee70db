#include "model/tensor_scan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/cpu.h"

namespace kvcake {

namespace {

// Small enough that what has been hashed is still in the cache when it is looked through.
constexpr size_t kBlockBytes = 128 << 10;
// So far is read ahead, in pieces of half that: enough requests to keep a disk busy.
constexpr size_t kAheadBytes = 32 << 20;
static_assert(kAheadBytes / 2 % kBlockBytes == 0);

// Bytes [at, at + count), as far as there are so many.
std::span<const std::byte> Part(std::span<const std::byte> bytes, size_t at, size_t count) {
  at = std::min(at, bytes.size());
  return bytes.subspan(at, std::min(count, bytes.size() - at));
}

// Whether every value is finite as a bf16: none without its sign is as large as `too_large`.
template <typename Word>
bool AllBelow(std::span<const std::byte> bytes, Word too_large) {
  constexpr Word kMagnitude = std::numeric_limits<std::make_signed_t<Word>>::max();
  Word found = 0;  // lanes of the values' own width: the compiler makes vectors of them
  for (size_t at = 0; at < bytes.size(); at += sizeof(Word)) {
    Word word;  // a file may place its tensors at any byte
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    found |= static_cast<Word>((word & kMagnitude) >= too_large);
  }
  return found == 0;
}

bool AllFinite(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kBf16:
      return AllBelow<uint16_t>(bytes, 0x7f80);
    case DType::kF16:
      return AllBelow<uint16_t>(bytes, 0x7c00);
    case DType::kF32:
      return AllBelow<uint32_t>(bytes, 0x7f7f8000);  // from there on it is rounded to infinity
  }
  return false;
}

}  // namespace

TensorScan::TensorScan(const TensorFiles& files) {
  for (const auto& [name, view] : files.tensors()) rows_.push_back({.name = &name, .view = &view});
  for (Row& row : rows_) in_file_.push_back(&row);
  std::ranges::sort(in_file_, std::less<>(),
                    [](const Row* row) { return row->view->bytes.data(); });
  const int threads = std::max(1, UsableCores() / 2);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

TensorScan::~TensorScan() {
  stop_ = true;
  Join();
}

void TensorScan::Work() {
  for (size_t i; (i = next_.fetch_add(1)) < in_file_.size();) {
    if (!Read(in_file_[i])) return;
  }
}

// False when it was stopped.
bool TensorScan::Read(Row* row) const {
  Xxh3_128Stream hash;
  const std::span<const std::byte> bytes = row->view->bytes;
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    if (stop_.load(std::memory_order_relaxed)) return false;
    if (at == 0) TensorFiles::ReadAhead(Part(bytes, 0, kAheadBytes / 2));
    if (at % (kAheadBytes / 2) == 0) {
      // Nothing here is read twice, and whoever packs it may be far behind.
      if (at > 0) TensorFiles::Release(Part(bytes, at - kAheadBytes / 2, kAheadBytes / 2));
      TensorFiles::ReadAhead(Part(bytes, at + kAheadBytes / 2, kAheadBytes / 2));
    }
    const auto block = Part(bytes, at, kBlockBytes);
    hash.Update(block);
    row->finite &= AllFinite(row->view->dtype, block);
  }
  TensorFiles::Release(bytes);
  row->hash = hash.Finish();
  return true;
}

Digest TensorScan::WeightsDigest() {
  Join();
  Sha256 sha;
  for (const Row& row : rows_) {
    sha.Update(fmt::format("{}\t{}\t{}\t{}\n", *row.name, DTypeName(row.view->dtype),
                           fmt::join(row.view->shape, ","), ToHex(row.hash)));
  }
  return sha.Finish();
}

bool TensorScan::Finite(std::string_view name) {
  Join();
  const auto row = std::ranges::lower_bound(
      rows_, name, std::less<>(), [](const Row& r) -> std::string_view { return *r.name; });
  CHECK(row != rows_.end() && *row->name == name);
  return row->finite;
}

}  // namespace kvcake
