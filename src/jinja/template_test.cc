#include "jinja/template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/source_dir_testing.h"

namespace kvcake::jinja {
namespace {

Result<std::string> Rendered(const std::string& source, const nlohmann::ordered_json& context,
                             const Limits& limits = {}) {
  ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  return parsed.Render(context, limits);
}

TEST(Template, MakesWhatJinja2Makes) {
  std::ifstream file(SourceDir() + "/src/jinja/testdata/golden.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  ASSERT_GT(golden["cases"].size(), 300u);
  for (const auto& entry : golden["cases"]) {
    const auto source = entry["source"].get<std::string>();
    const auto text = Rendered(source, golden["context"]);
    if (entry["result"].is_null()) {
      EXPECT_FALSE(text) << source << " makes " << text.value_or("");
    } else {
      EXPECT_EQ(text.value_or("error: " + (text ? "" : text.error().message)),
                entry["result"].get<std::string>())
          << source;
    }
  }
}

TEST(Template, WhatIsNoTextIsNoTemplate) {
  for (const char* source : {"\xff", "{{ '\xc3' }}", "{{ a }}\xe2\x82", "\xed\xa0\x80"}) {
    const auto parsed = Template::Parse(source);
    ASSERT_FALSE(parsed) << source;
    EXPECT_EQ(parsed.error().message, "the template is not valid UTF-8");
  }
}

TEST(Template, WhatIsNotKnownIsNamedWithItsLineWhenParsed) {
  for (const auto& [source, message] : std::vector<std::pair<std::string, std::string>>{
           {"a\n{% include 'x' %}", "line 2: the tag include is not known"},
           {"\n\n{{ x | pprint }}", "line 3: the filter pprint is not known"},
           {"{{ x is escaped }}", "line 1: the test escaped is not known"},
           {"{{ x | map('pprint') }}", "line 1: the filter pprint is not known"},
           {"{{ x | selectattr('a', 'escaped') }}", "line 1: the test escaped is not known"}}) {
    const auto parsed = Template::Parse(source);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(parsed.error().message, message);
  }
}

TEST(Template, WhatIsNotKnownWhenItRunsIsNamedToo) {
  const auto text = Rendered("\n{{ s.encode() }}", {{"s", "\xc3\xb6"}});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(text.error().message, "line 2: the attribute encode of 'str' is not known");
}

// How much is left depends on whether the loop has looked ahead.
TEST(Template, WhatABrokenOffLoopLeavesOfAGeneratorIsNotKnown) {
  const std::string loop =
      "{% set g = l | map('string') %}{% for x in g %}{% if x == '2' %}"
      "{% break %}{% endif %}{{ x }}{% endfor %}";
  const nlohmann::ordered_json context = {{"l", {1, 2, 3}}};
  EXPECT_EQ(Rendered(loop, context).value_or(""), "1");
  for (const char* const use : {"{{ g | list }}", "{{ g }}", "{{ g | first }}", "{{ '3' in g }}"}) {
    const auto text = Rendered(loop + use, context);
    ASSERT_FALSE(text) << use << " makes " << *text;
    EXPECT_EQ(text.error().code, ErrorCode::kUnsupported) << use;
  }
  EXPECT_EQ(Rendered(loop + "{{ 'T' if g else 'F' }}", context).value_or(""), "1T");
  EXPECT_FALSE(Rendered(loop + "{{ g | length }}", context)) << "as of any generator";
}

TEST(Template, RoundingToMoreThanAnIntegerHasIsNotKnown) {
  const auto text =
      Rendered("{{ 7 | round(-9223372036854775807 - 1) }}", nlohmann::ordered_json::object());
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message, "line 1: an integer beyond 64 bits is not known");
}

TEST(Template, AHostileTemplateMeetsALimit) {
  for (const std::string source :
       {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 'a' * 1000000000 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{{ 'a'.center(1000000000) }}", "{{ 'a'.center(4611686018427387905) }}",
        "{{ 'a' | center(4611686018427387905) }}", "{{ 'ab'.zfill(4611686018427387906) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '{:1000000000}'.format(1) }}",
        "{{ '\t'.expandtabs(1000000000) }}", "{{ [1] | batch(1000000000, 1) | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}"}) {
    const auto text = Rendered(source, nlohmann::ordered_json::object());
    ASSERT_FALSE(text) << source;
    EXPECT_EQ(text.error().code, ErrorCode::kResourceExhausted) << text.error().message;
  }
}

TEST(Template, AHostileTemplatePaysForTheTextThatItLooksThrough) {
  const auto of = [](const std::string& part, int doublings, const std::string& rest) {
    return "{% set ns = namespace(x='" + part + "') %}{% for i in range(" +
           std::to_string(doublings) + ") %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}" + rest;
  };
  const auto often = [](const std::string& expression) {
    return "{% for i in range(99999) %}{% set y = " + expression + " %}{% endfor %}";
  };
  for (const std::string& source :
       {of("a", 20, often("ns.x.count('b')")), of("a", 20, often("ns.x.rfind('b')")),
        of("a", 20, often("ns.x.startswith('b')")), of("a", 20, often("ns.x.isascii()")),
        of("a", 20, "{% set z = ns.x ~ 'b' %}" + often("ns.x < z")),
        of("a", 20, "{% set d = {ns.x ~ 'b': 1} %}{% set z = ns.x ~ 'c' %}" + often("d.get(z)")),
        of("ab", 18, "{% set z = ns.x[:262144] ~ 'b' %}" + often("ns.x.find(z)")),
        of("ab", 18, "{% set z = ns.x[:262144] ~ 'b' %}" + often("z in ns.x")),
        of("ab", 18, "{% set z = ns.x[:262144] ~ 'b' %}" + often("ns.x | replace(z, '')")),
        of("b", 17, "{% set z = ns.x %}" + of("a", 17, "{{ ns.x.strip(z ~ 'a') }}")),
        of("a,", 21, "{{ ns.x.split(',') | length }}"), of("a ", 21, "{{ ns.x.split()[0] }}"),
        of("a,", 21, "{{ [1] | sort(attribute=ns.x) }}"),
        of("0.", 24, "{{ ['a'] | map(attribute=ns.x ~ '0') | list }}")}) {
    const auto text = Rendered(source, nlohmann::ordered_json::object());
    ASSERT_FALSE(text) << source;
    EXPECT_EQ(text.error().code, ErrorCode::kResourceExhausted) << text.error().message;
  }
}

// Steps bound memory, too: some forty bytes each.
TEST(Template, EachValueThatIsKeptIsAStep) {
  const nlohmann::ordered_json none = nlohmann::ordered_json::object();
  const auto renders = [&](const char* expression, uint64_t steps) {
    const std::string source = fmt::format("{{% set x = {} %}}", expression);
    return Rendered(source, none, {.steps = steps}).has_value();
  };
  EXPECT_TRUE(renders("range(1000)", 1'100));
  EXPECT_FALSE(renders("range(1000)", 900));
  EXPECT_FALSE(renders("[1] | slice(1000)", 3'000)) << "rows of nothing are objects";
  EXPECT_TRUE(renders("[1] | slice(1000)", 6'000));
  EXPECT_FALSE(renders("('a,' * 2000).rsplit(',')", 1'000'000)) << "each part moves the others";
}

TEST(Template, WhatIsCopiedIsPaidForByItsSize) {
  nlohmann::ordered_json context = {{"x", std::string(160'000, 'x')}};
  for (int i = 0; i < 10'000; ++i) context["l"].push_back(i);
  const auto renders = [&](const char* expression, uint64_t steps) {
    const std::string source = fmt::format(
        "{{% set g = l | map('abs') %}}{{% for i in range(100) %}}{{% set y = {} %}}{{% endfor %}}",
        expression);
    return Rendered(source, context, {.steps = steps}).has_value();
  };
  EXPECT_TRUE(renders("x", 150'000));
  for (const char* const expression : {"l | last", "g | first", "x | length", "x | safe"}) {
    EXPECT_FALSE(renders(expression, 150'000)) << expression;
    EXPECT_TRUE(renders(expression, 2'000'000)) << expression;
  }
}

TEST(Template, LookingForAKeyIsPaidForByTheKeysThatThereAre) {
  nlohmann::ordered_json context;
  for (int i = 0; i < 8000; ++i) context["d"][std::to_string(i)] = i;
  const auto renders = [&](const char* expression, uint64_t steps) {
    const std::string source =
        fmt::format("{{% for i in range(1000) %}}{{% set y = {} %}}{{% endfor %}}", expression);
    return Rendered(source, context, {.steps = steps}).has_value();
  };
  EXPECT_TRUE(renders("d", 200'000));
  for (const char* const expression : {"d.get('x')", "d['x']", "d.x", "'x' in d", "d.get(1)"}) {
    EXPECT_FALSE(renders(expression, 500'000)) << expression;
    EXPECT_TRUE(renders(expression, 20'000'000)) << expression;
  }
}

TEST(Template, LookingForATextIsPaidForOnce) {
  const std::string doublings =
      "{% set ns = namespace(x='a') %}{% for i in range(18) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}";
  const nlohmann::ordered_json none = nlohmann::ordered_json::object();
  for (const char* const expression : {"ns.x.find('b')", "'b' in ns.x", "'b' not in ns.x"}) {
    const std::string often =
        fmt::format("{{% for i in range(100) %}}{{% set y = {} %}}{{% endfor %}}", expression);
    EXPECT_TRUE(Rendered(doublings + often, none, {.steps = 130'000})) << expression;
  }
}

}  // namespace
}  // namespace kvcake::jinja
