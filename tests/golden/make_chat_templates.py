#!/usr/bin/env python3
"""Writes chat_templates.json: what Transformers' apply_chat_template() makes of templates that use each construct.

Run by hand with a Python that has transformers and jinja2; needs no network. README.md says what the file holds.
"""
import datetime
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import jinja2
import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2025, 3, 7, 14, 5, 9)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

MESSAGES = [
    {"role": "system", "content": " You are terse.\n"},
    {"role": "user", "content": "What's 2 < 3 & \"why\"? \u00e9\u4eba\U0001F600"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "compare", "arguments": {"b": 3, "a": 2.5}}}]},
    {"role": "tool", "name": "compare", "content": "{\"less\": true}"},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "2 is less."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "image"}, {"type": "text", "text": "this?"}]},
]
TOOLS = [{"type": "function", "function": {
    "name": "compare", "description": "Compares <two> numbers & says 'less'",
    "parameters": {"type": "object", "properties": {
        "b": {"type": "number", "enum": [1, 2.0, None, True]}, "a": {"type": "number", "description": "first \u00e9"}},
        "required": ["a", "b"]}}}]
DOCUMENTS = [{"title": "T1", "text": "one\ntwo"}, {"title": "T2", "text": "three"}]
VARIABLES = {
    "none_value": None, "yes": True, "no": False, "one": 1, "big": 123456789012, "negative": -7, "real": 2.5,
    "text": "Hello, World! hello", "padded": " \t a b  c \n", "lines": "one\n  two\n\nthree\r\nfour",
    "accents": "stra\u00dfe \u00c9T\u00c9 \u4eba", "quotes": "it's \"so\"\\\n", "empty": "", "empty_list": [], "empty_dict": {},
    "numbers": [3, 1, 2, 10, 2], "words": ["banana", "Apple", "cherry", "apple"], "nested": [[1, 2], [3, [4, None]], []],
    "dictionary": {"b": 1, "a": [1, 2.0, "x"], "C": {"d": None}}, "mixed": [1, "a", None, True, 2.5, [], {}],
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30, "tags": []}],
    "html": "<a href=\"x\">'&'</a>", "letters": {"items": 1, "keys": 2, "_x": 3},
}

# One expression each: written in {{ }}.
EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7 / 2, 6 / 3, 2 ** 10, 2 ** -1, 2 ** 3 ** 2, -2 ** 2
7.5 // 2, -7.5 // 2, 7.5 % 2, -7.5 % 2, 7 % 2.5
1.0, 1e3, 1.5e-7, 1e16, 1e15, 123456789.123, 0.1 + 0.2, 1e22, 1e-4, 1e-5, 100000000000000000000.0
0x1F, 0o17, 0b101, 1_000, 1_0.2_5
1 == 1.0, true == 1, "a" == "a", none == none, [1] == [1], [1] == (1,), {"a": 1} == {"a": 1.0}, "1" == 1
1 < 2 < 3, 1 < 3 < 2, 3 > 2 >= 2, 1 != 2, "a" < "b", [1, 2] < [1, 3], "Z" < "a"
true and false, true or false, not true, 0 or "x", "" and 1, 1 and 2, none or [] or {}
not 1 == 2, not (1 in [1]), 1 not in [2], 1 in [1.0], "a" in "cat", "x" not in "cat", "a" in dictionary
1 if true, 1 if false else 2, "a" if 0 else "b" if 0 else "c", (1 if false)
"a" ~ 1 ~ none ~ true ~ 2.5 ~ [1, "x"], "x" "y" 'z'
"a" * 3, 3 * "ab", "a" * -1, [1, 2] * 2, "a" + "b", [1] + [2], (1,) + (2,)
"tab\t nl\n quote\' dquote\" back\\ hex\x41 uni\u00e9 long\U0001F600 oct\101 unknown\q"
[1, 2, 3], (1, 2), (1,), (), [], {}, {"a": 1, "b": [none, true]}, {1: 2, none: 3}, [1, 2,], {"a": 1,}
none, true, false, None, True, False, undefined_name
[none, true, "it's", 'say "x"', "both ' and \"", "new\nline\ttab\\", "\x00\x7f\xa0é人😀"]
text[0], text[-1], text[1:4], text[:5], text[-5:], text[::-1], text[::2], text[10:2:-3], text[100:], text[5:5]
accents[0], accents[4], accents[-1], accents[4:6], accents|length, accents[::-1]
numbers[0], numbers[-1], numbers[1:], numbers[:-1], numbers[::-1], numbers[::2], numbers[7:], numbers[-2:-9:-1]
numbers[99], numbers["x"], text[99], dictionary["x"], dictionary.x, none_value.x, one.x
dictionary["b"], dictionary.b, dictionary.a[2], dictionary["C"]["d"], dictionary.C.d, nested[1][1][0], nested.1.0
letters.items is callable, letters["items"], letters.keys()|list, letters["_x"], letters._x, letters["get"] is callable
dictionary.items()|list, dictionary.keys()|list, dictionary.values()|list, dictionary.items(), dictionary.keys(), dictionary.values()
dictionary.get("b"), dictionary.get("z"), dictionary.get("z", 9), dictionary.get("C", {}).get("d", 1)
dictionary|items|list, dictionary|list, dictionary|length, dictionary|first, "b" in dictionary.keys(), 1 in dictionary.values()
dictionary|dictsort, dictionary|dictsort(true), dictionary|dictsort(reverse=true), {"x": 2, "y": 1}|dictsort(by="value")
numbers|sort, numbers|sort(reverse=true), words|sort, words|sort(case_sensitive=true), people|sort(attribute="age")|map(attribute="name")|list
people|sort(attribute="age,name")|map(attribute="name")|list, people|sort(attribute="age", reverse=true)|map(attribute="name")|list
numbers|unique|list, words|unique|list, words|unique(case_sensitive=true)|list, people|unique(attribute="age")|map(attribute="name")|list
numbers|reverse|list, text|reverse, numbers|first, numbers|last, empty_list|first, empty_list|last, text|first, text|last
numbers|sum, numbers|min, numbers|max, people|sum(attribute="age"), people|max(attribute="age"), words|min, words|max, empty_list|min, numbers|sum(start=5)
numbers|join, numbers|join(", "), words|join(d="-"), people|join("/", attribute="name"), text|join(".")
numbers|length, numbers|count, text|length, dictionary|count, undefined_name|length, empty|length
numbers|map("string")|list, words|map("upper")|join(","), people|map(attribute="name")|list, people|map(attribute="tags", default="-")|list
[[[1]]]|map(attribute="0.0")|list, people|map(attribute="name.0")|list, nested|map("length")|list, words|map("replace", "a", "b")|list, numbers|map("float")|join(" ")
numbers|select("odd")|list, numbers|reject("even")|list, numbers|select("greaterthan", 2)|list, mixed|select|list, mixed|reject|list, numbers|select("in", [1, 2])|list
people|selectattr("tags")|map(attribute="name")|list, people|rejectattr("tags")|map(attribute="name")|list
people|selectattr("age", "equalto", 30)|list|length, people|selectattr("tags", "defined")|list|length, people|rejectattr("age", "==", 30)|map(attribute="name")|first
people|selectattr("name", "in", ["Ann", "Cy"])|map(attribute="name")|join("+"), people|selectattr("age", "ge", 30)|list|count
"yes" if numbers|select("gt", 100) else "no", "yes" if numbers|select("gt", 100)|list else "no"
undefined_name|default("d"), undefined_name|default, none_value|default("d"), none_value|default("d", true), empty|d("x", boolean=true), 0|default(1)
text|upper, text|lower, text|title, text|capitalize, accents|upper, accents|lower, accents|title, "they're bill's (x) a-b"|title
padded|trim, padded|trim|length, "xxaxx"|trim("x"), text|replace("l", "L"), text|replace("l", "L", 2), "aaa"|replace("a", ""), "ab"|replace("", "-")
text|wordcount, accents|wordcount, lines|indent, lines|indent(2), lines|indent(2, true), lines|indent(2, blank=true), lines|indent("> ", first=true)
"42"|int, " 42 "|int, "4.7"|int, 4.7|int, -4.7|int, "x"|int, "x"|int(5), none_value|int, true|int, "ff"|int(base=16), "0x1f"|int(0, 16), "1_000"|int
"2.5"|float, "x"|float, "x"|float(1.5), 3|float, "1e3"|float, none_value|float(default=2)
-3|abs, 3.5|abs, -2.5|abs, (-3)|abs
2.5|round, 3.5|round, 2.675|round(2), 2.567|round(1, "ceil"), 2.567|round(1, "floor"), 42|round, -2.5|round, 1234.5|round(-2), 2|round(1, "ceil")
html|e, html|escape, html|safe, html|e|e, "<b>"|safe + "<i>", "<i>" + ("<b>"|safe), "<b>"|safe ~ "<i>", html|e is escaped
text|string, 12|string + "x", [1, "a"]|string, none_value|string, text|list, numbers|list, dictionary|string
numbers|batch(2)|list, numbers|batch(2, 0)|list, numbers|slice(2)|list, numbers|slice(3, "x")|list, "ab"|center(7) ~ "|"
"%s is %d years, %.2f or %5d|%-5d|%05d|%x|%%" % ("Ann", 30, 2.5, 7, 7, 7, 255), "%s" % 5, "%r" % "x", "%(a)s-%(b)d" % {"a": 1, "b": 2}, "%e %g" % (1234.5, 0.0001)
"%s-%s"|format("a", 1), "%(x)s"|format(x=2), "{} {}".format("a", 1), "{1}{0}".format("a", "b"), "{x}{{}}".format(x=[1])
dictionary|tojson, mixed|tojson, html|tojson, accents|tojson, quotes|tojson, "\x01\x7f\u2028/"|tojson, 1.0|tojson, 1e20|tojson, none|tojson, big|tojson
dictionary|tojson(indent=2), mixed|tojson(indent=1), empty_dict|tojson(indent=4), nested|tojson(indent=0), dictionary|tojson(indent="..")
dictionary|tojson(separators=(",", ":")), dictionary|tojson(sort_keys=true), accents|tojson(ensure_ascii=true), "😀\x7f"|tojson(ensure_ascii=true), [1, 2]|tojson(indent=2, separators=(", ", ": "))
{1: 2, true: 3, none: 4, 1.5: 5}|tojson, (1, 2)|tojson, [[], {}]|tojson(indent=2)
padded.strip() ~ "|", padded.lstrip() ~ "|", padded.rstrip() ~ "|", "xyabcyx".strip("xy"), "xyabcyx".lstrip("xy"), "xyabcyx".rstrip("xy"), "é人é".strip("é")
padded.split(), "a,b,,c".split(","), "a,b,c".split(",", 1), "a b  c d".split(None, 2), "a--b".split("--"), "".split(), "".split(","), "a,b".split(sep=",")
"a,b,c".rsplit(",", 1), " a b c ".rsplit(None, 1), "a b".rsplit(), "a=b=c".partition("="), "a=b=c".rpartition("="), "abc".partition("x"), "abc".rpartition("x")
lines.splitlines(), lines.splitlines(true), "".splitlines(), "a\n".splitlines(), "a\u2028b\x0bc".splitlines()
text.startswith("Hello"), text.startswith(("x", "He")), text.endswith("hello"), text.startswith("World", 7), text.endswith("World", 0, 12), "".startswith("")
text.find("o"), text.find("zz"), text.rfind("o"), text.index("W"), text.count("l"), text.find("o", 5), accents.find("人"), "aaa".count("aa"), "abc".count("")
text.replace("Hello", "Bye"), text.replace("l", "", 1), text.upper(), text.lower(), text.title(), text.capitalize(), text.swapcase(), "ß".upper(), "they're".title()
"abc".isalpha(), "ab1".isalnum(), "12".isdigit(), "1.2".isdigit(), " ".isspace(), "".isspace(), "ABC".isupper(), "aBc".islower(), "é人".isalpha(), "abc".isascii(), "²".isdecimal()
"ab".center(5) ~ "|", "abc".center(6) ~ "|", "ab".ljust(5, "-"), "ab".rjust(5, "人"), "-42".zfill(6), "x".zfill(3), "prefix-a".removeprefix("prefix-"), "a.txt".removesuffix(".txt")
", ".join(words), "".join([]), "-".join("abc"), "".join(dictionary)
numbers.index(10), numbers.count(2), numbers.copy(), (1, 2, 1).count(1), dictionary.copy().b
text is string, one is string, one is number, real is number, real is float, one is integer, true is integer, true is number, true is boolean, one is boolean
dictionary is mapping, numbers is mapping, numbers is sequence, text is sequence, dictionary is sequence, numbers|map("string") is sequence, numbers|map("string") is iterable, one is iterable, dictionary.items() is sequence
one is defined, undefined_name is defined, undefined_name is undefined, undefined_name is not defined, dictionary.zz is defined, dictionary.b is defined, none_value is defined, none_value is none, undefined_name is none
yes is true, no is false, one is true, yes is not true, one is odd, one is even, 10 is divisibleby 5, 10 is divisibleby(3)
one is eq 1, one is equalto 2, one is ne 2, one is lt 2, one is gt(0), one is le 1, one is ge 2, one is sameas 1, one is in [1, 2], "a" is in "cat", one is not in [1]
"abc" is lower, "ABC" is upper, "aBc" is lower, range is callable, text is callable, undefined_name is iterable, undefined_name is sequence, undefined_name is string
range(5)|list, range(2, 5)|list, range(5, 0, -2)|list, range(0)|list, range(3)|length, range(3)[1], 2 in range(3), range(10)[2:5]|list
dict(a=1, b=2), dict(dictionary, b=5), dict([("x", 1), ("y", 2)]), dict()
namespace(a=1).a, namespace({"x": 2}).x, namespace(a=1).b is defined
strftime_now("%d %b %Y"), strftime_now("%Y-%m-%d %H:%M:%S"), strftime_now("%A %B %-d, %j %p %y %% %I"), strftime_now(""), strftime_now("%z%Z%f")
undefined_name ~ "x", undefined_name == undefined_name, undefined_name == none, undefined_name or "x", [undefined_name], undefined_name|list, undefined_name|string|length, undefined_name in [1], 1 in undefined_name
bos_token, eos_token, pad_token, unk_token is defined, add_generation_prompt, tools is none, documents is none, messages|length
text|upper|lower|replace("o", "0")|trim, (text|upper)[0:2], text.split(",")[0].strip(), -one|abs, - one + 2, +real, - -one
numbers|map("string")|join(",")|length, (1, 2)|join, {"a": 1}.items()|list, {"a": {"b": 2}}.a.b, [1, 2, 3][1], "abc"[1], (1, 2)[0]
words|map("first")|list, words|select("string")|first, words|map("length")|sum, words|groupless if false else "unused filters do no harm"
1 is not none and 2 is defined, not undefined_name, not none_value is none, (1 is odd) == true, one is odd and yes
joiner is defined, cycler_of is defined, [1, 2, 3]|last, (numbers|sort)[0], numbers|sort|first, "a"|default("b")|upper
"{}".format(1.0), "a%sb" % none, "100%" ~ "", "é"|length, "é"|upper, "İ"|length, "ǆ"|title, "ﬁ"|length
"x" if text is string and text|length > 3 and text.startswith("H") else "y"
"a\
b", 'single\'s', "a" in ["a"] and "b" not in ["a"], 2 in {2: 3}, none in [none], "" in "abc"
"""

# Expressions that Transformers refuses when it parses or renders them.
WRONG = r"""
undefined_name.x
undefined_name["x"]
undefined_name + 1
undefined_name()
dictionary.zz.y
one + "a"
"a" + 1
one < "a"
none < 1
1 / 0
1 // 0
1 % 0
1.0 / 0
text|nofilter
text is notest
text|int|nofilter
raise_exception("stop here")
one()
text()
[1]|tojson(1, 2, 3, 4, 5)
undefined_name|tojson
{"a": undefined_name}|tojson
numbers|map("string")|tojson
range(1000000)
range("a")
numbers.append(1)
dictionary.update({"a": 1})
dictionary.pop("a")
numbers|first|upper|nofilter
"abc".index("z")
numbers.index(99)
one|length
none_value|list
1 in 2
1 in "abc"
"a".split("")
[1] + (1,)
{[1]: 2}
{"a": 1}[[1]] + 1
"%d" % "a"
"%s %s" % "a"
"%s" % (1, 2)
namespace(_x=1)
messages[0].content.nomethod()
dict(1)
dict([1])
1 if
(1
[1, 2
{"a": 1
1 +
"unterminated
a b
1 2
not
{{ }}
text|
text is
1 if one is defined if yes else 3
text.
one[1
x = 1
1 is odd is even
mixed|sort
-text
"".join([1])
text|indent("a", "b", "c", "d")
text.strip(1)
text.replace("a")
loop.index
caller()
super()
1e400|int
"a"|round
""|attr
"""

TEMPLATES = {
    "chatml": """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message.content is string %}{{ message.content | trim }}{% else %}
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part['type'] }}>{% endif %}{% endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "tools": """\
{{ bos_token }}
{% if tools %}
# Tools
{% for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=4) }}
{% for name, property in tool.function.parameters.properties.items() %}
- {{ name }}: {{ property.type }}{% if name in tool.function.parameters.required %} (required){% endif %}

{% endfor %}
{% endfor %}
{% endif %}
{% for message in messages if message.role != 'system' %}
  {% if message.tool_calls is defined %}
    {% for call in message.tool_calls %}
<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
    {% endfor %}
  {% elif message.role == 'tool' %}
<result of="{{ message.name }}">{{ message.content }}</result>
  {% else %}
{{ message.role }}: {{ message.content }}
  {% endif %}
{% endfor %}
""",
    "documents": "{% for d in documents %}[{{ loop.index }}] {{ d.title }}\n{{ d.text | indent(4, true) }}\n{% endfor %}",
    "whitespace": """\
  {% if true %}
    one
  {%- if true %}  two  {% endif -%}
    three
    {%+ if true %} four {% endif %}

  {# comment #}
a {# comment #} b
  {#- trimmed -#}

    five {{- ' six ' -}} seven
\t{% set x = 1 %}
eight {%- set x = 2 +%}
nine
   {{ x }}
   {{+ x }}
  {% endif +%}

end

""",
    "whitespace_at_line_starts": "{% if true %}\n\n  {% endif %}x\n  {% if true %} {% if true %}y{% endif %}\n {% endif %}",
    "carriage_returns": "a\r\n{% if true %}\r\n  b\r{% endif %}\r\n{{ 'c\\r\\n' }}",
    "one_newline_at_the_end_goes": "a\n\n",
    "raw": "{% raw %}{{ x }} {% if %} {# c #}{% endraw %}|{%- raw -%}  a  {%- endraw -%}  |\n  {% raw %}\n b\n  {% endraw %}\nc {%raw%}{{{%endraw%}",
    "loop_values": """\
{% for x in numbers %}{{ loop.index }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} \
{{ loop.length }} {{ loop.depth }} {{ loop.depth0 }} {{ loop.previtem }} {{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {{ loop.changed(x) }};
{% endfor %}""",
    "loop_else": "{% for x in [] %}a{% else %}none{% endfor %}{% for x in [1] %}b{% else %}none{% endfor %}{% for x in [1, 2] if x > 5 %}c{% else %}no match{% endfor %}",
    "loop_filter": "{% for m in messages if m.role == 'user' or loop is defined %}{{ loop.index }}/{{ loop.length }}{{ m.role }} {% endfor %}",
    "loop_unpacking": "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for k, v in dictionary.items() %}{{ k }}={{ v }} {% endfor %}"
                      "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}{% for k, v in dictionary|dictsort %}{{ k }}{% endfor %}",
    "loop_controls": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}"
                     "{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "loop_break_in_blocks": "{% for x in range(3) %}{% set y %}a{% if x == 1 %}{% continue %}{% endif %}b{% endset %}{{ y }}{{ x }}"
                            "{% filter upper %}c{% if x == 2 %}{% break %}{% endif %}d{% endfilter %}{% endfor %}",
    "loop_recursive": "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': [{'v': 3}]}, {'v': 4}]}] recursive %}{{ loop.depth }}:{{ n.v }}"
                      "{% if n.c %}({{ loop(n.c) }}){% endif %}{% if not loop.last %},{% endif %}{% endfor %}",
    "loop_over_strings_and_dicts": "{% for c in 'aé人' %}[{{ c }}]{% endfor %}{% for k in dictionary %}{{ k }}{% endfor %}{% for x in undefined_name %}x{% else %}empty{% endfor %}",
    "loop_scope": "{% set x = 'outer' %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 'if' %}{% endif %}{{ x }}",
    "loop_of_outer_loop": "{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{{ loop.index }};{% endfor %}",
    "loop_over_generator": "{% set g = numbers|map('string') %}{% for x in g %}{{ x }}{{ loop.last }} {% endfor %}again:{% for x in g %}{{ x }}{% endfor %}",
    "namespace": "{% set ns = namespace(count=0, seen=[], text='') %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% set ns.seen = ns.seen + [m.role] %}"
                 "{% set ns.text = ns.text ~ loop.index %}{% endfor %}{{ ns.count }} {{ ns.seen }} {{ ns.text }} {{ ns.missing is defined }} {{ ns }}",
    "namespace_in_if": "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'tool' and not ns.found %}{% set ns.found = true %}{{ loop.index }}{% endif %}{% endfor %}{{ ns.found }}",
    "set_tuple": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set t = 1, %}{{ t }}{% set x = y = 1 if false else 2 %}" .replace("x = y = 1", "x = 1"),
    "set_block": "{% set x %}  a {{ 1 + 1 }}\n{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]{% set z %}{% set inner = 1 %}{% endset %}{{ inner is defined }}",
    "set_block_replaces_namespace": "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}",
    "macro": """\
{% macro field(name, value='none', *, x=1) %}{% endmacro %}""".replace(", *, x=1", "") + """
{% macro greet(name, greeting='Hello', mark=greeting ~ '!') -%}
  {{ greeting }} {{ name }}{{ mark }}
{%- endmacro %}
{{ greet('Ann') }}|{{ greet('Bob', 'Bye') }}|{{ greet(greeting='Hi', name='Cy') }}|{{ greet() }}|{{ greet(mark='?', *['D', 'E']) }}|{{ greet(**{'name': 'F'}) }}
{{ greet.name }} {{ greet.arguments }} {{ greet.catch_kwargs }} {{ greet.catch_varargs }} {{ greet.caller }}
{{ field(1)|length }}""",
    "macro_varargs": "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3) }}{{ f(1, 2, x=3, y=4) }}",
    "macro_recursive": "{% macro tree(n) %}{{ n }}{% if n > 0 %}({{ tree(n - 1) }}{{ tree(n - 2) }}){% endif %}{% endmacro %}{{ tree(3) }}",
    "macro_scope": "{% set g = 'global' %}{% macro f() %}{{ g }}{{ m is defined }}{% set g = 'local' %}{{ g }}{% endmacro %}{% for m in [1] %}{{ f() }}{% endfor %}{{ g }}"
                   "{% set late = 1 %}{% macro h() %}{{ late }}{{ later }}{% endmacro %}{% set later = 2 %}{{ h() }}",
    "macro_in_loop": "{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}",
    "macro_calls_macro": "{% macro a(x) %}<{{ x }}>{% endmacro %}{% macro b(x) %}{{ a(x) ~ a(x|upper) }}{% endmacro %}{{ b('q') }}{% set s = b('r') %}{{ s|length }}",
    "call": "{% macro box(title) %}[{{ title }}:{{ caller() }}]{% endmacro %}{% call box('T') %}body {{ one }}{% endcall %}"
            "{% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, n=0) each(['a', 'b']) %}<{{ x }}{{ n }}>{% endcall %}",
    "call_scope": "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in [1, 2] %}{% call m() %}{{ i }}{{ loop.index }}{% set z = 1 %}{% endcall %}{{ z is defined }}{% endfor %}",
    "filter_block": "{% filter upper %}abc {{ text }}{% endfilter %}{% filter replace('a', 'b')|trim %}  banana  {% endfilter %}",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }}{% with %}{% set a = 9 %}{{ a }}{% endwith %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% set inside = 1 %}{% endgeneration %}{{ inside is defined }}\n"
                  "  {%- generation -%}\n  x\n  {%- endgeneration %}\n{% endif %}{% endfor %}",
    "print_statement": "{% print 1, 2 %}{% print 'x' ~ 1 %}",
    "if_chain": "{% for x in [1, 2, 3, 4] %}{% if x == 1 %}one{% elif x == 2 %}two{% elif x == 3 %}three{% else %}many{% endif %}{% endfor %}{% if undefined_name %}a{% else %}b{% endif %}",
    "if_with_tuple": "{% if 1, 0 %}t{% endif %}{% if not (messages|length == 0) and messages[0].role == 'system' %}sys{% endif %}",
    "reasoning": "{% for m in messages if m.role == 'assistant' %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning is defined }}|{{ m.content is defined }};{% endfor %}",
    "null_fields_go": "{% for m in messages %}{{ m.keys()|list }}{{ m|tojson }}{% endfor %}",
    "think_split": "{% set c = '<think>\\nhm\\n</think>\\n\\nyes' %}{% if '</think>' in c %}{% set r = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
                   "{{ r }}|{{ c.split('</think>')[-1].lstrip('\\n') }}{% endif %}",
    "reverse_messages": "{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ m.role[0] }} {% endfor %}{{ messages[1:]|length }}{{ messages[-1].role }}",
    "system_split": "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
                    "{{ system|trim }}{{ rest|length }}{% for m in rest %}{{ loop.index0 % 2 == 0 }}{% endfor %}",
    "roles_alternate": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate: ' ~ m.role) }}{% endif %}{% endfor %}",
    "joiner": "{% set comma = joiner(', ') %}{% for x in [1, 2, 3] %}{{ comma() }}{{ x }}{% endfor %}",
    "literal_braces": "{{ '{{' }} {{ \"}}\" }} {{ {'a': {'b': 1}} }} { % } {{ {}|length }}",
    "json_types": "{% for t in tools %}{% for k, v in t.function.parameters.properties|dictsort %}{{ k }}:{{ v.type if v.type is string else v.type|join('|') }}"
                  "{% if v.enum is defined %}{{ v.enum }}{% endif %} {% endfor %}{% endfor %}",
    "nested_namespace_paths": "{% set ns = namespace(a=namespace(b=1)) %}{{ ns.a.b }}{% set ns.a = {'b': 2} %}{{ ns.a.b }}{{ ns['a'].b }}",
    "date": "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}Today Date: {{ date_string }}",
    "unused_wrong_branch": "{% if false %}{{ text|nofilter }}{{ text is notest }}{{ x.y.z }}{% endif %}fine",
    "comments": "a{# {{ x }} {% if %} #}b{##}c{#-#}d{# multi\nline #}\ne\n   {#+ kept #}\nf",
    "unicode_names": "{% set größe = 3 %}{{ größe }}{% set _x = 1 %}{{ _x }}{% set x1 = 2 %}{{ x1 }}",
}

WRONG_TEMPLATES = {
    "unknown_tag": "{% frobnicate %}",
    "end_without_begin": "a{% endif %}",
    "if_without_end": "{% if true %}a",
    "for_without_end": "{% for x in y %}a",
    "for_without_in": "{% for x of y %}{% endfor %}",
    "tag_without_end": "{{ 1",
    "block_without_end": "{% if true",
    "comment_without_end": "{# a",
    "raw_without_end": "{% raw %}a",
    "wrong_end": "{% for x in [1] %}{% endif %}",
    "else_twice": "{% if a %}{% else %}{% else %}{% endif %}",
    "macro_without_name": "{% macro (a) %}{% endmacro %}",
    "macro_too_many": "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
    "macro_unknown_name": "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
    "macro_twice": "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}",
    "macro_default_order": "{% macro f(a=1, b) %}{% endmacro %}",
    "call_without_caller": "{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}",
    "caller_without_call": "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
    "set_constant": "{% set true = 1 %}",
    "set_attribute": "{% set x = {} %}{% set x.a = 1 %}",
    "set_private": "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "unpack_too_many": "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "unpack_number": "{% for a, b in [1] %}{% endfor %}",
    "loop_over_number": "{% for a in 5 %}{% endfor %}",
    "break_outside": "{% break %}",
    "continue_outside": "{% if true %}{% continue %}{% endif %}",
    "endless_macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "include": "{% include 'x' %}",
    "extends": "{% extends 'x' %}",
    "do": "{% do x %}",
    "bracket": "{{ (1] }}",
    "unexpected_character": "{{ a ! b }}",
    "unexpected_character_2": "{{ a $ b }}",
    "missing_filter": "{{ 'a'|nofilter }}",
    "filter_block_unknown": "{% filter nofilter %}a{% endfilter %}",
    "exception": "{{ raise_exception('Only user and assistant roles are supported!') }}",
}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def attempt(tokenizer, template, messages, options):
    """{"expected": text}, or {"error": what Transformers says}."""
    try:
        return {"expected": tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)}
    except Exception as error:
        return {"error": type(error).__name__}


def continued(tokenizer):
    """continue_final_message with templates that keep, trim and drop the message."""
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    parts = ("{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
             "{% endfor %}{% endif %}</{{ m.role }}>{% endfor %}")
    templates = {"plain": plain, "trims": plain.replace("m.content", "m.content|trim"), "parts": parts,
                 "drops": "{% for m in messages %}{{ m.role }}{# content #}{% endfor %}",
                 "cuts": plain.replace("m.content", "m.content[:2]"), "no_field": "{{ messages[0].role }}"}
    chats = {"text": "An answer that", "spaces": "  spaced \n ", "parts": [{"type": "text", "text": "first"}, {"type": "text", "text": "last "}, {"type": "image"}],
             "images": [{"type": "image"}], "empty": "", "none": None}
    for template_name, template in templates.items():
        for chat_name, content in chats.items():
            messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
            options = {"continue_final_message": True}
            yield {"name": f"continue_{template_name}_{chat_name}", "template": template, "messages": messages, "options": options,
                   **attempt(tokenizer, template, messages, options)}


def main():
    chat_template_utils.datetime = FixedTime
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **SPECIAL_TOKENS)
    cases = []

    def add(name, template, messages=None, **options):
        case = {"name": name, "template": template, **attempt(tokenizer, template, messages or MESSAGES, {**VARIABLES, **options})}
        if options:
            case["options"] = options
        if messages:
            case["messages"] = messages
        cases.append(case)
        return case

    expressions = [line for line in EXPRESSIONS.replace("\\\nb", "\\\x00b").split("\n") if line]
    for i, expression in enumerate(expressions):
        template = "{{ " + expression.replace("\x00", "\n") + " }}"
        case = add(f"expression_{i}", template)
        assert "expected" in case, (template, case)
    for i, expression in enumerate(filter(None, WRONG.split("\n"))):
        template = "{{ " + expression + " }}"
        case = add(f"wrong_expression_{i}", template)
        assert "error" in case, (template, case)
    for name, template in TEMPLATES.items():
        case = add(name, template, tools=TOOLS, documents=DOCUMENTS, add_generation_prompt=True)
        assert "expected" in case or name == "roles_alternate", (name, case)
        add(name + "_plain", template, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])
    for name, template in WRONG_TEMPLATES.items():
        case = add("wrong_" + name, template)
        assert "error" in case, (name, case)
    cases += continued(tokenizer)
    document = {
        "transformers": transformers.__version__, "jinja2": jinja2.__version__, "now": NOW.isoformat(),
        "special_tokens": SPECIAL_TOKENS, "messages": MESSAGES, "tools": TOOLS, "documents": DOCUMENTS, "variables": VARIABLES,
        "cases": cases,
    }
    (HERE / "chat_templates.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(len(cases), "cases,", sum("error" in case for case in cases), "refused")


if __name__ == "__main__":
    main()
