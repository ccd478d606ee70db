#include "comm/handshake.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/printable.h"
#include "comm/room_tags.h"
#include "comm/wait.h"

namespace kvcake {
namespace {

// The bytes of its facts, each name and value ended by a zero, and zeros behind them.
using Hello = std::array<std::byte, kFactsBytesMax + 2>;

Hello Encode(std::span<const Fact> facts) {
  std::string text;
  for (const Fact& fact : facts) {
    for (const std::string& part : {fact.name, fact.value}) {
      CHECK(part.find('\0') == std::string::npos);
      text += part;
      text += '\0';
    }
  }
  CHECK(text.size() <= kFactsBytesMax);
  Hello hello = {};
  std::memcpy(hello.data(), text.data(), text.size());
  return hello;
}

std::vector<Fact> Decode(const Hello& hello) {
  std::vector<Fact> facts;
  std::string_view rest(reinterpret_cast<const char*>(hello.data()), hello.size());
  const auto next = [&] {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    return std::string(part);
  };
  while (true) {
    Fact fact;
    fact.name = next();
    if (fact.name.empty()) return facts;
    fact.value = next();
    facts.push_back(std::move(fact));
  }
}

// Some models have facts that others lack.
std::string ValueOf(const std::vector<Fact>& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Fact::name);
  return found != facts.end() ? found->value : "nothing";
}

Status Compare(const std::vector<Hello>& hellos) {
  const std::vector<Fact> first = Decode(hellos[0]);
  for (size_t rank = 1; rank < hellos.size(); ++rank) {
    const std::vector<Fact> other = Decode(hellos[rank]);
    std::vector<Fact> named = first;
    named.insert(named.end(), other.begin(), other.end());
    for (const Fact& fact : named) {
      const std::string one = ValueOf(first, fact.name), two = ValueOf(other, fact.name);
      if (one == two) continue;
      return Fail(ErrorCode::kInvalidArgument,
                  "rank {} has another {} than rank 0 ({}; rank 0: {}): start every rank with the "
                  "same program, model and options",
                  rank, PrintableAscii(fact.name), PrintableAscii(two), PrintableAscii(one));
    }
  }
  return {};
}

}  // namespace

Digest FactsDigest(std::span<const Fact> facts) { return Sha256().Update(Encode(facts)).Finish(); }

Status Handshake(Comm& comm, std::span<const Fact> facts, Seconds timeout) {
  const TimePoint deadline = Clock::Real().Now() + timeout;
  // Transfers that outlast the call keep it.
  const auto hellos = std::make_shared<std::vector<Hello>>(comm.size());
  (*hellos)[comm.rank()] = Encode(facts);
  std::vector<TransferWait> told(comm.size()), heard(comm.size());
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    const auto keep = [&](TransferWait& wait) -> Comm::Done {
      return [hellos, done = wait.Add(peer)](Status status) { done(std::move(status)); };
    };
    comm.Receive(peer, kHelloTag, (*hellos)[peer], keep(heard[peer]));
    comm.Send(peer, kHelloTag, (*hellos)[comm.rank()], keep(told[peer]));
  }
  std::string silent;
  for (int peer = 0; peer < comm.size(); ++peer) {
    Status status = heard[peer].Wait(deadline, "handshake");
    if (status) status = told[peer].Wait(deadline, "handshake");
    if (status) continue;
    if (status.error().code != ErrorCode::kDeadline) return status;
    silent += fmt::format("{}{}", silent.empty() ? "" : ", ", peer);
  }
  if (silent.empty()) return Compare(*hellos);
  return Fail(ErrorCode::kDeadline, "no answer from rank {} within {} s", silent, timeout.count());
}

}  // namespace kvcake
