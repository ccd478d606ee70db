#include "store/name_lookup.h"

#include <gmock/gmock.h>

#include <future>
#include <new>
#include <optional>

namespace kvcake {
namespace {

using boost::system::error_code;
using testing::ElementsAre;

class NameLookupTest : public testing::Test {
 protected:
  // Returns what is found, however long it takes.
  NameLookup::Endpoints Find(NameLookup& lookup, const std::string& host, error_code* error) {
    std::optional<NameLookup::Endpoints> endpoints;
    lookup.Start(host, 7, [&](error_code failed, const NameLookup::Endpoints& found) {
      *error = failed;
      endpoints = found;
    });
    EXPECT_FALSE(endpoints) << "never from within Start";
    while (!endpoints) context_.run_one();
    return *endpoints;
  }

  boost::asio::io_context context_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      context_.get_executor()};
};

TEST_F(NameLookupTest, FindsNamesAndTakesAddressesAsTheyAre) {
  error_code error;
  for (const char* const host : {"127.0.0.1", "::1"}) {
    NameLookup lookup(context_, [](auto&&...) -> NameLookup::Endpoints {
      ADD_FAILURE() << "an address is no name";
      return {};
    });
    EXPECT_THAT(Find(lookup, host, &error), ElementsAre(boost::asio::ip::tcp::endpoint{
                                                boost::asio::ip::make_address(host), 7}));
    EXPECT_FALSE(error);
  }
  NameLookup lookup(context_);
  const auto endpoints = Find(lookup, "localhost", &error);
  ASSERT_FALSE(error) << error.message();
  ASSERT_FALSE(endpoints.empty());
  EXPECT_TRUE(endpoints[0].address().is_loopback());
  EXPECT_EQ(endpoints[0].port(), 7);
}

TEST_F(NameLookupTest, SaysWhatFails) {
  NameLookup lookup(context_, [](const std::string&, uint16_t, error_code& failed) {
    failed = boost::asio::error::host_not_found;
    return NameLookup::Endpoints();
  });
  error_code error;
  EXPECT_TRUE(Find(lookup, "nowhere", &error).empty());
  EXPECT_EQ(error, boost::asio::error::host_not_found);
}

TEST_F(NameLookupTest, WhatIsThrownOnItsThreadIsToldAndEndsNothing) {
  NameLookup lookup(context_, [](auto&&...) -> NameLookup::Endpoints { throw std::bad_alloc(); });
  error_code error;
  EXPECT_TRUE(Find(lookup, "somewhere", &error).empty());
  EXPECT_EQ(error, boost::asio::error::no_memory);
}

// Neither its caller, nor its destructor, nor its context's.
TEST_F(NameLookupTest, NobodyWaitsForANameServerThatHangs) {
  // Shared with the thread, which may be the last to let go of them.
  const auto answers = std::make_shared<std::promise<void>>();
  const auto ended = std::make_shared<std::promise<void>>();
  {
    boost::asio::io_context context;
    NameLookup lookup(context, [answers, ended](auto&&...) {
      answers->get_future().wait();
      ended->set_value();
      return NameLookup::Endpoints(1);
    });
    lookup.Start("somewhere", 7, [](auto&&...) { ADD_FAILURE() << "it was cancelled"; });
    context.poll();
  }
  answers->set_value();
  ended->get_future().wait();
}

TEST_F(NameLookupTest, WhatIsFoundAfterItIsCancelledIsNotTold) {
  const auto resolving = std::make_shared<std::promise<void>>();
  NameLookup lookup(context_, [resolving](auto&&...) {
    resolving->set_value();
    return NameLookup::Endpoints(1);
  });
  lookup.Start("somewhere", 7, [](auto&&...) { ADD_FAILURE() << "it was cancelled"; });
  resolving->get_future().wait();
  lookup.Cancel();
  context_.poll();
}

}  // namespace
}  // namespace kvcake
