#include "store/redis_claims.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <utility>

namespace kvcake {
namespace {

using Kind = RespReply::Kind;

// The most claims of a process.
constexpr size_t kHeldMax = 4096;

// Ends a claim unless it has expired and is another's by now.
constexpr const char* kEndScript =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

std::string NewOwner() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

// A request on its way: first it is seen what there is of each key, then what may be is taken.
struct RedisClaims::Asking {
  struct OfKey {
    bool stored = false, theirs = false, mine = false;
    bool taken = false;  // by this request: it may have been another prompt's before
  };

  ClaimRequest request;
  std::vector<OfKey> keys;
  size_t due = 0;  // replies
  bool is_looking = true;
  size_t taking = 0;  // the first so many are taken, where nobody has them
};

RedisClaims::RedisClaims(RedisClient& client, std::function<std::string(const ChunkKey&)> name_of)
    : client_(client), name_of_(std::move(name_of)), owner_(NewOwner()) {}

void RedisClaims::Claim(ClaimRequest request) {
  ForgetExpired();
  const auto asking = std::make_shared<Asking>();
  asking->request = std::move(request);
  asking->keys.resize(asking->request.keys.size());
  ++under_way_;
  ++asking->due;
  for (size_t i = 0; i < asking->keys.size(); ++i) {
    const ChunkKey& key = asking->request.keys[i];
    Asking::OfKey& of_key = asking->keys[i];
    if (client_.is_closing()) break;
    Ask(asking, name_of_(key), {"EXISTS", name_of_(key)},
        [&of_key](const RespReply& reply) { of_key.stored = reply.integer > 0; });
    Ask(asking, ClaimOf(key), {"GET", ClaimOf(key)}, [this, &of_key](const RespReply& reply) {
      of_key.mine = reply.kind == Kind::kBulk && reply.text == owner_;
      of_key.theirs = reply.kind == Kind::kBulk && reply.text != owner_;
    });
  }
  GoOn(asking);
}

void RedisClaims::Ask(const AskingPtr& asking, const std::string& name,
                      std::vector<std::string> words,
                      std::function<void(const RespReply&)> on_reply) {
  ++asking->due;
  client_.Send(
      name, {.words = std::move(words), .done = [this, asking, on_reply](Result<RespReply> reply) {
               const bool failed = !reply || reply->kind == Kind::kError;
               on_reply(failed ? RespReply{.kind = Kind::kError} : *reply);
               GoOn(asking);
             }});
}

void RedisClaims::GoOn(const AskingPtr& asking) {
  if (--asking->due > 0) return;
  if (asking->is_looking) return Take(asking);
  Answer(asking);
}

// Takes what nobody has, in order, up to the first key that is another's. What has been put since
// it was looked is claimed all the same, and computed once more.
void RedisClaims::Take(const AskingPtr& asking) {
  asking->is_looking = false;
  ++asking->due;
  const std::string lasts = RedisMilliseconds(asking->request.lasts);
  for (size_t i = 0; i < asking->keys.size(); ++i) {
    Asking::OfKey& of_key = asking->keys[i];
    const ChunkKey& key = asking->request.keys[i];
    if ((of_key.theirs && !of_key.stored) || ended_ || client_.is_closing()) break;
    asking->taking = i + 1;
    if (of_key.stored) continue;
    if (of_key.mine) {
      Ask(asking, ClaimOf(key), {"PEXPIRE", ClaimOf(key), lasts},
          [&of_key](const RespReply& reply) { of_key.mine = reply.integer > 0; });
      continue;
    }
    if (held_.size() >= kHeldMax) continue;
    Ask(asking, ClaimOf(key), {"SET", ClaimOf(key), owner_, "NX", "PX", lasts},
        [&of_key](const RespReply& reply) {
          of_key.mine = of_key.taken = reply.IsText("OK");
          of_key.theirs = reply.kind == Kind::kNil;
        });
  }
  GoOn(asking);
}

void RedisClaims::Answer(const AskingPtr& asking) {
  std::vector<ClaimState> states(asking->keys.size(), ClaimState::kNone);
  const TimePoint until = Clock::Real().Now() + asking->request.lasts;
  bool is_behind = false;  // another's
  for (size_t i = 0; i < states.size(); ++i) {
    const Asking::OfKey& of_key = asking->keys[i];
    const ChunkKey& key = asking->request.keys[i];
    if (of_key.mine && !of_key.stored) held_[key] = until;
    if (is_behind) {
      if (of_key.taken) End({&key, 1});
    } else if (of_key.stored) {
      states[i] = ClaimState::kStored;
    } else if (of_key.theirs) {
      states[i] = ClaimState::kTheirs;
    } else if (of_key.mine && i < asking->taking) {
      states[i] = ClaimState::kMine;
    }
    is_behind = is_behind || states[i] == ClaimState::kTheirs;
  }
  asking->request.done(states);
  if (ended_) End(asking->request.keys);
  CountDown();
}

void RedisClaims::End(std::span<const ChunkKey> keys) {
  for (const ChunkKey& key : keys) {
    if (held_.erase(key) > 0 && !client_.is_closing()) SendEnd(key);
  }
}

void RedisClaims::EndAll(std::function<void()> ended) {
  ended_ = std::move(ended);
  ++under_way_;
  for (const auto& [key, until] : std::exchange(held_, {})) SendEnd(key);
  CountDown();
}

void RedisClaims::SendEnd(const ChunkKey& key) {
  const std::string name = ClaimOf(key);
  ++under_way_;
  client_.Send(name, {.words = {"EVAL", kEndScript, "1", name, owner_},
                      .done = [this](auto&&) { CountDown(); }});
}

void RedisClaims::CountDown() {
  if (--under_way_ == 0 && ended_) ended_();
}

void RedisClaims::ForgetExpired() {
  const TimePoint now = Clock::Real().Now();
  std::erase_if(held_, [now](const auto& held) { return held.second < now; });
}

}  // namespace kvcake
