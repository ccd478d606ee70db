// Templates come with models, and what they are told with requests: neither ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <optional>
#include <stdexcept>

#include "base/peak_rss.h"
#include "jinja/template.h"
#include "jinja/value.h"

namespace kvcake::jinja {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

Result<std::string> Made(const std::string& source, const ordered_json& context = {{"a", 1}},
                         const Limits& limits = {}) {
  ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  return parsed.Render(context, limits);
}

std::string Times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TemplateLimits, PrecisionsAreBounded) {
  const std::string zeros = "." + std::string(1000, '0');
  EXPECT_EQ(Made("{{ '%.1000f' % 1 }}").value_or(""), "1" + zeros);
  for (const char* const source :
       {"{{ '%.1000f' % -1e308 }}", "{{ '{:.1000f}'.format(-1e308) }}"}) {
    const std::string made = Made(source).value_or("");
    EXPECT_EQ(made.size(), 1 + 309 + zeros.size()) << source;
    EXPECT_TRUE(made.starts_with("-1000000000000000010979") && made.ends_with(zeros)) << source;
  }
  for (const char* const source :
       {"{{ '%.1001f' % 1 }}", "{{ '%.*f' % (1001, 1) }}", "{{ '{:.1001f}'.format(1) }}",
        "{{ '{:.{}}'.format('a', 1001) }}", "{{ '%.3000000000f' % 1 }}"}) {
    EXPECT_FALSE(Made(source)) << source;
  }
  EXPECT_EQ(Made("{{ 1.5 | round(1000000000) }}").value_or(""), "1.5");
  EXPECT_EQ(Made("{{ 1e308 | round(330) }}").value_or(""), "1e+308");
}

// What would be refused when it is done is not begun.
TEST(TemplateLimits, NoTextOnTheWayTakesMuchMoreThanTheLimit) {
#ifdef KVCAKE_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps what is freed, and memory of its own";
#endif
  const Limits limits{.output_bytes = 1 << 20};
  const ordered_json context = {{"x", std::string(1 << 20, 'x')}, {"y", std::string(300, 'y')}};
  ResetPeakRss();
  const uint64_t before = PeakRssBytes();
  for (const char* const source :
       {"{{ x * 300 }}", "{{ x.join(y) }}", "{{ y | join(x) }}", "{{ [x] * 300 }}",
        "{{ {1: x, 2: x, 3: [x] * 300} }}", "{{ y | replace('y', x) }}", "{{ y | replace('', x) }}",
        "{{ ([x] * 300) | tojson }}", "{{ ([1] * 300) | tojson(indent=x) }}",
        "{{ [1] | tojson(indent=300000000) }}", "{{ 'a\nb' | indent(300000000) }}",
        "{{ (y | list | join('\n')) | indent(x) }}", "{{ '\t'.expandtabs(300000000) }}"}) {
    const auto made = Made(source, context, limits);
    ASSERT_FALSE(made) << source;
    EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted) << source << made.error().message;
    EXPECT_LT(PeakRssBytes(), before + (100 << 20)) << source;
  }
}

TEST(TemplateLimits, WhatIsWrittenBitByBitIsBoundedToo) {
  const ordered_json context = {{"x", std::string(100, 'x')}};
  const std::string loop = "{% for i in range(10) %}{{ x }}{% endfor %}";
  for (const std::string& source : {loop, "{% set y %}" + loop + "{% endset %}{{ y }}",
                                    "{% macro m() %}" + loop + "{% endmacro %}{{ m() }}"}) {
    EXPECT_EQ(Made(source, context, {.output_bytes = 1000}).value_or("").size(), 1000u) << source;
    const auto made = Made(source, context, {.output_bytes = 999});
    ASSERT_FALSE(made) << source;
    EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted) << source;
  }
}

// Macros and name spaces hold what holds them.
TEST(TemplateLimits, ARenderingLeavesNothingBehind) {
#ifdef KVCAKE_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps what is freed; but it finds what is lost by itself";
#endif
  const ordered_json context = {{"x", std::string(1 << 20, 'x')}};
  for (const char* const source :
       {"{% macro m() %}{{ x | length }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x=x) %}{% set ns.me = ns %}{{ ns.x | length }}"}) {
    EXPECT_EQ(Made(source, context).value_or(""), "1048576");
    const uint64_t before = RssBytes();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(Made(source, context));
    EXPECT_LT(RssBytes(), before + (50 << 20)) << source;
  }
}

// Memory may run out anywhere; here it is asked for more than any string can have.
TEST(TemplateLimits, ARenderingThatMemoryEndsLeavesItsLimitsToNobody) {
  const Limits none{.steps = UINT64_MAX, .output_bytes = SIZE_MAX};
  EXPECT_THROW((void)Made("{{ 'a'.ljust(4611686018427387905) }}", {{"a", 1}}, none),
               std::length_error);
  EXPECT_EQ(Budget::Current(), nullptr);
  EXPECT_EQ(Made("{{ 'a' }}").value_or(""), "a");
}

TEST(TemplateLimits, ARangeIsAsLongAsInTheSandbox) {
  EXPECT_EQ(Made("{{ range(100000) | length }}").value_or(""), "100000");
  EXPECT_THAT(Made("{{ range(100001) | length }}").error().message, HasSubstr("100000"));
  EXPECT_FALSE(Made("{% set x = range(0, -9000000000000000000, -1) %}"));
}

TEST(TemplateLimits, ListsAreNestedAsDeepAsTheirEndCanFollow) {
  const auto nested = [](int depth, const char* value) {
    return Made("{% set ns = namespace(x=1) %}{% for i in range(" + std::to_string(depth) +
                ") %}{% set ns.x = " + value + " %}{% endfor %}done");
  };
  for (const char* const value : {"[ns.x]", "(ns.x,)", "{'a': ns.x}"}) {
    EXPECT_EQ(nested(200, value).value_or(""), "done");
    const auto made = nested(99'999, value);
    ASSERT_FALSE(made) << value;
    EXPECT_THAT(made.error().message, HasSubstr("nested more than 200 deep")) << value;
  }
}

TEST(TemplateLimits, WhatATemplateIsToldIsNestedAsDeepAsItCanBeFollowed) {
  const auto made = [](int depth) {
    ordered_json nested = 1;
    for (int i = 0; i < depth; ++i) {
      ordered_json around = ordered_json::array();
      around.push_back(std::move(nested));
      nested = std::move(around);
    }
    ordered_json context;
    context["a"] = std::move(nested);
    return Made("x", context);
  };
  EXPECT_EQ(made(199).value_or(""), "x");
  EXPECT_THAT(made(200).error().message, HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(made(100'000).error().message, HasSubstr("nests deeper than it may"));
}

TEST(TemplateLimits, WhatIsParsedIsNestedAsDeepAsItCanBeFollowed) {
  const auto blocks = [](int depth) {
    return Made(Times(depth, "{% if a %}") + "x" + Times(depth, "{% endif %}"));
  };
  EXPECT_EQ(blocks(59).value_or(""), "x");
  EXPECT_THAT(blocks(60).error().message, HasSubstr("blocks are nested too deep"));
  EXPECT_THAT(blocks(100'000).error().message, HasSubstr("blocks are nested too deep"));
  for (const std::string& expression :
       {Times(100'000, "(") + "a" + Times(100'000, ")"),
        Times(100'000, "[") + "a" + Times(100'000, "]"),
        Times(100'000, "{1: ") + "a" + Times(100'000, "}"),
        Times(100'000, "a[") + "a" + Times(100'000, "]"),
        Times(100'000, "a(") + "a" + Times(100'000, ")"), Times(100'000, "not ") + "a",
        Times(100'000, "-") + "a", "a" + Times(100'000, ".b"), "a" + Times(100'000, "[0]"),
        "a" + Times(100'000, "|trim"), "a" + Times(100'000, "+a"), "a" + Times(100'000, "()"),
        "a" + Times(100'000, " if a else a"), "a" + Times(100'000, " and a"),
        "a" + Times(100'000, "**a")}) {
    EXPECT_FALSE(Template::Parse("{{ " + expression + " }}")) << expression.substr(0, 20);
  }
  const std::string target = Times(100'000, "(") + "a" + Times(100'000, ")");
  EXPECT_FALSE(Template::Parse("{% set " + target + " = 1 %}"));
  EXPECT_FALSE(Template::Parse("{% for " + target + " in a %}{% endfor %}"));
  const auto chain = [](int count) {
    return Made("{% if not a %}" + Times(count, "{% elif not a %}") + "{% else %}x{% endif %}");
  };
  EXPECT_EQ(chain(200).value_or(""), "x");
  EXPECT_THAT(chain(201).error().message, HasSubstr("an if has too many elif"));
  EXPECT_THAT(chain(100'000).error().message, HasSubstr("an if has too many elif"));
}

TEST(TemplateLimits, WhatStandsSideBySideIsNotNested) {
  for (const char* const part :
       {"{% if a %}x{% endif %}", "{% for i in [1] %}x{% endfor %}", "{{ 'x' if not false }}",
        "{% if not not a %}x{% endif %}", "{{ 'x' if -1 }}", "{{ ('x') }}", "{{ ['x'][0] }}",
        "{% for (i, j) in [('x', 1)] %}{{ i }}{% endfor %}", "{{ {'x': 'x'}['x'] | trim }}"}) {
    EXPECT_EQ(Made(Times(200, part)).value_or(""), Times(200, "x")) << part;
  }
}

TEST(TemplateLimits, WhatPythonKeepsForItselfIsNotLookedFor) {
  for (const char* const source : {"{{ 'a'.__class__ }}", "{{ 'a'['__class__'] }}",
                                   "{{ [1].__len__() }}", "{{ a.__init__ is defined }}"}) {
    const auto made = Made(source);
    ASSERT_FALSE(made) << source << " makes " << *made;
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(made.error().message, HasSubstr("the attribute __"));
  }
}

// As a person's clock says it, who asks what day it is.
TEST(TemplateLimits, NowIsTheMachinesLocalTime) {
  const char* const zone = std::getenv("TZ");
  const std::optional<std::string> before = zone ? std::optional<std::string>(zone) : std::nullopt;
  setenv("TZ", "East-5:30", 1);
  tzset();
  const auto now = [] {
    const std::time_t seconds = std::time(nullptr) + 5 * 3600 + 30 * 60;
    char text[100];
    std::tm utc{};
    std::strftime(text, sizeof(text), "%d %B %Y %H:%M", gmtime_r(&seconds, &utc));
    return std::string(text);
  };
  const std::string earliest = now();
  const std::string made = Made("{{ strftime_now('%d %B %Y %H:%M') }}").value_or("");
  EXPECT_THAT(made, testing::AnyOf(earliest, now()));
  EXPECT_EQ(Made("{{ strftime_now('%c' * 100) | length }}").value_or(""), "2400");
  before ? setenv("TZ", before->c_str(), 1) : unsetenv("TZ");
  tzset();
}

// Python's integers have no end.
TEST(TemplateLimits, WhatWouldBeAnIntegerBeyond64BitsIsAnErrorAndNoOther) {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const std::string& expression :
       {std::string("9223372036854775807 + 1"), std::string("-9223372036854775807 - 2"),
        std::string("3037000500 * 3037000500"), std::string("2 ** 63"), std::string("10 ** 19"),
        std::string("(-2) ** 65"), std::string("9223372036854775808"), "-" + least,
        least + " // -1", least + " | abs", std::string("1e19 | int"), std::string("-1e19 | int"),
        std::string("1e19 | round(0, 'ceil')"), std::string("'9223372036854775808' | int"),
        std::string("'-9223372036854775809' | int"), std::string("'18446744073709551617' | int"),
        std::string("9223372036854775807 | round(-1)"),
        std::string("[2, 9223372036854775807] | sum")}) {
    const auto made = Made("{{ " + expression + " }}");
    ASSERT_FALSE(made) << expression << " makes " << *made;
    EXPECT_EQ(made.error().code, ErrorCode::kUnsupported) << expression;
    EXPECT_THAT(made.error().message, HasSubstr("integer beyond 64 bits")) << expression;
  }
}

TEST(TemplateLimits, ANumberThatIsTooLargeIsNoOther) {
  EXPECT_EQ(Made("{{ n }}", {{"n", INT64_MAX}}).value_or(""), "9223372036854775807");
  const auto made = Made("{{ n }}", {{"n", static_cast<uint64_t>(INT64_MAX) + 1}});
  ASSERT_FALSE(made) << *made;
  EXPECT_THAT(made.error().message, HasSubstr("integers beyond 64 bits"));
}

}  // namespace
}  // namespace kvcake::jinja
