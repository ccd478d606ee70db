#include "server/template_literals.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

using Literals = std::vector<std::string>;

TEST(TemplateLiteralsTest, FindsWhatIsWritten) {
  EXPECT_EQ(WrittenLiterals(R"(x {{ 'a\n' + message['content'] ~ "b\\" }} {#- 'no' #})"),
            (Literals{"a\n", "b\\"}));
  EXPECT_EQ(WrittenLiterals("{%- set x = 'it\\'s' -%}{{ ('(' + (x) + ')') }}"),
            (Literals{"it's", "(", ")"}));
  EXPECT_EQ(WrittenLiterals("{{ 'open"), Literals{"open"});
}

TEST(TemplateLiteralsTest, LeavesOutWhatIsNot) {
  for (const char* jinja :
       {"{% if message['role'] == 'user' and 'x' in y and z != 'w' %}", "{{ 'a' == b['c'] }}",
        "{{ raise_exception('no ' + ('way')) }}", "{{ content.split('</s>')[-1] }}",
        "{% if tools %}{{ 'a' }}{% for t in tools %}{{ 'b' }}{% endfor %}{% endif %}",
        "{% if m.role == 'tool' %}{% if x %}{{ 'a' }}{% endif %}{% endif %}"}) {
    EXPECT_EQ(WrittenLiterals(jinja), Literals()) << jinja;
  }
  EXPECT_EQ(WrittenLiterals("{% if tools %}{{ 'a' }}{% elif x %}{{ 'b' }}{% else %}{{ 'c' }}"
                            "{% endif %}{{ 'd' }}"),
            (Literals{"b", "c", "d"}));
}

}  // namespace
}  // namespace kvcake
