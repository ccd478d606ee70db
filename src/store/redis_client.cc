#include "store/redis_client.h"

#include <algorithm>
#include <boost/crc.hpp>
#include <charconv>
#include <random>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "store/redis_tls.h"

namespace kvcake {

namespace asio = boost::asio;
using Kind = RespReply::Kind;

namespace {

constexpr size_t kNodesMax = 1024;     // that a cluster may name
constexpr size_t kPendingMax = 16384;  // commands that a node has not answered

Error TooMuch(const RedisAddress& address) {
  return {ErrorCode::kIo,
          fmt::format("{} has {} commands to answer already", address.Text(), kPendingMax)};
}

// Redirections of one command; more of them are a cluster that does not agree with itself.
constexpr int kRedirectionsMax = 5;

struct Redirection {
  int slot;
  RedisAddress to;
};

// Reads "MOVED 3999 127.0.0.1:6381" or "ASK ...". No host is that of who says so.
std::optional<Redirection> ReadRedirection(std::string_view text, const RedisAddress& said_by) {
  const size_t word = text.find(' '), place = text.rfind(' '), colon = text.rfind(':');
  if (word == std::string_view::npos || place == word || colon == std::string_view::npos ||
      colon < place) {
    return {};
  }
  const std::string_view slot = text.substr(word + 1, place - word - 1);
  const std::string_view host = text.substr(place + 1, colon - place - 1);
  const std::string_view port = text.substr(colon + 1);
  Redirection read{-1, {std::string(host.empty() ? std::string_view(said_by.host) : host), 0}};
  std::from_chars(slot.data(), slot.data() + slot.size(), read.slot);
  std::from_chars(port.data(), port.data() + port.size(), read.to.port);
  if (read.slot < 0 || read.slot >= kRedisSlots || read.to.port == 0) return {};
  if (!IsHost(read.to.host)) return {};
  return read;
}

// Waiting times differ, so that not all clients come back at once.
Seconds Jittered(Seconds time) {
  thread_local std::minstd_rand random{std::random_device()()};
  return time * std::uniform_real_distribution<>(0.5, 1)(random);
}

}  // namespace

std::string RedisMilliseconds(Seconds time) {
  return std::to_string(std::max<int64_t>(1, static_cast<int64_t>(time.count() * 1e3)));
}

int RedisSlot(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  boost::crc_xmodem_t crc;
  crc.process_bytes(key.data(), key.size());
  return crc.checksum() % kRedisSlots;
}

Result<RedisClientOptions> ClientOptions(const RedisPlace& place) {
  RedisClientOptions options;
  options.seeds = place.seeds;
  options.is_cluster = place.is_cluster;
  options.connection.login = place.login;
  options.connection.database = place.database;
  if (place.is_tls) {
    ASSIGN_OR_RETURN(options.connection.tls, LoadRedisTls(place.tls_files));
  }
  return options;
}

struct RedisClient::Node {
  RedisAddress address;
  std::vector<std::shared_ptr<RedisConnection>> connections = {};
  Seconds backoff{0};  // none while it can be reached
  TimePoint retry_at{};
  Error error{};         // the last that ended a connection
  TimePoint renew_at{};  // not before
};

struct RedisClient::Asked {
  RedisCommand command;
  int slot = 0;
  int redirections = 0;
};

RedisClient::RedisClient(asio::io_context& context, RedisClientOptions options)
    : context_(context),
      options_(std::move(options)),
      slots_(kRedisSlots, nullptr),
      refresh_timer_(context) {
  CHECK(!options_.seeds.empty() && options_.connections_per_node > 0);
  if (options_.is_cluster) return;
  std::fill(slots_.begin(), slots_.end(), NodeAt(options_.seeds[0]));
  is_mapped_ = true;
}

RedisClient::~RedisClient() { CHECK(connections_ == 0); }

RedisClient::Node* RedisClient::NodeAt(const RedisAddress& address) {
  const auto known = nodes_.find(address);
  if (known != nodes_.end()) return known->second.get();
  if (nodes_.size() >= kNodesMax) return nullptr;
  return nodes_.emplace(address, std::make_unique<Node>(Node{address})).first->second.get();
}

void RedisClient::Send(std::string_view key, RedisCommand command) {
  CHECK(!is_closing_);
  const auto asked = std::make_shared<Asked>(Asked{std::move(command), RedisSlot(key)});
  if (!is_mapped_) {
    if (unmapped_.size() >= kPendingMax) return FailSoon(asked, TooMuch(options_.seeds[0]));
    unmapped_.push_back(asked);
    return WantRefresh();
  }
  Node* const node = slots_[asked->slot];
  if (node != nullptr) return SendTo(*node, asked, false);
  WantRefresh();
  FailSoon(asked,
           {ErrorCode::kIo, fmt::format("no node of the Redis cluster has slot {}", asked->slot)});
}

void RedisClient::SendTo(Node& node, const AskedPtr& asked, bool asking) {
  const Result<RedisConnection*> connection = ConnectionTo(node);
  if (!connection) {
    if (options_.is_cluster) WantRefresh();
    return FailSoon(asked, connection.error());
  }
  if ((*connection)->pending() >= kPendingMax) return FailSoon(asked, TooMuch(node.address));
  if (asking) (*connection)->Send({.words = {"ASKING"}, .done = [](auto&&) {}});
  RedisCommand command = asked->command;
  command.done = [this, &node, asked](Result<RespReply> reply) {
    OnReply(node, asked, std::move(reply));
  };
  (*connection)->Send(std::move(command));
}

void RedisClient::OnReply(Node& node, const AskedPtr& asked, Result<RespReply> reply) {
  if (is_closing_ || (reply && reply->kind != Kind::kError)) {
    return asked->command.done(std::move(reply));
  }
  if (!options_.is_cluster) {
    // After a failover its name is another server's.
    const std::string_view word = reply ? reply->ErrorWord() : "";
    if (word == "READONLY" || word == "MASTERDOWN") Renew(node);
    return asked->command.done(std::move(reply));
  }
  if (!reply) {
    WantRefresh();
    return asked->command.done(std::move(reply));
  }
  const std::string_view word = reply->ErrorWord();
  const bool moved = word == "MOVED", ask = word == "ASK";
  if (!moved && !ask) {
    if (word == "CLUSTERDOWN" || word == "READONLY" || word == "MASTERDOWN") WantRefresh();
    return asked->command.done(std::move(reply));
  }
  const auto redirection = ReadRedirection(reply->text, node.address);
  if (!redirection || ++asked->redirections > kRedirectionsMax) {
    return asked->command.done(Fail(ErrorCode::kIo, "{} redirects to nowhere: {}",
                                    node.address.Text(), PrintableAscii(reply->text)));
  }
  Node* const next = NodeAt(redirection->to);
  if (next == nullptr) {
    return asked->command.done(
        Fail(ErrorCode::kIo, "{} redirects to one node too many", node.address.Text()));
  }
  if (moved) {
    slots_[redirection->slot] = next;
    WantRefresh();
  }
  SendTo(*next, asked, ask);
}

Result<RedisConnection*> RedisClient::ConnectionTo(Node& node) {
  RedisConnection* best = nullptr;
  size_t usable = 0;
  for (const auto& connection : node.connections) {
    if (connection->is_ending()) continue;
    ++usable;
    if (best == nullptr || connection->pending_bytes() < best->pending_bytes()) {
      best = connection.get();
    }
  }
  const bool full = usable >= static_cast<size_t>(options_.connections_per_node);
  if (best != nullptr && (full || best->pending() == 0)) return best;
  if (Clock::Real().Now() < node.retry_at) {
    if (best != nullptr) return best;
    return tl::unexpected(node.error);
  }
  // `ended` comes from a connection that lives until then, and is told apart by its address.
  auto ended = std::make_shared<const RedisConnection*>(nullptr);
  const auto connection = std::make_shared<RedisConnection>(
      context_, options_.connection,
      [this, &node, ended](const Error& error) { OnEnded(node, *ended, error); });
  *ended = connection.get();
  node.connections.push_back(connection);
  ++connections_;
  connection->Start(node.address);
  return connection.get();
}

void RedisClient::OnEnded(Node& node, const RedisConnection* connection, const Error& error) {
  const auto ended = std::find_if(node.connections.begin(), node.connections.end(),
                                  [&](const auto& known) { return known.get() == connection; });
  CHECK(ended != node.connections.end());
  const bool was_up = (*ended)->was_ready();
  node.connections.erase(ended);
  if (error.code != ErrorCode::kCancelled) {  // which is our own wish
    node.error = error;
    if (was_up) node.backoff = Seconds(0);
    node.backoff = std::clamp(node.backoff * 2, options_.retry_min, options_.retry_max);
    node.retry_at = Clock::Real().Now() + Jittered(node.backoff);
  }
  --connections_;
  EndWhenClosed();
}

void RedisClient::Renew(Node& node) {
  const TimePoint now = Clock::Real().Now();
  if (now < node.renew_at) return;
  node.renew_at = now + options_.retry_max;
  for (const auto& connection : node.connections) connection->Retire();
}

void RedisClient::FailSoon(const AskedPtr& asked, Error error) {
  asio::post(context_,
             [asked, error = std::move(error)] { asked->command.done(tl::unexpected(error)); });
}

void RedisClient::WantRefresh() {
  if (is_refreshing_ || is_refresh_due_ || is_closing_) return;
  is_refresh_due_ = true;
  const TimePoint due = refreshed_ + options_.refresh_min;
  const Seconds wait = std::max(Seconds(0), due - Clock::Real().Now());
  refresh_timer_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait));
  refresh_timer_.async_wait([this](boost::system::error_code error) {
    if (error || is_closing_) return;
    is_refresh_due_ = false;
    Refresh();
  });
}

void RedisClient::Refresh() {
  is_refreshing_ = true;
  candidates_.clear();
  std::set<const Node*> masters;
  for (const Node* node : slots_) {
    if (node != nullptr && masters.insert(node).second) candidates_.push_back(node->address);
  }
  candidates_.insert(candidates_.end(), options_.seeds.begin(), options_.seeds.end());
  AskForSlots(0);
}

// Asks one node after another until one answers.
void RedisClient::AskForSlots(size_t candidate) {
  const auto next = [this, candidate](Status failed) {
    if (candidate + 1 == candidates_.size() || is_closing_) return OnSlots(std::move(failed));
    // By way of the loop: there may be a thousand that are not to be asked yet.
    asio::post(context_, [this, candidate] { AskForSlots(candidate + 1); });
  };
  Node* const known = is_closing_ ? nullptr : NodeAt(candidates_[candidate]);
  if (known == nullptr) return next(Fail(ErrorCode::kCancelled, "it is not asked any more"));
  Node& node = *known;
  const Result<RedisConnection*> connection = ConnectionTo(node);
  if (!connection) return next(tl::unexpected(connection.error()));
  (*connection)
      ->Send({.words = {"CLUSTER", "SLOTS"}, .done = [this, next, &node](Result<RespReply> reply) {
                Status read =
                    reply ? ReadSlots(*reply, node.address) : Status(tl::unexpected(reply.error()));
                if (read) return OnSlots({});
                next(std::move(read));
              }});
}

// [[first, last, [host, port, ...] of the master, ...], ...]; a host that is not known is that of
// who says so.
Status RedisClient::ReadSlots(const RespReply& reply, const RedisAddress& told_by) {
  if (reply.kind == Kind::kError) {
    return Fail(ErrorCode::kInvalidArgument, "{} is no node of a Redis cluster: {}", told_by.Text(),
                PrintableAscii(reply.text));
  }
  std::vector<Node*> slots(kRedisSlots, nullptr);
  for (const RespReply& range : reply.items) {
    const bool has_master = range.items.size() >= 3 && range.items[0].kind == Kind::kInteger &&
                            range.items[1].kind == Kind::kInteger &&
                            range.items[2].items.size() >= 2;
    if (!has_master) continue;
    const int64_t first = range.items[0].integer, last = range.items[1].integer;
    const std::string& host = range.items[2].items[0].text;
    const int64_t port = range.items[2].items[1].integer;
    if (first < 0 || last >= kRedisSlots || first > last || port < 1 || port > 65535) continue;
    const std::string& named = host.empty() || host == "?" ? told_by.host : host;
    Node* const node = IsHost(named) ? NodeAt({named, static_cast<uint16_t>(port)}) : nullptr;
    std::fill(slots.begin() + first, slots.begin() + last + 1, node);
  }
  if (std::count(slots.begin(), slots.end(), nullptr) == kRedisSlots) {
    return Fail(ErrorCode::kIo, "the Redis cluster of {} has no slots yet", told_by.Text());
  }
  slots_ = std::move(slots);
  LetGo();
  return {};
}

void RedisClient::LetGo() {
  for (auto at = nodes_.begin(); at != nodes_.end();) {
    Node& node = *at->second;
    const bool is_used = std::find(slots_.begin(), slots_.end(), &node) != slots_.end();
    if (!is_used && node.connections.empty()) {
      at = nodes_.erase(at);
      continue;
    }
    for (const auto& connection : node.connections) {
      if (!is_used && connection->pending() == 0) connection->Close();
    }
    ++at;
  }
}

void RedisClient::OnSlots(Status read) {
  is_refreshing_ = false;
  refreshed_ = Clock::Real().Now();
  is_mapped_ = is_mapped_ || read.has_value();
  for (const AskedPtr& asked : std::exchange(unmapped_, {})) {
    Node* const node = slots_[asked->slot];
    if (node != nullptr && !is_closing_) {
      SendTo(*node, asked, false);
    } else {
      asked->command.done(Fail(ErrorCode::kIo, "the Redis cluster cannot be asked: {}",
                               read ? "it has no node for a slot" : read.error().message));
    }
  }
}

void RedisClient::Close(std::function<void()> closed) {
  is_closing_ = true;
  closed_ = std::move(closed);
  refresh_timer_.cancel();
  for (const AskedPtr& asked : std::exchange(unmapped_, {})) {
    FailSoon(asked, {ErrorCode::kCancelled, "the store is closed"});
  }
  for (const auto& [address, node] : nodes_) {
    for (const auto& connection : node->connections) connection->Close();
  }
  asio::post(context_, [this] { EndWhenClosed(); });
}

void RedisClient::EndWhenClosed() {
  if (connections_ == 0 && closed_) std::exchange(closed_, nullptr)();
}

}  // namespace kvcake
