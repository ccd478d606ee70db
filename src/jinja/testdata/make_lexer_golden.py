#!/usr/bin/env python3
"""Writes lexer.json beside itself: templates and their tokens as jinja2 has them, null for errors.

Needs jinja2 from PyPI.
"""
import json
import pathlib

import jinja2

IGNORED = ("whitespace", "comment", "comment_begin", "comment_end", "raw_begin", "raw_end")
KINDS = {"data": "text"}
KEPT = ("block_begin", "block_end", "variable_begin", "variable_end", "name", "string", "integer",
        "float", "operator")
PIECES = [
    "", "text", "a\r\nb\rc\n", "a\n\n", "{{ x }}", "{{x}}\n", "  {{ x }}  \n y", "{{- x -}}  \n y",
    " a {{- x }}", "{{ x -}}\n\n b", "{% if a %}\nb\n{% endif %}\nc", "x\n  {% if a %}\n  b\n",
    "x\n  {%+ if a %}\n  b", "x\n  {%- if a -%}\n  b", "x  {% if a +%}\nb", "x {% if a %} \nb",
    "  {% if a %}{% endif %}\n", "{{ a }}  {% if b %}", "{% a %}\n  {% b %}\n  {# c #}\n  {{ d }}",
    "a\n  {# c #}\n b", "{#- c -#}  b", "{# {{ x }} #}\n{% a %}", "{# open", "{# a +#}\nb",
    "a {#+ c #}", "{% raw %} {{ x }} {% endraw %}\nb", "{%- raw -%}  {% x %}  {%- endraw -%}  b",
    "{% raw %} open", "  {% raw %}\n  a\n  {% endraw +%}\nb",
    "{{ 1 + 2.5 - 3e5 * 1_000 / 0x1F // 0b1_0 % 0o17 ** 2.5e-3 }}",
    "{{ 'a' ~ \"b\\n\\t\\x41\\u00e9\\U0001F600\\101\\q\\'\" }}", "{{ 'a\\\nb' }}", "{{ 'ö\\\\ü' }}",
    "{{ 'open }}", "{{ '\\x4' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': '}}'} }}", "{{ a[1:-2] }}",
    "{{ a.b.0.1 }}", "{{ a | b(c=1, d=[2, (3,)]) }}", "{{ a == b != c >= d <= e > f < g = h ; }}",
    "{{ ( }}", "{{ ) }}", "{{ (] }}", "{{ a", "{% a", "{{ a ! }}", "{{ a $ }}", "{{ a %} }}",
    "{{ a\n\nb }}\n{{ c }}", "{{ 007 }}", "{{ 00 }}", "{{ 1. }}", "{{ 1.e5 }}", "{{ 1e }}",
    "{{ 1__0 }}", "{{ 0x }}", "{{ 1a }}", "{{ _a1 }}", "{ % { {", "{{ a -}} {{- b }}", "{{ -1 }}",
    "{{-1}}", "{{+1}}", "{% set x = '%}' %}\n\nz", "a{%- b %}\n{%- c %}", "\t{% a %}", "\f{% a %}",
    "{{ a +}}", "\n{% a %}",
]


def tokens(env: jinja2.Environment, source: str) -> list[list[object]] | None:
    result: list[list[object]] = []
    try:
        for line, kind, text in env.lexer.tokeniter(source, None):
            if kind in IGNORED:
                continue
            kind = KINDS.get(kind, kind)
            if kind == "string":
                text = text[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")
            elif kind in ("integer", "float"):
                text = text.replace("_", "")
            elif kind.endswith(("_begin", "_end")):
                text = ""
            result.append([kind, text, line])
    except (jinja2.TemplateSyntaxError, UnicodeDecodeError):
        return None
    begins = sum(str(kind).endswith("_begin") for kind, _, _ in result)
    ends = sum(str(kind).endswith("_end") for kind, _, _ in result)
    return result if begins == ends else None  # an open tag is an error of jinja2's parser


def main() -> None:
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    cases = [{"source": source, "tokens": tokens(env, source)} for source in PIECES]
    path = pathlib.Path(__file__).with_name("lexer.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
