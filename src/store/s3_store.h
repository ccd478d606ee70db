// Chunks in S3, or in what speaks its protocol: MinIO, Ceph, and others.
//
// A chunk is one object, named PREFIX/v1/ROOT/KEY. Nothing makes room but the bucket's own rules.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "store/discards.h"
#include "store/remote_store.h"
#include "store/remote_tier.h"
#include "store/s3_client.h"

namespace kvcake {

// How many keys are looked for at the same time, and so many requests are under way.
inline constexpr int kS3Connections = 32;

// What the names of a root's objects begin with.
std::string S3Folder(const S3Place& place, const ChunkKey& root);

// What a reply that is not ok means for a chunk, or a list of them: with the place, and what to do
// about it. kNotFound: there is no such object; kInvalidArgument: asking again is no help.
Error S3ReplyError(const CurlReply& reply, const S3Place& place);

struct S3StoreOptions {
  S3ClientOptions client = {};
  ChunkKey root = {};
  // Objects that were written so long ago are misses, and are removed when they are come across;
  // 0: never.
  Seconds time_to_live{0};
};

// The client's thread is the store's. There are no claims.
class S3Store : public RemoteStore {
 public:
  // S3Client::Open's errors. Nobody is asked before something is wanted.
  static Result<std::unique_ptr<S3Store>> Open(S3StoreOptions options);

  void Post(std::function<void()> function) override { client_->http().Post(std::move(function)); }
  void Get(RemoteGet get) override;
  void Has(const ChunkKey& key, std::function<void(Result<bool>)> done) override;
  void Discard(const ChunkKey& key) override;
  void Close(std::function<void()> closed) override;
  bool is_closing() const override { return client_->http().is_closed(); }
  Result<PutOutcome> Put(const ChunkKey& key,
                         std::span<const std::span<const std::byte>> pieces) override;
  Result<bool> Remove(const ChunkKey& key) override;

 private:
  S3Store(S3StoreOptions options, std::unique_ptr<S3Client> client)
      : options_(std::move(options)),
        folder_(S3Folder(client->place(), options_.root)),
        client_(std::move(client)) {}

  std::string NameOf(const ChunkKey& key) const { return folder_ + key.Hex(); }
  // Sends a request about the key's object from any other thread, and waits for the reply.
  Result<CurlReply> Ask(const ChunkKey& key, S3Request request);
  Result<uint64_t> Landed(const RemoteGet& get, const Result<CurlReply>& reply) const;
  bool HasExpired(const CurlReply& reply) const;

  const S3StoreOptions options_;
  const std::string folder_;
  std::atomic<bool> knows_conditions_{true};  // the server, as far as it has said
  Discards discards_;                         // the client's thread's
  const std::unique_ptr<S3Client> client_;    // last: its thread ends before the rest goes
};

// A tier over such a store; `options` are of both.
struct S3TierOptions : RemoteTierOptions {
  S3ClientOptions client = {};
  Seconds time_to_live{0};
};
// RemoteTier::Open's errors, and S3Client::Open's.
Result<std::unique_ptr<RemoteTier>> OpenS3Tier(const S3TierOptions& options);

}  // namespace kvcake
