// A Redis server, or the nodes of a Redis or Valkey Cluster, as one place for commands on a key.
//
// Everything happens on the thread that runs the io_context. What a node does not answer fails, and
// is not tried again: what was asked for is a miss, and computing is quicker than waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "store/redis_asio.h"
#include "store/redis_connection.h"

namespace kvcake {

inline constexpr int kRedisSlots = 16384;

// Where a cluster keeps a key: by what is between its first braces, if anything is.
int RedisSlot(std::string_view key);

struct RedisClientOptions {
  std::vector<RedisAddress> seeds;  // of a cluster, any of its nodes; else the one server
  bool is_cluster = false;
  RedisConnectionOptions connection = {};
  int connections_per_node = 2;
  Seconds retry_min{0.05}, retry_max{5};  // between tries to connect to a node, doubling
  Seconds refresh_min{0.5};               // between looks at which node has which slots
};

// A time as commands take it: 1 at least, as Redis takes no 0.
std::string RedisMilliseconds(Seconds time);

// kInvalidArgument, with the option and the file that cannot be used.
Result<RedisClientOptions> ClientOptions(const RedisPlace& place);

class RedisClient {
 public:
  // `context` outlives it.
  RedisClient(boost::asio::io_context& context, RedisClientOptions options);
  ~RedisClient();

  // Sends a command on `key` to the node that has it, and follows the cluster's redirections.
  void Send(std::string_view key, RedisCommand command);
  // Ends all connections; what is pending is done with kCancelled, then `closed` is called. Once,
  // and nothing is sent afterwards.
  void Close(std::function<void()> closed);
  bool is_closing() const { return is_closing_; }

 private:
  struct Node;
  struct Asked;
  using AskedPtr = std::shared_ptr<Asked>;

  // Null where there are too many already.
  Node* NodeAt(const RedisAddress& address);
  void SendTo(Node& node, const AskedPtr& asked, bool asking);
  void OnReply(Node& node, const AskedPtr& asked, Result<RespReply> reply);
  // The connection of a node with the least to do, or why there is none.
  Result<RedisConnection*> ConnectionTo(Node& node);
  void OnEnded(Node& node, const RedisConnection* connection, const Error& error);
  void FailSoon(const AskedPtr& asked, Error error);
  // Has what comes next connect anew, and its name be looked up, unless that has been a moment ago.
  void Renew(Node& node);

  // Looks which node has which slots, now or as soon as it may.
  void WantRefresh();
  void Refresh();
  void AskForSlots(size_t candidate);
  Status ReadSlots(const RespReply& reply, const RedisAddress& told_by);
  void OnSlots(Status read);
  // Forgets nodes that have no slots any more.
  void LetGo();
  void EndWhenClosed();

  boost::asio::io_context& context_;
  const RedisClientOptions options_;
  std::map<RedisAddress, std::unique_ptr<Node>> nodes_;
  std::vector<Node*> slots_;        // null: nobody's, as far as is known
  std::vector<AskedPtr> unmapped_;  // waits for the first look

  bool is_refreshing_ = false, is_mapped_ = false, is_refresh_due_ = false;
  TimePoint refreshed_{};
  std::vector<RedisAddress> candidates_;  // of this look, in order
  boost::asio::steady_timer refresh_timer_;
  int connections_ = 0;  // that have not ended
  bool is_closing_ = false;
  std::function<void()> closed_;
};

}  // namespace kvcake
