// Ranks in TLS, with real sockets and certificates: who is let in, and what the others hear.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <future>

#include "comm/certificates_testing.h"
#include "comm/contract_testing.h"
#include "comm/tcp_join_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::AllOf;
using testing::HasSubstr;

const Authority& Cluster() {
  static const Authority authority;
  return authority;
}

const Authority& Stranger() {
  static const Authority authority;
  return authority;
}

JoinOptions InTls(const RankTls& tls, const ClusterKey& key = {}) {
  JoinOptions options = kPatient;
  options.tls = tls;
  options.key = key;
  return options;
}

void ExpectTlsChain(Waiting& worker, const JoinOptions& options) {
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, options);
  ASSERT_TRUE(leader) << leader.error().message;
  const auto joined = worker.Joined();
  ASSERT_TRUE(joined) << joined.error().message;
  const Bytes out = Pattern(1, 5 << 20);
  Bytes there(out.size()), back(out.size());
  TransferWait sent;
  (*leader)->Send(0, 1, out, sent.Add(0));
  joined->comm->Send(1, 2, out, sent.Add(1));
  ExpectOk(ReceiveAndWait(*joined->comm, 1, 1, there));
  ExpectOk(ReceiveAndWait(**leader, 0, 2, back));
  ExpectOk(sent.Wait(Patience(), "send"));
  EXPECT_TRUE(there == out && back == out);
}

// What a leader hears of a worker that goes on waiting; then one of the cluster's own is led.
std::string Refusal(const JoinOptions& worker_options, const JoinOptions& leader_options) {
  Waiting worker(worker_options);
  const auto refused = GatherWorkers(std::vector{worker.address()}, {}, leader_options);
  if (refused) return "it was let in";
  JoinOptions own = worker_options;
  if (!own.tls.empty()) own.tls = IssueLoaded(Cluster(), "another");
  ExpectTlsChain(worker, own);
  return refused.error().message;
}

TEST(TcpTlsTest, RanksOfTheClustersAuthorityMeet) {
  const auto key = ClusterKey::Of("a secret of this cluster's", "test");
  for (const ClusterKey& one : {ClusterKey(), *key}) {
    Waiting worker(InTls(IssueLoaded(Cluster(), "worker"), one));
    ExpectTlsChain(worker, InTls(IssueLoaded(Cluster(), "leader"), one));
  }
}

TEST(TcpTlsTest, TheKeyIsAskedForInTlsToo) {
  const auto key = ClusterKey::Of("a secret of this cluster's", "test");
  EXPECT_THAT(Refusal(InTls(IssueLoaded(Cluster(), "worker"), *key),
                      InTls(IssueLoaded(Cluster(), "leader"))),
              HasSubstr("cluster key is not this worker's"));
}

// Nothing of what is said can be read on the way, nor what a proof is made of.
TEST(TcpTlsTest, NothingGoesInTheClear) {
  Waiting worker(InTls(IssueLoaded(Cluster(), "worker")));
  boost::asio::io_context context;
  boost::asio::ip::tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto tap = std::async(std::launch::async, [&] {
    boost::asio::ip::tcp::socket leader = acceptor.accept();
    std::array<char, 4096> heard;
    boost::system::error_code end;
    return std::string(heard.data(), leader.read_some(boost::asio::buffer(heard), end));
  });
  const auto leader =
      GatherWorkers(std::vector{fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port())}, {},
                    InTls(IssueLoaded(Cluster(), "leader")));
  EXPECT_FALSE(leader);
  EXPECT_THAT(tap.get(), testing::Not(HasSubstr("kvcake-chain")));
  worker.Stop();
}

TEST(TcpTlsTest, AStrangersAuthorityIsNotBelieved) {
  const JoinOptions worker = InTls(IssueLoaded(Cluster(), "worker"));
  // Neither by the leader, nor, where that believes the worker, by the worker.
  EXPECT_THAT(Refusal(worker, InTls(IssueLoaded(Stranger(), "leader"))),
              AllOf(HasSubstr("no authority of --tls-ca has signed its certificate"),
                    HasSubstr("127.0.0.1:")));
  RankTlsFiles files = Issue(Stranger(), "believing");
  files.ca = Issue(Cluster(), "unused").ca;
  EXPECT_THAT(Refusal(worker, InTls(*RankTls::Load(files))),
              HasSubstr("no authority of its --tls-ca has signed this one's --tls-cert"));
}

// Which no other authority mends.
TEST(TcpTlsTest, ACertificateOfAnotherTimeIsCalledThat) {
  const Authority::Validity past = {-7200, -3600}, future = {3600, 7200};
  const JoinOptions ours = InTls(IssueLoaded(Cluster(), "ours"));
  const std::pair<Authority::Validity, std::string> cases[] = {
      {past, "certificate has expired"}, {future, "certificate is not yet valid"}};
  for (const auto& [validity, why] : cases) {
    Waiting worker(InTls(IssueLoaded(Cluster(), "worker", validity)));
    const auto refused = GatherWorkers(std::vector{worker.address()}, {}, ours);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message,
                HasSubstr("its certificate, or its authority's, is not valid now: " + why));
    worker.Stop();
  }
  EXPECT_THAT(Refusal(ours, InTls(IssueLoaded(Cluster(), "leader", past))),
              HasSubstr("by its clock this one's --tls-cert, or its authority's, has expired"));
}

TEST(TcpTlsTest, APlainLeaderIsToldThatTheWorkerSpeaksTls) {
  EXPECT_THAT(Refusal(InTls(IssueLoaded(Cluster(), "worker")), kPatient),
              HasSubstr("it refuses: this worker speaks TLS: give the server --tls-cert"));
}

TEST(TcpTlsTest, ALeaderInTlsIsToldThatTheWorkerHasNone) {
  EXPECT_THAT(Refusal(kPatient, InTls(IssueLoaded(Cluster(), "leader"))),
              HasSubstr("in the midst of TLS' handshake: if it has none, give it --tls-cert"));
}

TEST(TcpTlsTest, StalledHandshakesHinderNobodyAndEnd) {
  JoinOptions options = InTls(IssueLoaded(Cluster(), "worker"));
  {
    Waiting worker(options);
    std::vector<std::unique_ptr<Caller>> stalled;
    for (int i = 0; i < 100; ++i) {
      stalled.push_back(std::make_unique<Caller>(worker, i % 2 == 0 ? "" : "\x16\x03\x01"));
    }
    ExpectTlsChain(worker, InTls(IssueLoaded(Cluster(), "leader")));
  }
  options.patience = Seconds(0.1);
  Waiting worker(options);
  EXPECT_EQ(Caller(worker).Heard(), "");
  EXPECT_EQ(Caller(worker, "\x16\x03\x01\x02").Heard(), "");
}

// Who calls a rank that waits for another one; in TLS it has to be of the cluster first.
TEST(TcpTlsTest, RanksThatConnectAreAskedToo) {
  std::vector<TcpListener> listeners;
  listeners.push_back(ListenLocally());
  listeners.push_back(ListenLocally());
  TcpCommOptions options;
  for (const TcpListener& listener : listeners) {
    options.addresses.push_back(fmt::format("127.0.0.1:{}", listener.port()));
  }
  options.timeout = Seconds(120);
  options.tls = IssueLoaded(Cluster(), "rank_0");
  auto rank_0 = std::async(std::launch::async, [&] { return ConnectTcp(listeners[0], options); });
  TcpCommOptions other = options;
  other.rank = 1;
  other.tls = IssueLoaded(Stranger(), "rank_1");
  const auto stranger = ConnectTcp(listeners[1], other);
  ASSERT_FALSE(stranger);
  EXPECT_EQ(stranger.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(stranger.error().message, HasSubstr("no authority of --tls-ca has signed"));
  other.tls = {};
  other.timeout = Seconds(0.5);
  EXPECT_FALSE(ConnectTcp(listeners[1], other)) << "in the clear";
  other.timeout = Seconds(120);
  other.tls = IssueLoaded(Cluster(), "rank_1");
  const auto rank_1 = ConnectTcp(listeners[1], other);
  ASSERT_TRUE(rank_1) << rank_1.error().message;
  const auto first = rank_0.get();
  ASSERT_TRUE(first) << first.error().message;
}

TEST(RankTlsTest, WhatCannotBeUsedIsNamed) {
  const RankTlsFiles good = Issue(Cluster(), "good");
  ASSERT_TRUE(RankTls::Load(good));
  ASSERT_TRUE(RankTls::Load({})->empty());
  const auto said = [](RankTlsFiles files) {
    const auto tls = RankTls::Load(files);
    return tls ? "nothing" : tls.error().message;
  };
  EXPECT_THAT(said({good.certificate, good.key, ""}), HasSubstr("--tls-ca is missing"));
  EXPECT_THAT(said({good.certificate, "", good.ca}), HasSubstr("--tls-key is missing"));
  EXPECT_THAT(said({"", good.key, good.ca}), HasSubstr("--tls-cert is missing"));
  EXPECT_THAT(said({"/nowhere.pem", good.key, good.ca}),
              HasSubstr("--tls-cert: cannot open /nowhere.pem"));
  EXPECT_THAT(said({good.certificate, "/nowhere.key", good.ca}),
              HasSubstr("--tls-key: cannot open /nowhere.key"));
  EXPECT_THAT(said({good.certificate, Issue(Cluster(), "other").key, good.ca}),
              AllOf(HasSubstr("is not the private key of --tls-cert"), HasSubstr("mismatch")));
  EXPECT_THAT(said({good.certificate, good.key, good.key}), HasSubstr("--tls-ca"));
  ASSERT_EQ(chmod(good.key.c_str(), 0640), 0);
  EXPECT_THAT(said(good), HasSubstr("chmod 600 " + good.key));
}

}  // namespace
}  // namespace kvcake
