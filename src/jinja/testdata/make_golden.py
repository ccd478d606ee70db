#!/usr/bin/env python3
"""Writes golden.json beside itself: templates, contexts and what jinja2 makes of them.

jinja2 (from PyPI) is set up as transformers' apply_chat_template does; null stands for an error.
"""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser: "jinja2.parser.Parser") -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: "jinja2.runtime.Macro") -> str:
        return caller()


def environment() -> jinja2.Environment:
    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value: object, ensure_ascii: bool = False, indent: int | None = None,
               separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def render(env: jinja2.Environment, source: str, context: dict[str, object]) -> str | None:
    try:
        return env.from_string(source).render(**context)
    except Exception:  # any error of jinja2 or Python is the template's
        return None


CONTEXT = {
    "s": "Hello, wörld", "w": " \t a b\u00a0\n", "e": "", "n": 7, "z": 0, "m": -3, "f": 2.5,
    "t": True, "no": None, "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"x": None}], "items": "i"},
    "html": "<a href=\"x\">&'", "nested": [{"r": "user", "c": {"t": "x"}}, {"r": "tool", "c": 1}],
    "big": 9007199254740993, "tree": [{"v": 1, "k": [{"v": 2, "k": []}]}, {"v": 3, "k": []}],
}
EXPRESSIONS = """
s|n|f|t|no|l|d|nested|missing|missing.x|d.missing|d.missing.x|d['items']|d.b|d['a'][1].x
1 + 2 * 3 - 4|7 // 2|-7 // 2|7 % 3|-7 % 3|7 / 2|6 / 3|2 ** 10|2 ** -1|2 ** 3 ** 2|-2 ** 2|1 / 0
1.5 + 1|1e16|1e15|1e-5|0.0001|1e100|0.1 + 0.2|-0.0|7.5 // 2|-7.5 % 2|1_000|0x1F|1 // 0|f * 2
'a' + 'b'|'a' ~ 1 ~ none ~ true|'ab' * 3|3 * 'ab'|'a' + 1|[1] + [2]|(1,) + (2,)|[0] * 3|l + 1
1 < 2 < 3|1 < 3 < 2|1 == 1.0 == true|'a' < 'b'|'a' < 1|[1, 2] < [1, 3]|1 in l|5 not in l|'e' in s
'x' in d|'b' in d|1 in s|none == missing|missing == missing2|not t|t and z|z or 'x'|t and 'y'
'a' if t|'a' if z|'a' if z else 'b'|('a' if z) ~ 'q'|l[0]|l[-1]|l[5]|l[5].x|s[0]|s[-1]|s[7:9]|s[99]
l[1:]|l[:-1]|l[::-1]|s[::-2]|s[-5:]|l[::2]|l[5:1]|l[1:0:-1]|l[::0]|d[1:]|'abc'[1]|(1, 2)[0]|d[[1]]
w.strip() ~ '|'|w.lstrip()|w.rstrip() ~ '|'|'xxaxx'.strip('x')|'abc'.rstrip('cb')|s.split(', ')
' a  b '.split()|'a b c'.split(' ', 1)|'a b c'.split(maxsplit=1)|'a,b,c'.rsplit(',', 1)
'abc'.split('')|'a\\nb\\r\\nc\\n'.splitlines()|'a\\n\\nb'.splitlines(true)|s.startswith('He')
s.startswith(('x', 'H'))|s.endswith('d')|s.startswith(1)|s.replace('l', 'L')|s.replace('l', 'L', 1)
'they\\'re a b1c'.title()|'aBc'.upper()|'aBc'.lower()|'aBc'.capitalize()|', '.join(['a', 'b'])
', '.join([1])|s.find('w')|s.find('q')|s.index('q')|s.rfind('l')|'aXbXc'.count('X')|'12'.isdigit()
''.isdigit()|'a1'.isalnum()|'ab'.isalpha()|' '.isspace()|'abc'.removeprefix('a')|s.nothing
d.keys()|d.values()|d.get('b')|d.get('q')|d.get('q', 5)|{'a': 1}.items()|l.index(1)|l.count(3)
l.append(1)|{1: 2, 'a': none, (1, 2): 3.0}|{}|[]|()|(1,)|{'a': 1, 'a': 2}|['it\\'s', '"', '\\n\\x01é']
missing ~ 'x'|missing + 'x'|missing()|missing + 1|-missing|missing < 1|1 in missing|missing[0]|s()|n.x
range(3)|range(1, 7, 2) ~ ''|range(5)[2]|range(200000)|dict(a=1, b=2)|namespace(a=1).a|range(0, 3, 0)
[true, false, none, 1.0, 'x']|"a\\tb"|'\\u00e9'|'a' 'b'|+1|- -1|+'a'|-t|not not 1|1 if 2 if 0 else 3
raise_exception('no')|big|1.0|100000000000000000000.0|true + 1|l == [3, 1, 2]|d == d|(1) == [1]|{} == {}
"""
FILTERED = """
missing | default('x');e | default('x', true);no | d('x');e | d('x');l | length;s | count
n | length;missing | length;l | join(', ');nested | join('-', attribute='r');s | join('.');d | tojson
l | tojson;d | tojson(indent=2);d | tojson(indent=4, sort_keys=true);s | tojson(ensure_ascii=true)
l | tojson(separators=(',', ':'));html | tojson;missing | tojson;[] | tojson(indent=2);2.0 | tojson;'a\\x7f\\x1fé😀' | tojson;'a\\x7f\\x1fé😀' | tojson(ensure_ascii=true)
{1: true, none: 1.5} | tojson;(1, 2) | tojson;w | trim ~ '|';'xax' | trim('x');n | trim
'aB' | upper;'aB' | lower;'aB c' | capitalize;s | replace('l', 'L');s | replace('l', 'L', 1)
l | map('string') | list;nested | map(attribute='r') | list;nested | map(attribute='c.t') | list
nested | map(attribute='q', default='z') | list;['a', 'b'] | map('upper') | join;l | select('odd') | list
nested | map(attribute='q', default=1) | list;nested | map(attribute='q', default=false) | list
nested | map(attribute='q', default=none) | list;nested | map(attribute='q', default=0.5) | list
l | reject('gt', 1) | list;l | select | list;nested | selectattr('r', 'equalto', 'user') | list
nested | rejectattr('r', 'eq', 'user') | list;nested | selectattr('r') | list | length;l | first
l | last;[] | first;s | first;s | last;s | list;d | list;d | items | list;n | items | list;missing | items | list
n | string + 'x';html | escape;html | e | string;html | safe;html | safe + '<';'<' + ('>' | safe)
m | abs;'x' | abs;l | reverse | list;'abc' | reverse;'a\\nb\\n\\nc' | indent;'a\\nb' | indent(2, true)
'a\\n\\nb' | indent(1, false, true);l | min;l | max;[] | max;l | sum_up;missing | trim ~ '|';no | trim
x is defined;s is defined;missing is undefined;no is none;s is string;d is mapping;l is iterable
s is sequence;n is number;t is number;n is integer;t is integer;f is float;t is boolean;t is true
z is false;n is odd;n is even;n is divisibleby 7;n is divisibleby(3);n is eq 7;n is ne(7);n is lt 8
n is le 7;n is gt 8;n is ge 8;1 is in l;no is sameas none;range is callable;'A' is upper;'a' is lower
s is not string;not s is string;missing is iterable;missing is string;n is nothing;n is not none and t
l | length > 2;l | length + 1;-1 | abs;(l | map('string') | list) + [1];l | select('in', [1, 2]) | list
l | map('nothing') | list;'12' | int;' -3 ' | int;f | int;'x' | int;'x' | int(9);no | int;missing | int;t | int;l | sort
l | sort(reverse=true);['b', 'A', 'a', 'B'] | sort;['b', 'A'] | sort(case_sensitive=true);d | dictsort
nested | sort(attribute='r') | map(attribute='r') | list;['a', 1] | sort;l | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort;{'b': 1, 'A': 2} | dictsort(by='value', reverse=true)
[1, 2, 1, 'a', 'A', 1.0] | unique | list;[[1]] | unique | list;l | sum;[] | sum;['a'] | sum
[{'n': 1}, {'n': 2}] | sum(attribute='n');[{'n': 1}] | sum('n', 5);n | indent;'a\\r\\nb' | indent(2);'a\\u2028b\\rc\\n' | indent(2);'' | indent(2, true);'\\n\\n' | indent(2, false, true);'a\\n' | indent
(nested | map(attribute='r') | first);d['update'] is defined;d['pop'];l.append is defined;l.copy();l.copy() == l
html | safe | upper + '<';html | e | lower + '<';html | safe | replace('<', '[') + '<';(html | safe).strip() + '<'
{'k': html | safe}.get('k') + '<';html | e | title + '<';html | e | capitalize + '<';missing is sequence;html | safe | list;no | selectattr('x') | list;no | map('upper') | list;n[1:];d.items() | list;d.items() | length;d.keys() | list | tojson
"""
# Methods and filters of text, numbers and formats; one a line.
TEXTS = """
'straße ŉ ǆ ﬁ'.upper()
'ΑΣ ΣΑΣ. Σ İ'.lower()
'ǆabc ﬁx'.title()
'ǆabc'.capitalize()
'Straße'.casefold()
'aBcß ǅ'.swapcase()
'ßa' | upper
'ÄÖ' | lower
'élan vital' | capitalize
'they\\'re a-b (c) [d] éa\\u00a0b' | title
'they\\'re a1b'.title()
'abc'.center(8) ~ '|'
'abc'.center(9, '*')
'ab'.center(5, 'ü')
'abc'.ljust(6, '.')
'abc'.rjust(6)
'abc'.rjust(2)
'abc'.rjust(6, 'ab')
'-42'.zfill(6)
'+4'.zfill(1)
''.zfill(2)
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('x')
'abc'.rpartition('x')
'abc'.partition('')
'a\\tbc\\n\\td'.expandtabs()
'a\\tb'.expandtabs(4)
'a\\tb'.expandtabs(0)
['²'.isdigit(), '²'.isdecimal(), '½'.isnumeric(), '٣'.isdecimal(), 'é'.isalpha(), 'é1'.isalnum()]
['a b'.isprintable(), '\\u200b'.isprintable(), ''.isprintable(), ''.isascii(), 'é'.isascii()]
['ÄÖ'.isupper(), 'äö'.islower(), 'Ab Cd'.istitle(), 'AB'.istitle(), 'a1'.isidentifier(), '1a'.isidentifier(), 'é_'.isidentifier()]
'\\u2003'.isspace()
'abcabc'.find('c', 3)
'abcabc'.find('', 7)
'abcabc'.find('a', -3, -1)
'abcabc'.rfind('a', 0, 3)
'abcabc'.index('x', 1)
'éabcé'.find('é', 1)
'abcabc'.count('a', 1)
'abc'.count('', 1)
'abc'.startswith('b', 1)
'abc'.endswith('b', 0, 2)
'abc'.startswith('', 4)
' a b  c '.rsplit(none, 1)
' a b  c '.rsplit(maxsplit=0)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
''.replace('', '-')
'a' | replace('', '-')
'%s and %d' % ('x', 3)
'%5.2f|%-6s|%06d|%+d|%x|%X|%o|%%' % (2.345, 'ab', -42, 7, 255, 255, 8)
'%(a)s-%(b)r' % {'a': 1, 'b': 'x'}
'%s' % 'x'
'%s' % [1, 2]
'%s %s' % ('x',)
'%s' % ('x', 'y')
'%d' % 'x'
'%e %g %g' % (12345.678, 0.0001, 1e20)
'%5s|%-5s|%.2s' % ('é', 'é', 'éàü')
'%c' % 'x'
'%*d' % (5, 3)
'%q' % 1
'%' % 1
'{} and {}'.format('x', 3)
'{1} {0} {a}'.format('x', 'y', a=2)
'{0.x}'.format(1)
'{a[b]} {l[0]}'.format(a={'b': 3}, l=[4])
'{:>8}|{:<8}|{:^8}|{:*^9}'.format('ab', 'cd', 'ef', 'gh')
'{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:b}'.format(42, 42, 1234567, 1234567, 255, 255, 5)
'{:.2f}|{:8.3f}|{:.1%}|{:e}|{:g}|{:,.2f}'.format(2.345, 2.5, 0.256, 12345.6, 0.0001, 1234567.891)
'{:.2}|{!r}|{!s:>5}'.format('abcdef', 'x', 'y')
'{{}} {}'.format(1)
'{} {1}'.format(1, 2)
'{'.format(1)
'}'.format(1)
'{}'.format()
'{a}'.format()
'{:{}}|'.format('x', 5)
'{:d}'.format('x')
'{:s}'.format(1)
'{}'.format(none)
'{:5}'.format(none)
'{}'.format([1, 'a'])
'%s-%s' | format('a', 1)
'%(x)s' | format(x=2)
'%s' | format()
'abc' | center(9) ~ '|'
'abcdef ghi jkl mno' | truncate(9)
'abcdef ghi jkl mno' | truncate(9, true)
'abcdef ghi jkl mno' | truncate(9, true, '~', 0)
'short' | truncate(3)
'one two, thrée_x 4' | wordcount
'a b/ü?&' | urlencode
{'a b': 1, 'c': 'é'} | urlencode
[('a', 1)] | urlencode
html | safe | forceescape
3.7 | round
2.5 | round
3.14159 | round(2)
3.14159 | round(2, 'ceil')
3.14159 | round(1, 'floor')
25 | round(-1)
7 | round
'3.7' | float
'x' | float
'x' | float(1.5)
'inf' | float
no | float
'ff' | int(base=16)
'0x1f' | int(0, 16)
'42.9' | int
'1_000' | int
['b', 'A', 'c'] | min
['b', 'A', 'c'] | max
['b', 'A', 'c'] | max(case_sensitive=true)
[{'n': 2, 'a': 'x'}, {'n': 1, 'a': 'y'}] | min(attribute='n')
['a', 'A'] | min
[1, 'a'] | max
[{'a': 2, 'b': 1}, {'a': 1, 'b': 2}, {'a': 1, 'b': 1}] | sort(attribute='a,b')
[{'a': 'x', 'b': 1}, {'a': 'X', 'b': 0}] | sort(attribute='a,b')
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3] | batch(2, '-') | list
[] | batch(2) | list
[1, 2, 3] | batch(0) | list
[1, 2, 3, 4, 5] | slice(3) | list
[1, 2, 3, 4] | slice(3, 'x') | list
[1] | slice(0) | list
['\\u200b', '\\U0001F600', '\\u0378', '\\U000E0001', 'é', '\\u00ad']
'AÉ' is upper
'aé' is lower
'ab' | map('upper') | list
['a', 'b'] | map('replace', 'a', 'c') | list
l | select('nothing') | list
'ß' in 'Maß'
'ΑΣ.Α ΑΣ.'.lower()
'a\\x1eb\\x1fc\\x0bd'.splitlines()
'%*d|%-*d|%*s|' % (-5, 3, 5, 3, 5, 'x')
'abcdefghi' | truncate(4, leeway=-1)
'abcdefghi' | truncate(4, leeway=0)
[[1] < [1, 2], [1, 2] < [1], (1, 2) <= (1, 2), [] < [1], [2] < [1, 2]]
[{'a': 1} == {'a': 1, 'b': 2}, {'a': 1, 'b': 2} == {'a': 1}, {'a': 1, 'b': 2} == {'b': 2, 'a': 1}]
missing | default('x', default_value='y')
'a' | upper(1)
'a'.upper(1)
'a'.strip('a', 'b')
range(1, 2, 3, 4)
n is odd(1)
[l[-3], l[-4], l[3], s[-12], s[-13], (1, 2)[-3], range(3)[-4]]
'{:{:{}}}'.format('x', 5, 1)
'abcdef ghi' | truncate(2)
'abcdef ghi' | truncate(3)
'\\1011\\08'
'abc'.find('', 3)
'abc'.count('', 3)
'abc'.rfind('a', -9)
['a', 'A'] | max
[{'a': 1, 'b': 1}, {'a': 1, 'b': 2}, {'a': 2, 'b': 3}] | sort(attribute='a', reverse=true)
{'A': 1, 'a': 2} | dictsort(reverse=true)
[[1]] | map(attribute='99999999999999999999') | list | length
{(1, [2]): 3}
'\\U0001F601' | tojson(ensure_ascii=true)
'abc'[1::9223372036854775807]
'abc'[::-9223372036854775807 - 1]
[1, 2, 3][1::9223372036854775807]
[1, 2, 3][-9223372036854775807:9223372036854775807]
range(0, 9223372036854775807, 9000000000000000000) | list
range(0, -9223372036854775807, -9000000000000000000) | list
(-9223372036854775807 - 1) % -1
9223372036854775806 + 1
-9223372036854775807 - 1
(-2) ** 63
'-9223372036854775808' | int
'9223372036854775807' | int
"""
TEMPLATES = [
    "{% set g = nested | selectattr('r') %}{{ (g | first).r }}|{{ g | map(attribute='r') | join }}",
    "{% set g = l | map('string') %}{{ '1' in g }}|{{ g | list }}",
    "{% set g = l | map('string') %}{{ 'q' in g }}|{{ g | list }}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ x }};"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }}{{ loop.depth }}\n{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ x }}{{ loop.last }}"
    "{% else %}b{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in l if ns.x < 1 %}{{ i }}{% set ns.x = ns.x + 1 %}"
    "{% else %}b{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in l if ns.x < 1 %}{{ i }}{{ loop.last }}"
    "{{ loop.nextitem }}{% set ns.x = ns.x + 1 %}{% endfor %}",
    "{% set ns = namespace(x=1) %}{% for i in l if i > ns.x %}{{ i }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{% set ns.x = 3 %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in l if i > ns.x %}{{ i }}{% set ns.x = i %}{% endfor %}",
    "{% for i in [1, 2, 'a'] if i > 1 %}{{ i }}{% break %}{% endfor %}",
    "{% for i in [1, 2, 'a'] if i > 1 %}{{ i }}{{ loop.last }}{% break %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for t in tree if ns.x < 2 recursive %}{{ t.v }}"
    "{% set ns.x = ns.x + 1 %}{{ loop(t.k) }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}", "{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}",
    "{% for x in l %}{{ x }}{% break %}{% else %}E{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}E{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% set x = 7 %}{% for x in l if x > 1 %}{% break %}{% else %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ x }}{% for y in [] %}{% else %}{% break %}{% endfor %}{% endfor %}",
    "{% for x in l %}{% for y in [] %}{% else %}{% continue %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in [] recursive %}{% else %}{% break %}{% endfor %}{% endfor %}",
    "{% for x in l recursive %}{% for y in [] %}{% else %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in l %}{% set q %}a{% if x == 1 %}{% continue %}{% endif %}b{% endset %}{{ q }}"
    "{% endfor %}{{ q }}",
    "{% for x in l %}{% filter upper %}a{% if x == 1 %}{% break %}{% endif %}b{% endfilter %}"
    "{% endfor %}",
    "{% for t in tree recursive %}{{ t.v }}@{{ loop.depth }}[{{ loop(t.k) }}]{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{{ ns.y is defined }}{% set ns.y = 2 %}{{ ns.y }}{{ ns['y'] }}",
    "{% if t %}{% set x = 5 %}{% endif %}{{ x }}", "{% set n.x = 1 %}", "{% set q.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}a {{ n }}\nb{% endset %}[{{ x }}]{{ x | upper }}",
    "{% set x | upper %}a{{ n }}{% endset %}{{ x }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% filter length %}a{% endfilter %}", "{% filter trim | upper %} a {% endfilter %}|", "{% with a = 1, b = 2 %}{{ a }}{{ b }}"
    "{% set c = 3 %}{% endwith %}{{ a }}{{ c }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=5) }}"
    "{{ m() }}{{ m(1, 2, 3) }}",
    "{% macro m(s=s) %}[{{ s }}]{% endmacro %}{{ m() }}{{ m(1) }}{{ s }}",
    "{% macro m(a=n, n=2) %}[{{ a }}{{ n }}]{% endmacro %}{{ m() }}{{ m(n=3) }}{{ m(1) }}",
    "{% macro m(a, n=a.x) %}{{ n }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(x=2) }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in {{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}",
    "{% macro m(k) %}{{ k }}{% if k %}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{% if q is not defined %}{% set q = 'in' %}{% endif %}{{ q }}{% endmacro %}"
    "{{ m() }}{{ q }}", "{% macro m() %}{{ v }}{% endmacro %}{% set v = 3 %}{{ m() }}",
    "{% macro m() %} a {% endmacro %}{{ m() | trim }}{{ m() ~ '|' }}{{ m()|length }}",
    "{% generation %}{{ s }}{% set g = 1 %}{% endgeneration %}{{ g }}",
    "{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% for x in l %}{% generation %}{% for y in l %}{{ y }}{% break %}{% endfor %}{% endgeneration %}"
    "{% continue %}{% endfor %}",
    "{% if z %}a{% elif n > 5 %}b{% else %}c{% endif %}", "{% if missing %}a{% endif %}b",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}", "{{ 1, 2 }}", "{% if %}{% endif %}",
    "{% for x in l %}", "{% endfor %}", "{% nothing %}", "{{ }}", "{{ a b }}", "{% set true = 1 %}",
    "{% set m = l | map('string') %}{{ m | join }}{{ m | join }}|", "{{ [1, 2,] }}{{ {'a': 1,} }}",
    "\u3000{%- if t -%}\u00a0a\u2028{%- endif -%}\x85 b \u3000{#- c -#}\u2003\nd",
    "a\n\u3000\u00a0{% if t %}b{% endif %}\n\u2003{# c #}\n\u3000{{ n }}\u3000{{- n -}}\u3000",
    "{{\u00a01\u3000+\x852 }}{%-\u3000set x = 1\u00a0%}{{ x }}\u200b{{- x }}",
    " \u3000{%-\u3000raw\u00a0-%}\u3000{{ x }}\u3000{%-\u3000endraw\u00a0-%}\u3000.",
    "  {% if t %}\n  a\n  {% endif %}\n b\n", "{%- for x in l -%}\n {{ x }} \n{%- endfor -%}\n c",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 0 %}{% for i in l %}{% set x = 1 %}{% endfor %}{{ x }}{{ loop is defined }}",
    "{% for x in l %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}",
    "{{ n }}{% for x in l %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}",
    "{% macro f() %}[{{ n }}]{% endmacro %}{{ f() }}{% set n = 1 %}{{ f() }}",
    "{% if z %}{% set n = 1 %}{% endif %}{% for x in l %}{{ n }}{% endfor %}",
    "{% for x in l %}{% macro f() %}[{{ n }}]{% endmacro %}{{ f() }}{% set n = 1 %}{% if z %}"
    "{% set n = 2 %}{% endif %}{{ f() }}{% endfor %}",
    "{% if t %}{% set n = 1 %}{% else %}{{ n }}{% endif %}{% for x in l %}{{ n }}{% endfor %}",
    "{% set v %}{{ n }}{% endset %}{{ v }}{% macro n() %}m{% endmacro %}{{ n() }}",
    "{% for x in l %}{% with %}{{ n }}{% endwith %}{% set n = x %}{{ n }}{% endfor %}{{ n }}",
    "{% for x in [] %}{% else %}{% for y in l %}{{ n }}{% endfor %}{% set n = 2 %}{{ n }}{% endfor %}",
    "{% macro f() %}{% for x in l %}{{ n }}{% endfor %}{% set n = 2 %}{{ n }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% for x in l %}{{ s }}{% endfor %}"
    "{% set s = 2 %}{{ s }}{% endcall %}{{ s }}",
    "{{ dict(d, b=5, z=2) }}{{ dict(d, b=5).b }}{{ dict(nested[0], **{'r': 'x'}).r }}",
    "{% set ns = namespace(d, b=5) %}{{ ns.b }}", "{{ dict(d, d) }}", "{{ namespace(d, d).b }}",
    "{{ dict(**{'a': 1}) }}{{ range(*[2]) | list }}", "{{ dict(a=n, a=2) }}",
    "{{ s | replace(old='H', old='l', new='J') }}", "{{ n is eq(b=n, b=2) }}",
    "{{ range(*[1], *[2]) | list }}", "{{ range(*[1], 2) | list }}", "{{ dict(**d, **d) }}",
    "{{ dict(**d, x=1) }}", "{{ range(**{}, 2) }}", "{{ range(**{}, *[2]) }}",
    "{{ dict(x=1, **{'y': 2}) }}", "{{ dict(b=n, **d) }}", "{{ namespace(b=n, **d).b }}",
    "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(b=1, **d) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m(caller=n) %}x{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m(**{'caller': n}) %}x{% endcall %}", "{{ raise_exception('no') }}",
]


def main() -> None:
    env = environment()
    words = [w for line in EXPRESSIONS.strip().split("\n") for w in line.split("|") if w.strip("~ '")]
    words += [w for line in FILTERED.strip().split("\n") for w in line.split(";")]
    words += [w for w in TEXTS.strip("\n").split("\n")]
    sources = ["{{ " + word + " }}" for word in words] + TEMPLATES
    cases = [{"source": source, "result": render(env, source, CONTEXT)} for source in sources]
    path = pathlib.Path(__file__).with_name("golden.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"context": {json.dumps(CONTEXT)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
