#include "base/json_field.h"

#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

using nlohmann::json;

const json kRoot = json::parse(R"({
  "name": "x", "flag": true, "count": 3, "share": 0.5, "nothing": null,
  "large": 18446744073709551615,
  "list": [{"size": 7}, "y"]})");

template <typename T>
std::string Refused(const Result<T>& result, ErrorCode code = ErrorCode::kInvalidArgument) {
  EXPECT_FALSE(result);
  if (result) return "";
  EXPECT_EQ(result.error().code, code);
  return result.error().message;
}

TEST(JsonFieldTest, ReadsWhatIsThere) {
  const JsonField root(kRoot, "f.json");
  EXPECT_EQ(root["name"].Text(), "x");
  EXPECT_EQ(root["name"].Text("absent", 1), "x");
  EXPECT_EQ(root["flag"].Flag(), true);
  EXPECT_EQ(root["count"].Int(3, 3), 3);
  EXPECT_EQ(root["count"].Number(0, 3), 3);
  EXPECT_EQ(root["share"].Number(0.5, 1), 0.5);
  EXPECT_EQ(root["list"].ArraySize(), 2u);
  EXPECT_EQ(root["list"][0]["size"].Int(0, 10), 7);
  EXPECT_TRUE(root["list"][0].CheckObject());
}

TEST(JsonFieldTest, NullAndAbsentCountAsTheDefault) {
  const JsonField root(kRoot, "f.json");
  for (const JsonField& field : {root["nothing"], root["no"], root["no"]["such"], root["list"][2],
                                 root["name"][0], root["name"]["member"]}) {
    EXPECT_TRUE(field.null());
    EXPECT_EQ(field.Text("t"), "t");
    EXPECT_EQ(field.Flag(true), true);
    EXPECT_EQ(field.Int(0, 1, 5), 5) << "a default may be outside";
    EXPECT_EQ(field.Number(0, 1, 5), 5);
    EXPECT_EQ(Refused(field.Flag()),
              "f.json: " + field.path() + " is missing; it must be true or false");
  }
  EXPECT_FALSE(root["nothing"].absent());
  EXPECT_TRUE(root["no"].absent());
}

TEST(JsonFieldTest, ErrorsNameTheFileTheFieldAndWhatItMustBe) {
  const JsonField root(kRoot, "f.json");
  EXPECT_EQ(Refused(root["list"][0]["size"].Int(8, 9)),
            "f.json: list[0].size is 7; it must be a whole number from 8 to 9");
  EXPECT_EQ(Refused(root["share"].Int(0, 9)),
            "f.json: share is 0.5; it must be a whole number from 0 to 9");
  EXPECT_EQ(Refused(root["large"].Int(0, std::numeric_limits<int>::max())),
            "f.json: large is 18446744073709551615; it must be a whole number of at least 0");
  EXPECT_EQ(Refused(root["large"].Int(-1, 9)),
            "f.json: large is 18446744073709551615; it must be a whole number from -1 to 9");
  EXPECT_EQ(Refused(root["flag"].Number(0, 1)),
            "f.json: flag is true; it must be a number from 0 to 1");
  EXPECT_EQ(Refused(root["list"].Text("")), "f.json: list is a list; it must be text");
  EXPECT_EQ(Refused(root["name"].Text("", 0)),
            "f.json: name has 1 bytes, more than the limit of 0");
  EXPECT_EQ(Refused(root["name"].ArraySize()), "f.json: name is \"x\"; it must be a list");
  EXPECT_EQ(Refused(root["list"].AsRoot()[1].CheckObject()),
            "f.json: list: [1] is \"y\"; it must be an object");
  EXPECT_EQ(Refused(Status(root["name"].Bad("is odd"))), "f.json: name is odd");
  EXPECT_EQ(Refused(Status(root.Bad("is odd"))), "f.json: is odd");
  EXPECT_EQ(Refused(Status(JsonField(kRoot, "")["name"].Bad("is odd"))), "name is odd");
  EXPECT_EQ(Refused(Status(root["name"].Refuse("x")), ErrorCode::kUnsupported),
            "f.json: name x is not supported");
}

}  // namespace
}  // namespace kvcake
