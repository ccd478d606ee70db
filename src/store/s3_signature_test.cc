#include "store/s3_signature.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

// AWS's examples: "Signature Calculations for the Authorization Header: Transferring Payload in a
// Single Chunk", https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
const S3Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
constexpr const char* kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string SignatureOf(SignableRequest request) {
  request.headers.emplace_back("Host", "examplebucket.s3.amazonaws.com");
  request.headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  request.headers.emplace_back("x-amz-date", AmzDate(1369353600));
  const std::string value = Authorization(request, kExample, {.region = "us-east-1"});
  return value.substr(value.rfind('=') + 1);
}

TEST(S3SignatureTest, AwssExamplesAreSignedAsAwsSays) {
  EXPECT_EQ(AmzDate(1369353600), "20130524T000000Z");
  EXPECT_EQ(SignatureOf({.method = "GET",
                         .path = "/test.txt",
                         .headers = {{"range", "bytes=0-9"}},
                         .payload_sha256 = kEmpty}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(SignatureOf({.method = "PUT",
                         .path = "/test%24file.text",
                         .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         .payload_sha256 =
                             "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(
      SignatureOf(
          {.method = "GET", .path = "/", .query = {{"lifecycle", ""}}, .payload_sha256 = kEmpty}),
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(SignatureOf({.method = "GET",
                         .path = "/",
                         .query = {{"prefix", "J"}, {"max-keys", "2"}},
                         .payload_sha256 = kEmpty}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// Those of AWS's test suite for Signature Version 4, whose service is "service".
TEST(S3SignatureTest, TheTestSuitesRequestsAreSignedAsItSays) {
  const S3Credentials credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  const auto sign = [&](SignableRequest request) {
    request.headers.emplace_back("Host", "example.amazonaws.com");
    request.headers.emplace_back("X-Amz-Date", "20150830T123600Z");
    request.payload_sha256 = kEmpty;
    return Authorization(request, credentials, {.region = "us-east-1", .service = "service"});
  };
  EXPECT_EQ(sign({.method = "GET", .path = "/", .payload_sha256 = ""}),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request,"
            "SignedHeaders=host;x-amz-date,"
            "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  const auto signature = [&](SignableRequest request) {
    const std::string value = sign(std::move(request));
    return value.substr(value.rfind('=') + 1);
  };
  // get-vanilla-query-order-key-case
  EXPECT_EQ(signature({.method = "GET",
                       .path = "/",
                       .query = {{"Param2", "value2"}, {"Param1", "value1"}},
                       .payload_sha256 = ""}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  // get-header-value-trim
  EXPECT_EQ(signature({.method = "GET",
                       .path = "/",
                       .headers = {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
                       .payload_sha256 = ""}),
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
}

TEST(S3SignatureTest, NamesAreEncodedAsAwsWants) {
  EXPECT_EQ(UriEncode("a b/c+d~e%"), "a%20b%2Fc%2Bd~e%25");
  EXPECT_EQ(UriEncode("a b/c", true), "a%20b/c");
  EXPECT_EQ(UriEncode("\xc3\xbc"), "%C3%BC");
  EXPECT_EQ(UriEncode(UrlQuery{{"b", "2"}, {"a", "x=y"}, {"a", "1"}}), "a=1&a=x%3Dy&b=2");
}

// A session's token is signed like every other header.
TEST(S3SignatureTest, EveryPartChangesTheSignature) {
  const SignableRequest request{.method = "GET",
                                .path = "/a",
                                .query = {{"q", "1"}},
                                .headers = {{"x-amz-security-token", "t"}},
                                .payload_sha256 = kEmpty};
  const std::string signature = SignatureOf(request);
  const auto changed = [&](auto change) {
    SignableRequest other = request;
    change(other);
    return SignatureOf(other);
  };
  EXPECT_NE(changed([](auto& r) { r.method = "PUT"; }), signature);
  EXPECT_NE(changed([](auto& r) { r.path = "/b"; }), signature);
  EXPECT_NE(changed([](auto& r) { r.query[0].second = "2"; }), signature);
  EXPECT_NE(changed([](auto& r) { r.headers[0].second = "u"; }), signature);
  EXPECT_NE(changed([](auto& r) { r.payload_sha256[0] = '0'; }), signature);
}

}  // namespace
}  // namespace kvcake
