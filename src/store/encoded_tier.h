// A decorator for tiers that keep chunks as a codec writes them: pages are encoded on their way in
// and decoded on their way out, in staging slots of which there is a fixed number.
//
//   Get   waits for a slot -> inner tier (read, verified) -> decoder -> done, and the slot is free
//   Put   waits for a slot -> encoded on its caller's thread -> inner tier -> the slot is free
//
// What the inner tier keeps is a whole chunk file of this form (store/chunk_format.h), encrypted
// where the store has a key; it checks the bytes before they are decrypted and decoded. A read has
// its slot until it ends, one that is cancelled until the inner tier has let go of it. Writes have
// slots of their own, so that neither kind can starve the other.
#pragma once

#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/worker_threads.h"
#include "codec/codec.h"
#include "codec/store_key.h"
#include "store/call_times.h"
#include "store/chunk_form.h"
#include "store/tier_decorator.h"
#include "store/write_slots.h"

namespace kvcake {

struct EncodedTierOptions {
  KvLayout layout = {};
  ChunkKey root = {};  // of the chunks: FormRoot
  ChunkForm form = {};
  // What encrypts the files, where the form says that they are; `inner` then is a NamedTier by it.
  std::shared_ptr<const StoreKey> key = {};
  int decode_threads = 2;  // at most, that decode one chunk each
  int write_slots = 2;     // Puts at the same time; more of them wait
};

// A read that fails or is cancelled before it is decoded leaves its landing as it was. Reads beyond
// the slots wait in the order of Get. What its checksums call right and the codec does not know is
// removed from the inner tier, as it would be as bad the next time.
class EncodedTier : public TierDecorator {
 public:
  // `inner` keeps files of the form. Takes the memory of all slots: as many reads as `inner` takes
  // at once, as many that are being decoded, and the writes.
  EncodedTier(std::unique_ptr<Tier> inner, std::unique_ptr<LayerCodec> codec,
              EncodedTierOptions options);
  // Cancels the reads that are left, then waits for their `done`.
  ~EncodedTier() override;

  int max_reads_in_flight() const override { return read_slots_; }
  uint64_t max_read_bytes_in_flight() const override;
  int max_writes_in_flight() const override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  // kUnsupported for numbers that the codec cannot keep.
  Status Put(const ChunkWrite& chunk) override;
  // Bytes are those of files.
  TierStats Stats() const override;

  // The memory of all slots.
  uint64_t staging_bytes() const { return staging_bytes_; }

 private:
  using Slot = WriteSlots::Slot;
  struct Free {
    void operator()(std::byte* p) const { free(p); }
  };
  struct Read {
    ReadRequest request;
    Slot slot = {};  // empty: waits for one
    bool cancelled = false;
    ReadResult result = {};
  };

  void StartWaiting() EXCLUDES(mutex_);
  bool IsCancelled(ReadId id) EXCLUDES(mutex_);
  void OnInnerDone(ReadId id, ReadResult result) EXCLUDES(mutex_);
  // On a decoder.
  void End(ReadId id) EXCLUDES(mutex_);
  void DecodeOrRefuse(Read& read);
  Status Decode(Read& read) const;
  // The length of the file that is in the slot now.
  Result<uint64_t> Encode(const ChunkWrite& chunk, Slot slot) const;

  // Constant after construction.
  const EncodedTierOptions options_;
  const std::unique_ptr<LayerCodec> codec_;
  const int reads_forwarded_max_;  // by both limits of the inner tier
  const int read_slots_;
  const uint64_t slot_bytes_;
  const uint64_t staging_bytes_;
  const std::unique_ptr<std::byte[], Free> staging_;

  // Self-synchronised.
  CallTimes encodes_, decodes_;
  WriteSlots write_slots_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::unordered_map<ReadId, Read> reads_ GUARDED_BY(mutex_);
  std::deque<ReadId> waiting_ GUARDED_BY(mutex_);  // for a slot, in the order of Get
  std::vector<Slot> free_read_slots_ GUARDED_BY(mutex_);
  int reads_forwarded_ GUARDED_BY(mutex_) = 0;  // reads that are the inner tier's now
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  uint64_t unanswered_ GUARDED_BY(mutex_) = 0;  // reads
  uint64_t refused_ GUARDED_BY(mutex_) = 0;     // by the codec

  WorkerThreads decoders_;  // last: they end before the rest goes
};

}  // namespace kvcake
