#include "server/api_error.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;

// OpenAI's clients make an exception of each.
TEST(ApiErrorTest, TheTypeFollowsTheStatus) {
  const auto type = [](int status) {
    return json::parse(ErrorBody({.status = status}))["error"]["type"];
  };
  EXPECT_EQ(type(400), "invalid_request_error");
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(403), "invalid_request_error");
  EXPECT_EQ(type(404), "not_found_error");
  EXPECT_EQ(type(413), "invalid_request_error");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "server_error");
  EXPECT_EQ(type(503), "service_unavailable_error");
  EXPECT_EQ(type(504), "server_error");
}

TEST(ApiErrorTest, WhatThereIsNoneOfIsNull) {
  EXPECT_EQ(json::parse(ErrorBody({.message = "m", .param = "p", .code = "c"})),
            json::parse(R"({"error": {"message": "m", "type": "invalid_request_error",
                                      "param": "p", "code": "c"}})"));
  const json error = json::parse(ErrorBody({.message = "m"}))["error"];
  EXPECT_TRUE(error.at("param").is_null());
  EXPECT_TRUE(error.at("code").is_null());
}

TEST(ApiErrorTest, WhatCanNeverBeAnsweredIsTheClients) {
  const auto status = [](ErrorCode code) { return ToApiError({code, "why"}).status; };
  EXPECT_EQ(status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(status(ErrorCode::kUnsupported), 400);
  EXPECT_EQ(status(ErrorCode::kResourceExhausted), 400);
  EXPECT_EQ(status(ErrorCode::kCancelled), 503);
  EXPECT_EQ(status(ErrorCode::kIo), 500);
  EXPECT_EQ(ToApiError({ErrorCode::kIo, "why"}).message, "why");
}

}  // namespace
}  // namespace kvcake
