#include "comm/mesh_hello.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

namespace kvcake {
namespace {

struct Said {
  ClusterKey key = *ClusterKey::Of(std::string(32, 'k'), "test");
  Digest roster = {1};
  MeshHello caller = {.size = 3, .from = 2, .to = 0, .nonce = {2}, .facts = {3}};
  MeshHello called = {.size = 3, .from = 0, .to = 2, .nonce = {4}, .facts = {3}};

  MeshProof Proof() const { return {key, roster, caller, called}; }
};

TEST(MeshHelloTest, AProofIsOfEveryBitThatWasSaid) {
  const Said said;
  const Digest of_caller = said.Proof().OfCaller(), of_called = said.Proof().OfCalled();
  const auto expect_others = [&](const std::function<void(Said&)>& change, const char* what) {
    Said other;
    change(other);
    EXPECT_NE(other.Proof().OfCaller(), of_caller) << what;
    EXPECT_NE(other.Proof().OfCalled(), of_called) << what;
  };
  for (size_t at = 0; at < sizeof(MeshHello); ++at) {
    const auto flip = [at](MeshHello& hello) {
      char bytes[sizeof(MeshHello)];
      std::memcpy(bytes, &hello, sizeof(hello));
      bytes[at] = static_cast<char>(bytes[at] ^ 1);
      std::memcpy(&hello, bytes, sizeof(hello));
    };
    expect_others([&](Said& other) { flip(other.caller); }, "the caller's");
    expect_others([&](Said& other) { flip(other.called); }, "of who is called");
  }
  expect_others([](Said& other) { other.roster.back() = 1; }, "the roster");
  expect_others([](Said& other) { other.key = ClusterKey(); }, "the key");
  expect_others([](Said& other) { std::swap(other.caller, other.called); }, "who calls whom");
}

TEST(MeshHelloTest, NeitherSidesProofIsTheOthers) {
  EXPECT_NE(Said().Proof().OfCaller(), Said().Proof().OfCalled());
}

}  // namespace
}  // namespace kvcake
