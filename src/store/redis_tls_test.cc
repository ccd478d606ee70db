#include "store/redis_tls.h"

#include <gmock/gmock.h>

#include "base/authority_testing.h"
#include "store/redis_server_testing.h"
#include "store/redis_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

// A server that speaks nothing but TLS, on a port of its own.
class RedisTlsTest : public testing::Test {
 protected:
  std::vector<std::string> ServerOptions(const std::string& auth_clients) {
    return {"--tls-cert-file",    files_.certificate, "--tls-key-file",     files_.key,
            "--tls-ca-cert-file", files_.ca,          "--tls-auth-clients", auth_clients};
  }
  // What a tier says of a Put, as `client` sees it; empty where it is well.
  std::string Put(uint16_t port, const RedisTlsFiles& client, Seconds patience = Seconds(60)) {
    auto tls = LoadRedisTls(client);
    EXPECT_TRUE(tls) << tls.error().message;
    RedisTierOptions options;
    options.client.seeds = {{"127.0.0.1", port}};
    options.client.connection.tls = *tls;
    options.client.connection.connect_timeout = patience;
    options.layout = SmallLayout();
    options.root = Root();
    const auto tier = *OpenRedisTier(options);
    const auto key = Chain(1)[0];
    if (const Status put = PutChunk(*tier, options.layout, key, Root()); !put) {
      return put.error().message;
    }
    return ReadBack(*tier, options.layout, key, Root()) ? "cannot read" : "";
  }

  const Authority authority_, stranger_;
  const Authority::Files files_ = authority_.Issue("127.0.0.1");
};

TEST_F(RedisTlsTest, ChunksGoInTlsAndNobodyElseIsBelieved) {
  const RedisServer server(ServerOptions("no"), RedisServer::Transport::kTls);
  EXPECT_EQ(Put(server.port(), {.ca = files_.ca}), "");
  EXPECT_THAT(Put(server.port(), {.ca = stranger_.Issue("x").ca}), HasSubstr("no TLS with"));
  EXPECT_THAT(Put(server.port(), {}), HasSubstr("no TLS with")) << "the system knows no such one";
}

TEST_F(RedisTlsTest, AServerOfAnotherNameIsNotBelieved) {
  const Authority::Files other = authority_.Issue("127.0.0.2");
  const RedisServer server({"--tls-cert-file", other.certificate, "--tls-key-file", other.key,
                            "--tls-ca-cert-file", other.ca, "--tls-auth-clients", "no"},
                           RedisServer::Transport::kTls);
  EXPECT_THAT(Put(server.port(), {.ca = files_.ca}), HasSubstr("no TLS with"));
}

TEST_F(RedisTlsTest, AServerMayAskForACertificate) {
  const RedisServer server(ServerOptions("yes"), RedisServer::Transport::kTls);
  const Authority::Files mine = authority_.Issue("client");
  EXPECT_EQ(Put(server.port(), {files_.ca, mine.certificate, mine.key}), "");
  EXPECT_NE(Put(server.port(), {.ca = files_.ca}), "");
}

TEST_F(RedisTlsTest, AServerWithoutTlsIsNone) {
  const RedisServer server;
  EXPECT_THAT(Put(server.port(), {.ca = files_.ca}, Seconds(0.2)), HasSubstr("does it speak TLS?"));
}

TEST_F(RedisTlsTest, WhatCannotBeUsedIsNamed) {
  const auto said = [](const RedisTlsFiles& files) { return LoadRedisTls(files).error().message; };
  EXPECT_THAT(said({.ca = "/nowhere.pem"}), HasSubstr("tls-ca: cannot open /nowhere.pem"));
  EXPECT_THAT(said({.ca = files_.key}), HasSubstr("tls-ca"));
  EXPECT_THAT(said({files_.ca, files_.certificate, ""}), HasSubstr("go together"));
  EXPECT_THAT(said({files_.ca, "/nowhere.pem", files_.key}),
              HasSubstr("tls-cert: cannot open /nowhere.pem"));
  EXPECT_THAT(said({files_.ca, files_.certificate, stranger_.Issue("y").key}),
              HasSubstr("tls-key"));
}

}  // namespace
}  // namespace kvcake
