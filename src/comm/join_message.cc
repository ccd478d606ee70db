#include "comm/join_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/printable.h"

namespace kvcake {
namespace {

constexpr std::string_view kChain = "kvcake-chain 2", kWorker = "kvcake-worker 2";
constexpr std::string_view kCall = "call", kReady = "ready", kRefused = "refused", kTaken = "taken",
                           kGo = "go";
constexpr std::string_view kCallProof = "kvcake 2: a leader calls a worker";
constexpr std::string_view kReadyProof = "kvcake 2: a worker is ready for a leader";
constexpr std::string_view kGoProof = "kvcake 2: a leader lets a worker go on";
constexpr std::string_view kRosterDigest = "kvcake 2: the roster of a chain";

// The word that a line begins with, and the space behind it. No line ends with one.
bool TakeWord(std::string_view* line, std::string_view word) {
  if (!line->starts_with(word) || line->ends_with(' ')) return false;
  if (line->size() > word.size() && (*line)[word.size()] != ' ') return false;
  line->remove_prefix(std::min(line->size(), word.size() + 1));
  return true;
}

std::string_view NextWord(std::string_view* line) {
  const std::string_view word = line->substr(0, line->find(' '));
  line->remove_prefix(std::min(line->size(), word.size() + 1));
  return word;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Exactly so many digits.
template <size_t N>
bool TakeHex(std::string_view* line, std::array<uint8_t, N>* bytes) {
  const std::string_view word = NextWord(line);
  if (word.size() != 2 * N) return false;
  for (size_t i = 0; i < N; ++i) {
    const int high = HexValue(word[2 * i]), low = HexValue(word[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*bytes)[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

std::string Line(const std::string& text, std::string* said) {
  *said += text + '\n';
  return text + '\n';
}

void Note(std::string_view line, std::string* said) {
  *said += line;
  *said += '\n';
}

bool HearNonce(std::string_view line, std::string_view greeting, std::string* said) {
  std::string_view rest = line;
  Nonce nonce;
  if (!TakeWord(&rest, greeting) || !TakeHex(&rest, &nonce) || !rest.empty()) return false;
  Note(line, said);
  return true;
}

// One that is no proof.
std::string Answer(std::string_view word, const std::string& why) {
  const size_t room = kAnswerBytesMax - word.size() - 2;
  return fmt::format("{} {}\n", word, PrintableAscii(why).substr(0, room));
}

// What follows a call's proof.
std::optional<Call> ParseCall(std::string_view rest) {
  Call call;
  if (!TakeHex(&rest, &call.roster.chain) || !TakeHex(&rest, &call.facts)) return std::nullopt;
  const std::string_view rank = NextWord(&rest);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), call.rank);
  if (error != std::errc() || end != rank.data() + rank.size()) return std::nullopt;
  std::vector<std::string>& addresses = call.roster.addresses;
  while (!rest.empty()) {
    addresses.emplace_back(NextWord(&rest));
    if (addresses.back().empty() || addresses.size() >= kRanksMax) return std::nullopt;
  }
  const bool sound = call.rank >= 0 && call.rank < static_cast<int>(addresses.size());
  return sound ? std::optional(std::move(call)) : std::nullopt;
}

}  // namespace

Digest Roster::digest() const {
  std::string all;
  for (const std::string& address : addresses) {
    const uint64_t bytes = address.size();
    all += PartOf(bytes);
    all += address;
  }
  return ClusterKey().Prove(kRosterDigest, {PartOf(chain), all});
}

std::string LeaderTalk::Greeting() {
  return Line(fmt::format("{} {}", kChain, ToHex(NewNonce())), &said_);
}

bool LeaderTalk::HearGreeting(std::string_view line) {
  if (HearNonce(line, kWorker, &said_)) return true;
  if (TakeWord(&line, kRefused)) why_ = PrintableAscii(line);
  return false;
}

std::string LeaderTalk::CallOf(const Call& call) {
  std::string rest =
      fmt::format("{} {} {}", ToHex(call.roster.chain), ToHex(call.facts), call.rank);
  for (const std::string& address : call.roster.addresses) rest += " " + address;
  const Digest proof = key_.Prove(kCallProof, {said_, rest});
  return Line(fmt::format("{} {} {}", kCall, ToHex(proof), rest), &said_);
}

LeaderTalk::Answer LeaderTalk::HearAnswer(std::string_view line) {
  std::string_view rest = line;
  if (TakeWord(&rest, kRefused)) {
    why_ = PrintableAscii(rest);
    return Answer::kRefused;
  }
  if (TakeWord(&rest, kTaken)) {
    why_ = PrintableAscii(rest);
    return Answer::kTaken;
  }
  Digest proof, facts;
  if (!TakeWord(&rest, kReady) || !TakeHex(&rest, &proof)) return Answer::kStranger;
  const std::string_view proved = rest;
  if (!TakeHex(&rest, &facts) || !rest.empty()) return Answer::kStranger;
  if (!SameProof(proof, key_.Prove(kReadyProof, {said_, proved}))) return Answer::kUnproved;
  Note(line, &said_);
  return Answer::kReady;
}

std::string LeaderTalk::Go() const {
  return fmt::format("{} {}\n", kGo, ToHex(key_.Prove(kGoProof, {said_})));
}

bool WorkerTalk::HearGreeting(std::string_view line) { return HearNonce(line, kChain, &said_); }

std::string WorkerTalk::Greeting() {
  return Line(fmt::format("{} {}", kWorker, ToHex(NewNonce())), &said_);
}

std::optional<Call> WorkerTalk::HearCall(std::string_view line, bool* proved) {
  std::string_view rest = line;
  Digest proof;
  *proved = false;
  if (!TakeWord(&rest, kCall) || !TakeHex(&rest, &proof)) return std::nullopt;
  std::optional<Call> call = ParseCall(rest);
  if (!call) return std::nullopt;
  *proved = SameProof(proof, key_.Prove(kCallProof, {said_, rest}));
  if (*proved) Note(line, &said_);
  return call;
}

std::string WorkerTalk::Ready(const Digest& facts) {
  const std::string rest = ToHex(facts);
  const Digest proof = key_.Prove(kReadyProof, {said_, rest});
  return Line(fmt::format("{} {} {}", kReady, ToHex(proof), rest), &said_);
}

std::string WorkerTalk::Refused(const std::string& why) { return Answer(kRefused, why); }

std::string WorkerTalk::Taken(const std::string& why) { return Answer(kTaken, why); }

bool WorkerTalk::HearGo(std::string_view line) const {
  Digest proof;
  if (!TakeWord(&line, kGo) || !TakeHex(&line, &proof) || !line.empty()) return false;
  return SameProof(proof, key_.Prove(kGoProof, {said_}));
}

}  // namespace kvcake
