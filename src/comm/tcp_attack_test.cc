// What strangers may try at the port of a worker, and at the ports of ranks that connect: with real
// sockets, against a cluster that has a key.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "comm/contract_testing.h"
#include "comm/mesh_hello.h"
#include "comm/tcp_join_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using boost::asio::ip::tcp;
using testing::HasSubstr;
using Answer = LeaderTalk::Answer;

ClusterKey KeyOf(const std::string& secret) { return *ClusterKey::Of(secret, "test"); }
const ClusterKey& Ours() {
  static const ClusterKey key = KeyOf("a secret of this cluster's");
  return key;
}

JoinOptions WithKey(const ClusterKey& key) {
  JoinOptions options = kPatient;
  options.key = key;
  return options;
}

// What an honest leader and an honest worker do, whatever else goes on.
void ExpectAChain(Waiting& worker) {
  const auto leader = GatherWorkers(std::vector{worker.address()}, {}, WithKey(Ours()));
  ASSERT_TRUE(leader) << leader.error().message;
  const auto joined = worker.Joined();
  ASSERT_TRUE(joined) << joined.error().message;
  const Bytes out = Pattern(1, 1000);
  Bytes in(1000);
  TransferWait sent;
  (*leader)->Send(0, 1, out, sent.Add(0));
  ExpectOk(ReceiveAndWait(*joined->comm, 1, 1, in));
  ExpectOk(sent.Wait(Patience(), "send"));
  EXPECT_EQ(in, out);
}

TEST(TcpAttackTest, WithoutTheKeyNobodyIsALeader) {
  Waiting worker(WithKey(Ours()));
  for (const ClusterKey& key : {kNoKey, KeyOf("a secret of another cluster's")}) {
    Caller stranger(worker);
    EXPECT_EQ(stranger.Call(key, {"127.0.0.1:1"}), Answer::kRefused);
    EXPECT_THAT(stranger.why(), HasSubstr("--cluster-key-file"));
    stranger.Go();
    EXPECT_EQ(stranger.Heard(), "") << "it has hung up";
  }
  ExpectAChain(worker);
}

// Told by a leader that has the wrong one, and by a worker that has none.
TEST(TcpAttackTest, KeysThatDifferAreAMistakeThatBothHearOf) {
  for (const auto& [one, other] : {std::pair(Ours(), KeyOf("a secret of another cluster's")),
                                   std::pair(kNoKey, Ours()), std::pair(Ours(), kNoKey)}) {
    Waiting worker(WithKey(one));
    const auto leader = GatherWorkers(std::vector{worker.address()}, {}, WithKey(other));
    ASSERT_FALSE(leader);
    EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(leader.error().message, HasSubstr("the leader's cluster key is not this worker's"));
    worker.Stop();
  }
}

// It says all that a worker does, and cannot prove it.
TEST(TcpAttackTest, WithoutTheKeyNobodyIsAWorker) {
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto impostor = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    std::string text;
    const ClusterKey guess = KeyOf("whatever it may be");
    WorkerTalk talk(guess);
    EXPECT_TRUE(talk.HearGreeting(HeardLine(socket, &text)));
    boost::asio::write(socket, boost::asio::buffer(talk.Greeting()));
    bool proved = true;
    EXPECT_TRUE(talk.HearCall(HeardLine(socket, &text), &proved));
    EXPECT_FALSE(proved);
    boost::asio::write(socket, boost::asio::buffer(talk.Ready({})));
    boost::system::error_code end;
    boost::asio::read(socket, boost::asio::dynamic_buffer(text), end);
    return text;
  });
  const std::string address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  const auto leader = GatherWorkers(std::vector{address}, {}, WithKey(Ours()));
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(leader.error().message, HasSubstr("does not know this server's cluster key"));
  EXPECT_EQ(impostor.get(), "") << "nothing more is said to it";
}

// Hands on what a leader and a worker say, and may change it.
class Relay {
 public:
  using Change = std::function<std::string(std::string)>;
  explicit Relay(
      const Waiting& worker, Change change = [](std::string line) { return line; })
      : change_(std::move(change)) {
    thread_ = std::thread([this, port = worker.port()] {
      tcp::socket leader = acceptor_.accept(), worker(context_);
      worker.connect({boost::asio::ip::address_v4::loopback(), port});
      std::string from_leader, from_worker;
      boost::system::error_code error;
      for (int line = 0; line < 3 && !error; ++line) {
        std::string said = Line(leader, &from_leader, error);
        if (error) return;
        lines_.push_back(said);
        boost::asio::write(worker, boost::asio::buffer(change_(std::move(said))), error);
        if (line == 2 || error) return;
        said = Line(worker, &from_worker, error);
        boost::asio::write(leader, boost::asio::buffer(said), error);
      }
    });
  }
  ~Relay() { (void)Lines(); }
  std::string address() const {
    return fmt::format("127.0.0.1:{}", acceptor_.local_endpoint().port());
  }
  // All that the leader said, or up to where it or the worker has hung up.
  const std::vector<std::string>& Lines() {
    if (thread_.joinable()) thread_.join();
    return lines_;
  }

 private:
  static std::string Line(tcp::socket& socket, std::string* text,
                          boost::system::error_code& error) {
    const size_t bytes =
        boost::asio::read_until(socket, boost::asio::dynamic_buffer(*text), '\n', error);
    const std::string line = text->substr(0, bytes);
    text->erase(0, bytes);
    return line;
  }

  const Change change_;
  boost::asio::io_context context_;
  tcp::acceptor acceptor_{context_, {boost::asio::ip::address_v4::loopback(), 0}};
  std::vector<std::string> lines_;
  std::thread thread_;
};

// Whom another one was faster than in the midst of its call: that is no mistake of its own.
TEST(TcpAttackTest, ALeaderThatComesSecondMayAskAgain) {
  Waiting worker;
  Caller first(worker);
  ASSERT_TRUE(first.Greet(kNoKey));
  Relay relay(worker, [&](std::string line) {
    if (!line.starts_with("call ")) return line;
    EXPECT_EQ(first.GoOn({"127.0.0.1:1"}), Answer::kReady);
    return line;
  });
  const auto second = GatherWorkers(std::vector{relay.address()}, {}, kPatient);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_THAT(second.error().message, HasSubstr("another leader has just called"));
  worker.Stop();
}

TEST(TcpAttackTest, WhatALeaderHasSaidCannotBePlayedBack) {
  std::vector<std::string> heard;
  {
    JoinOptions options = WithKey(Ours());
    options.connect = Seconds(0.2);  // what follows "go" is not handed on
    Waiting worker(options);
    Relay relay(worker);
    (void)GatherWorkers(std::vector{relay.address()}, {}, options);
    EXPECT_FALSE(worker.Joined());
    heard = relay.Lines();
  }
  ASSERT_EQ(heard.size(), 3u);
  Waiting worker(WithKey(Ours()));
  Caller stranger(worker);
  stranger.Say(heard[0]);
  EXPECT_THAT(stranger.HeardLine(), HasSubstr("kvcake-worker 2"));
  stranger.Say(heard[1]);
  EXPECT_THAT(stranger.HeardLine(), HasSubstr("refused"));
  ExpectAChain(worker);
}

// Not whoever has taken over its connection.
TEST(TcpAttackTest, AWorkerThatIsReadyGoesOnAtItsLeadersWordOnly) {
  Waiting worker(WithKey(Ours()));
  Caller leader(worker);
  ASSERT_EQ(leader.Call(Ours(), {"127.0.0.1:1"}), Answer::kReady);
  leader.Say("go " + std::string(64, '0') + "\n");
  EXPECT_EQ(leader.Heard(), "") << "it has hung up";
  ExpectAChain(worker);
}

// The roster, the rank and what the leader runs: all that a call says.
TEST(TcpAttackTest, ACallThatIsChangedOnItsWayIsRefused) {
  for (const auto& [what, with] :
       {std::pair(" 127.0.0.1:", " 127.0.0.2:"), std::pair(" 0 127", " 1 127.0.0.1:1 127"),
        std::pair(" 0 127", " 0 127.0.0.1:1 127")}) {
    SCOPED_TRACE(with);
    Waiting worker(WithKey(Ours()));
    bool changed = false;
    {
      Relay relay(worker, [&, what = what, with = with](std::string line) {
        const size_t at = line.find(what);
        if (at == std::string::npos) return line;
        changed = true;
        return line.replace(at, std::string(what).size(), with);
      });
      const auto leader = GatherWorkers(std::vector{relay.address()}, {}, WithKey(Ours()));
      ASSERT_FALSE(leader);
      EXPECT_THAT(leader.error().message, HasSubstr("it refuses"));
    }
    EXPECT_TRUE(changed);
    ExpectAChain(worker);
  }
}

TEST(TcpAttackTest, StrangersNeverTakeTheLeadersPlace) {
  Waiting worker(WithKey(Ours()));
  std::vector<std::unique_ptr<Caller>> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(std::make_unique<Caller>(worker));
    if (i % 3 == 0) continue;
    LeaderTalk talk(kNoKey);
    strangers.back()->Say(talk.Greeting());
    if (i % 3 == 1) strangers.back()->Say("call without end ");
  }
  Caller babbler(worker, std::string(1 << 20, 'x'));
  ExpectAChain(worker);
}

// However many come while a leader of another machine is half through: they displace each other.
TEST(TcpAttackTest, StrangersOfOneMachineDisplaceNoLeaderOfAnother) {
  JoinOptions options = WithKey(Ours());
  options.patience = Seconds(3600);
  Waiting worker(options);
  Caller leader(worker, "", "127.0.0.2");
  ASSERT_TRUE(leader.Greet(Ours()));
  std::vector<std::unique_ptr<Caller>> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(std::make_unique<Caller>(worker));
  EXPECT_EQ(strangers.front()->Heard(), "") << "it has made room";
  EXPECT_EQ(leader.GoOn({"127.0.0.1:1"}), Answer::kReady);
  worker.Stop();
}

TEST(TcpAttackTest, WithoutAKeyAWorkerConnectsWithThisMachineOnly) {
  Waiting worker;
  for (const std::string address : {"192.0.2.1:80", "example.org:443", "[2001:db8::1]:1",
                                    "127.0.0.1.example.org:1", "0.0.0.0:1", "127.1"}) {
    SCOPED_TRACE(address);
    Caller stranger(worker);
    EXPECT_EQ(stranger.Call(kNoKey, {"127.0.0.1:1", address}, 1), Answer::kRefused);
    EXPECT_THAT(stranger.why(), HasSubstr(address));
  }
  for (const std::string address : {"127.0.0.2:1", "localhost:1", "[::1]:1"}) {
    EXPECT_EQ(Caller(worker).Call(kNoKey, {address}), Answer::kReady) << address;
  }
}

TEST(TcpAttackTest, WithoutAKeyALeaderTellsNothingToOtherMachines) {
  const auto leader = GatherWorkers(std::vector<std::string>{"192.0.2.1:7100"}, {}, kPatient);
  ASSERT_FALSE(leader);
  EXPECT_EQ(leader.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(leader.error().message, HasSubstr("192.0.2.1:7100 is on another machine"));
  EXPECT_THAT(leader.error().message, HasSubstr("--cluster-key-file"));
}

// ---- ranks that connect

struct Mesh {
  std::vector<TcpListener> listeners;
  TcpCommOptions options;

  explicit Mesh(int size) {
    for (int rank = 0; rank < size; ++rank) {
      listeners.push_back(ListenLocally());
      options.addresses.push_back(fmt::format("127.0.0.1:{}", listeners[rank].port()));
    }
    options.timeout = Seconds(120);
    options.key = Ours();
    options.roster = {1, 2, 3};
  }
  std::future<Result<std::unique_ptr<Comm>>> Connect(int rank, TcpCommOptions options) {
    options.rank = rank;
    return std::async(std::launch::async,
                      [this, rank, options] { return ConnectTcp(listeners[rank], options); });
  }
};

// A caller of a rank, with what it makes of the rank's hello.
class MeshCaller {
 public:
  explicit MeshCaller(const TcpListener& listener, MeshHello hello) : told_(hello) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), listener.port()});
    boost::asio::write(socket_, boost::asio::buffer(&told_, sizeof(told_)));
    boost::asio::read(socket_, boost::asio::buffer(&heard_, sizeof(heard_)));
  }
  void Prove(const Digest& proof) {
    boost::system::error_code hung_up;  // as Heard will say
    boost::asio::write(socket_, boost::asio::buffer(&proof, sizeof(proof)), hung_up);
  }
  MeshProof Proof(const ClusterKey& key, const Digest& roster) const {
    return {key, roster, told_, heard_};
  }
  // The rank's proof, if it has one for this caller.
  std::optional<Digest> Heard() {
    Digest proof;
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::buffer(&proof, sizeof(proof)), error);
    return error ? std::nullopt : std::optional(proof);
  }
  const MeshHello& heard() const { return heard_; }

 private:
  boost::asio::io_context context_;
  tcp::socket socket_{context_};
  MeshHello told_, heard_;
};

TEST(TcpAttackTest, WithoutTheKeyNobodyIsARank) {
  Mesh mesh(2);
  auto rank_0 = mesh.Connect(0, mesh.options);
  const MeshHello hello{.size = 2, .from = 1, .to = 0};
  const Digest other_roster = {9};
  for (const bool knows_key : {false, true}) {
    MeshCaller stranger(mesh.listeners[0], hello);
    const ClusterKey key = knows_key ? Ours() : KeyOf("a secret of another cluster's");
    stranger.Prove(stranger.Proof(key, knows_key ? other_roster : mesh.options.roster).OfCaller());
    EXPECT_EQ(stranger.Heard(), std::nullopt);
  }
  {  // what it says itself comes back as nobody's proof
    MeshCaller mirror(mesh.listeners[0], hello);
    mirror.Prove(mirror.Proof(Ours(), mesh.options.roster).OfCalled());
    EXPECT_EQ(mirror.Heard(), std::nullopt);
  }
  {  // nor does a proof for another rank's connection
    MeshHello to_other = hello;
    to_other.to = 5;
    MeshCaller caller(mesh.listeners[0], hello);
    caller.Prove(MeshProof(Ours(), mesh.options.roster, to_other, caller.heard()).OfCaller());
    EXPECT_EQ(caller.Heard(), std::nullopt);
  }
  // Nor who has the key and is no rank above this one, or means another rank or chain.
  for (const MeshHello& wrong :
       {MeshHello{.size = 2, .from = 0, .to = 0}, MeshHello{.size = 2, .from = 2, .to = 0},
        MeshHello{.size = 3, .from = 1, .to = 0}, MeshHello{.size = 2, .from = 1, .to = 1}}) {
    MeshCaller caller(mesh.listeners[0], wrong);
    caller.Prove(caller.Proof(Ours(), mesh.options.roster).OfCaller());
    EXPECT_EQ(caller.Heard(), std::nullopt) << wrong.from << " calls " << wrong.to;
  }
  const auto rank_1 = mesh.Connect(1, mesh.options).get();
  ASSERT_TRUE(rank_1) << rank_1.error().message;
  const auto first = rank_0.get();
  ASSERT_TRUE(first) << first.error().message;
  Bytes in(10);
  TransferWait sent;
  const Bytes out = Pattern(1, 10);
  (*rank_1)->Send(0, 1, out, sent.Add(0));
  ExpectOk(ReceiveAndWait(**first, 1, 1, in));
  ExpectOk(sent.Wait(Patience(), "send"));
  EXPECT_EQ(in, out);
}

TEST(TcpAttackTest, ARankThatCannotProveWhoItIsIsAnError) {
  for (const bool other_chain : {false, true}) {
    Mesh mesh(2);
    TcpCommOptions others = mesh.options;
    others.timeout = Seconds(10);
    (other_chain ? others.roster[0] : others.facts[0]) ^= 1;
    if (!other_chain) others.key = kNoKey;
    auto rank_0 = mesh.Connect(0, others);
    TcpCommOptions ours = mesh.options;
    ours.timeout = Seconds(10);
    const auto rank_1 = mesh.Connect(1, ours).get();
    ASSERT_FALSE(rank_1);
    EXPECT_THAT(rank_1.error().message, HasSubstr("has not proved that it has this chain's"));
    EXPECT_THAT(rank_0.get().error().message, HasSubstr("has not proved that it has this chain's"));
  }
}

// The other rank's time is up first, say: it hangs up on whoever calls then.
TEST(TcpAttackTest, WhatWasNotProvedIsSaidThoughTheNextCallsEndSooner) {
  const TcpListener rank_1 = ListenLocally();
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  const auto port = acceptor.local_endpoint().port();
  std::atomic<bool> over = false;
  auto stranger = std::async(std::launch::async, [&] {
    for (bool first = true;; first = false) {
      tcp::socket socket = acceptor.accept();
      if (over) return;
      if (!first) continue;
      MeshHello heard, told{.size = 2, .from = 0, .to = 1};
      Digest proof;
      boost::asio::read(socket, boost::asio::buffer(&heard, sizeof(heard)));
      boost::asio::write(socket, boost::asio::buffer(&told, sizeof(told)));
      boost::asio::read(socket, boost::asio::buffer(&proof, sizeof(proof)));
    }
  });
  const auto joined =
      ConnectTcp(rank_1, {.rank = 1,
                          .addresses = {fmt::format("127.0.0.1:{}", port), "127.0.0.1:9"},
                          .timeout = Seconds(5),
                          .key = Ours()});
  over = true;
  tcp::socket(context).connect({boost::asio::ip::address_v4::loopback(), port});
  stranger.get();
  ASSERT_FALSE(joined);
  EXPECT_THAT(joined.error().message, HasSubstr("has not proved that it has this chain's"));
}

// It takes the caller's proof, and has none of its own.
TEST(TcpAttackTest, WhoAnswersForARankIsAskedToo) {
  const TcpListener rank_1 = ListenLocally();
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto impostor = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    MeshHello heard, told{.size = 2, .from = 0, .to = 1};
    Digest proof;
    boost::asio::read(socket, boost::asio::buffer(&heard, sizeof(heard)));
    boost::asio::write(socket, boost::asio::buffer(&told, sizeof(told)));
    boost::asio::read(socket, boost::asio::buffer(&proof, sizeof(proof)));
    boost::asio::write(socket, boost::asio::buffer(&proof, sizeof(proof)));  // its own
  });
  const auto joined = ConnectTcp(
      rank_1,
      {.rank = 1,
       .addresses = {fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port()), "127.0.0.1:9"},
       .timeout = Seconds(120),
       .key = Ours()});
  impostor.get();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(joined.error().message, HasSubstr("has not proved that it is rank 0"));
}

// A list of addresses in another order, say.
TEST(TcpAttackTest, WhoAnswersAsAnotherRankIsAMistake) {
  const TcpListener rank_1 = ListenLocally();
  boost::asio::io_context context;
  tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  auto other = std::async(std::launch::async, [&] {
    tcp::socket socket = acceptor.accept();
    MeshHello heard, told{.size = 2, .from = 1, .to = 1};
    boost::asio::read(socket, boost::asio::buffer(&heard, sizeof(heard)));
    boost::asio::write(socket, boost::asio::buffer(&told, sizeof(told)));
    char nothing;
    boost::system::error_code end;
    return boost::asio::read(socket, boost::asio::buffer(&nothing, 1), end);
  });
  const std::string address = fmt::format("127.0.0.1:{}", acceptor.local_endpoint().port());
  const auto joined = ConnectTcp(
      rank_1,
      {.rank = 1, .addresses = {address, "127.0.0.1:9"}, .timeout = Seconds(120), .key = Ours()});
  EXPECT_EQ(other.get(), 0u) << "nothing is proved to it";
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(joined.error().message,
              HasSubstr(address + " is rank 1 of 2, where rank 0 of 2 was expected"));
}

TEST(TcpAttackTest, StrangersNeverTakeARanksPlace) {
  Mesh mesh(2);
  auto rank_0 = mesh.Connect(0, mesh.options);
  boost::asio::io_context context;
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 300; ++i) {
    silent.emplace_back(context);
    silent.back().connect({boost::asio::ip::address_v4::loopback(), mesh.listeners[0].port()});
  }
  // The oldest are hung up on.
  char nothing;
  boost::system::error_code error;
  EXPECT_EQ(boost::asio::read(silent.front(), boost::asio::buffer(&nothing, 1), error), 0u);
  EXPECT_TRUE(error);
  const auto rank_1 = mesh.Connect(1, mesh.options).get();
  ASSERT_TRUE(rank_1) << rank_1.error().message;
  EXPECT_TRUE(rank_0.get());
}

}  // namespace
}  // namespace kvcake
