// What a client bounds, whatever a server does; the tests of S3's stores have the rest.
#include "store/curl_client.h"

#include <gmock/gmock.h>

#include <future>

#include "store/s3_server_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

class CurlClientTest : public testing::Test {
 protected:
  using Reply = Result<CurlReply>;

  std::future<Reply> Send(TimePoint until = TimePoint::max(), bool is_wanted = true) {
    const auto reply = std::make_shared<std::promise<Reply>>();
    CurlClient* const client = client_.get();  // while `client_` may be reset
    client->Post([=, this] {
      client->Send({.url = server_.endpoint() + "/bucket",
                    .until = until,
                    .is_wanted = [=] { return is_wanted; },
                    .done = [=](Reply got) { reply->set_value(std::move(got)); }});
    });
    return reply->get_future();
  }

  S3Server server_;
  std::unique_ptr<CurlClient> client_ =
      CurlClient::Open({.connections = 1, .stall_timeout = Seconds(3600)}).value();
};

TEST_F(CurlClientTest, WhatWaitsForAConnectionWaitsNoLongerThanItMay) {
  server_.SetFault([](const S3Seen&) { return S3Fault{.hangs = true}; });
  auto before = Send();
  const Reply late = Send(Clock::Real().Now() + Seconds(0.05)).get();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message, HasSubstr("too many requests were before it"));
  server_.CutConnections();
  EXPECT_FALSE(before.get());
}

TEST_F(CurlClientTest, WhatNobodyWantsAnyMoreDoesNotWaitForAConnection) {
  server_.SetFault([](const S3Seen&) { return S3Fault{.hangs = true}; });
  auto before = Send();
  auto unwanted = Send(TimePoint::max(), /*is_wanted=*/false);
  ASSERT_EQ(unwanted.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(unwanted.get().error().code, ErrorCode::kCancelled);
  client_.reset();
  EXPECT_FALSE(before.get());
}

TEST_F(CurlClientTest, AClientThatIsDestroyedAnswersWhatIsUnderWayAndWhatWaits) {
  server_.SetFault([](const S3Seen&) { return S3Fault{.hangs = true}; });
  std::future<Reply> replies[] = {Send(), Send()};
  client_.reset();
  for (auto& reply : replies) EXPECT_EQ(reply.get().error().code, ErrorCode::kCancelled);
}

TEST_F(CurlClientTest, WhatIsPutOffOnceItIsClosedIsCalledAtOnce) {
  std::promise<void> called;
  client_->Post([&] {
    client_->Close();
    // Behind what ends with the client.
    client_->Post([&] { client_->After(Seconds(3600), [&] { called.set_value(); }); });
  });
  ASSERT_EQ(called.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST_F(CurlClientTest, NoMoreThanSomeHeadersAreKept) {
  S3Fault fault{.status = 200, .body = "a body"};
  server_.SetFault([&](const S3Seen&) { return fault; });
  for (int i = 0; i < 300; ++i) fault.headers["x-" + std::to_string(i)] = "a value";
  EXPECT_EQ(Send().get()->headers.size(), 256u);
  fault.headers.clear();
  for (int i = 0; i < 10; ++i) fault.headers["x-" + std::to_string(i)] = std::string(10000, 'v');
  const Reply reply = Send().get();
  EXPECT_EQ(reply->text, "a body");
  size_t bytes = 0;
  for (const auto& [name, value] : reply->headers) bytes += name.size() + value.size();
  EXPECT_GT(bytes, 50'000u);
  EXPECT_LE(bytes, 64u << 10);
}

}  // namespace
}  // namespace kvcake
