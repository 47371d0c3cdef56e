#include "models/chat_template/chat_template.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;
using testing::expect_error;

const ordered_json& golden() {
  static const ordered_json document =
      ordered_json::parse(read_file(SLUICE_TEST_DATA_DIR "/golden/chat_templates.json"));
  return document;
}

std::tm golden_time() {
  std::tm now = {};
  std::istringstream(golden().at("now").get<std::string>()) >>
      std::get_time(&now, "%Y-%m-%dT%H:%M:%S");
  return now;
}

ChatOptions options_of(const ordered_json& test) {
  ChatOptions options;
  options.now = golden_time();
  options.variables = golden().at("variables");
  if (!test.contains("options")) return options;
  const ordered_json& given = test.at("options");
  options.add_generation_prompt = given.value("add_generation_prompt", false);
  options.continue_final_message = given.value("continue_final_message", false);
  if (given.contains("tools")) options.tools = given.at("tools");
  if (given.contains("documents")) options.documents = given.at("documents");
  return options;
}

std::string render(const ordered_json& test) {
  ChatTemplate chat_template =
      ChatTemplate::parse(test.at("template").get<std::string>(), test.at("name"));
  chat_template.set_special_tokens(golden().at("special_tokens"));
  return chat_template.render(
      test.contains("messages") ? test.at("messages") : golden().at("messages"), options_of(test));
}

TEST(ChatTemplateTest, RendersAsTransformers) {
  for (const ordered_json& test : golden().at("cases")) {
    if (test.contains("error")) continue;
    try {
      EXPECT_EQ(render(test), test.at("expected").get<std::string>())
          << test.at("name") << ": " << test.at("template");
    } catch (const Error& error) {
      ADD_FAILURE() << test.at("name") << ": " << test.at("template") << ": " << error.what();
    }
  }
}

TEST(ChatTemplateTest, RefusesWhatTransformersRefuses) {
  for (const ordered_json& test : golden().at("cases")) {
    if (!test.contains("error")) continue;
    EXPECT_THROW(render(test), Error) << test.at("name") << ": " << test.at("template");
  }
}

/// Renders a template for a short chat.
std::string render_text(const std::string& text, ChatOptions options = {}) {
  const auto messages = ordered_json::parse(R"([{"role": "user", "content": "hi"}])");
  return ChatTemplate::parse(text, "a.jinja").render(messages, options);
}

void expect_refused(const std::string& text, std::initializer_list<std::string_view> parts,
                    const ChatOptions& options = {}) {
  SCOPED_TRACE(text.substr(0, 200));
  expect_error([&] { render_text(text, options); }, parts);
}

std::string repeated(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

ChatOptions few_steps() {
  ChatOptions options;
  options.limits.steps = 200'000;
  return options;
}

ChatOptions little_memory() {
  ChatOptions options;
  options.limits.memory_bytes = 4 << 20;
  return options;
}

TEST(ChatTemplateTest, NamesFileAndLine) {
  expect_refused("a\n{% if true %}\n{{ x.y }}{% endif %}", {"a.jinja, line 3: \"x\" is undefined"});
  expect_refused("{#\n#}\n{{ 'a'\n  |wrong }}", {"a.jinja, line 4: unknown filter \"wrong\""});
  expect_refused("\n{{ 1 is wrong }}", {"line 2: unknown test \"wrong\""});
  expect_refused("\n\n{% frob %}", {"a.jinja, line 3: ", "\"frob\""});
  expect_refused("\n{{ (1 }}", {"line 2: unexpected '}', expected ')'"});
  expect_refused("\n{{ 'a }}", {"line 2: a string has no end"});
  expect_refused("{% for x in [1] %}\n\n", {"line 2: 'endfor' is missing"});
  expect_refused("{% macro f() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n{{ f() }}",
                 {"line 2: ", "int", "str"});
  expect_refused("{{ raise_exception('no\\nsystem') }}", {"a.jinja, line 1: no\\nsystem"});
  expect_refused("\xff", {"a.jinja: invalid UTF-8 at byte 1"});
}

TEST(ChatTemplateTest, EndlessLoopEndsAtTheStepLimit) {
  for (const char* text :
       {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% for i in range(99999) %}{{ f(n - 1) if n }}{% endfor %}{% endmacro %}"
        "{{ f(9) }}",
        "{% set x = range(99999)|list %}{{ x == x[::-1] }}{% for a in x %}{{ a in x }}{% endfor %}",
        "{% set a = 'ab' * 1000000 %}{% set b = 'ab' * 500000 ~ 'c' %}{% for i in range(100) %}"
        "{{ a.rfind(b) }}{{ b in a }}{{ a.split(b)|length }}{% endfor %}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
        "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
        "{{ ns.x == ns.y }}"})
    expect_refused(text, {"a.jinja, line 1: ", "200000 steps", "loop without end"}, few_steps());
}

TEST(ChatTemplateTest, EndlessRecursionEndsAtTheDepthLimit) {
  for (const char* text : {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                           "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() "
                           "}}{% endmacro %}{{ f() }}",
                           "{% macro f() %}{% for x in [1] %}{% set y %}{{ f()|upper }}{% endset "
                           "%}{% endfor %}{% endmacro %}{{ f() }}",
                           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
                           "{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = "
                           "[ns.x] %}{% endfor %}{{ ns.x|tojson }}",
                           "{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = "
                           "{1: ns.x} %}{% endfor %}{{ ns.x }}",
                           "{% set ns = namespace(x=1, y=1) %}{% for i in range(5000) %}{% set "
                           "ns.x = [ns.x] %}{% set ns.y = [ns.y] %}"
                           "{% endfor %}{{ ns.x == ns.y }}",
                           "{% set ns = namespace(x=1, y=1) %}{% for i in range(5000) %}{% set "
                           "ns.x = [ns.x] %}{% set ns.y = [ns.y] %}"
                           "{% endfor %}{{ ns.x < ns.y }}",
                           "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
                           "{% set ns = namespace() %}{% set ns.f = ns %}{% macro f() %}{{ ns.f() "
                           "}}{% endmacro %}{% set ns.f = f %}{{ f() }}"})
    expect_refused(text, {"a.jinja, line 1: ", "1000 levels deep"});
}

TEST(ChatTemplateTest, DeepNestingIsRefusedWhenParsed) {
  constexpr int deep = 100'000;
  for (const auto& [open, middle, close] :
       std::initializer_list<std::array<const char*, 3>>{{"(", "1", ")"},
                                                         {"[", "", "]"},
                                                         {"{1:", "1", "}"},
                                                         {"-", "1", ""},
                                                         {"not ", "1", ""},
                                                         {"1 + ", "1", ""},
                                                         {"1 ** ", "1", ""},
                                                         {"1 or ", "1", ""},
                                                         {"1 if 1 else ", "1", ""},
                                                         {"", "x", ".x"},
                                                         {"", "x", "[1]"},
                                                         {"", "x", "|trim"},
                                                         {"f(", "", ")"},
                                                         {"", "x", "()"},
                                                         {"", "x", " is defined"},
                                                         {"x[", "1", "]"}}) {
    expect_refused("{{ " + repeated(open, deep) + middle + repeated(close, deep) + " }}",
                   {"a.jinja, line 1: "});
  }
  for (const auto& [open, close] : std::initializer_list<std::array<const char*, 2>>{
           {"{% if 1 %}", "{% endif %}"},
           {"{% for x in y %}", "{% endfor %}"},
           {"{% macro f() %}", "{% endmacro %}"},
           {"{% set x %}", "{% endset %}"},
           {"{% filter trim %}", "{% endfilter %}"},
           {"{% generation %}", "{% endgeneration %}"}})
    expect_refused(repeated(open, deep) + repeated(close, deep),
                   {"a.jinja, line 1: ", "200 levels deep"});
  expect_refused("{% for " + repeated("(", deep) + "a" + repeated(")", deep) + " in b %}",
                 {"200 levels deep"});
  // What is long but not deep.
  EXPECT_EQ(render_text("{{ " + repeated("1 ~ ", deep) + "1 }}"), repeated("1", deep + 1));
  EXPECT_EQ(render_text(repeated("{% if 1 %}a{% endif %}", deep)), repeated("a", deep));
  EXPECT_EQ(render_text("{% if 0 %}" + repeated("{% elif 0 %}", deep) + "{% else %}b{% endif %}"),
            "b");
}

TEST(ChatTemplateTest, HugeTextsEndAtTheMemoryLimit) {
  for (const char* text :
       {"{{ 'x' * 1000000000000 }}", "{{ [1] * 1000000000000 }}",
        "{{ ('ab' * 9223372036854775807)|length }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = ns.s + ['x' * "
        "1000000] %}{% endfor %}",
        "{% set ns = namespace(x='x' * 9999) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] "
        "%}{% "
        "endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x='x' * 9999) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] "
        "%}{% "
        "endfor %}{{ ns.x }}",
        "{{ 'a'.center(1000000000000) }}", "{{ 'a'.zfill(1000000000000) }}",
        "{{ 'a'|indent(1000000000000) }}", "{{ [1]|tojson(indent=1000000000000) }}",
        "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000)|length }}",
        "{{ ('a' * 100000).join('b' * 100000)|length }}"})
    expect_refused(text, {"a.jinja, line 1: ", "4194304 bytes of memory"}, little_memory());
  expect_refused("{{ 'x' * 1000000000000 }}", {"268435456 bytes of memory"});  // by default
}

TEST(ChatTemplateTest, HugeOutputIsRefused) {
  const std::string loop =
      "{% set x = 'x' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}";
  expect_refused(loop, {"a.jinja, line 1: ", "writes more than 67108864 bytes"});
  expect_refused("{% set y %}" + loop + "{% endset %}", {"67108864 bytes"});
  ChatOptions small;
  small.limits.output_bytes = 10;
  EXPECT_EQ(render_text("0123456789", small), "0123456789");
  expect_refused("0123456789a", {"more than 10 bytes"}, small);
}

TEST(ChatTemplateTest, RefusesNumbersBeyond64Bits) {
  for (const char* text :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}",
        "{{ 4294967296 * 4294967296 }}", "{{ 10 ** 19 }}", "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ (-9223372036854775807 - 1)|abs }}",
        "{{ 9223372036854775808 }}", "{{ 0x10000000000000000 }}", "{{ '9223372036854775808'|int }}",
        "{{ 1e30|int }}", "{{ '%d' % 1e30 }}"})
    expect_refused(text, {"64 bits"});
  EXPECT_EQ(
      render_text("{{ (-9223372036854775807 - 1) % -1 }} {{ (-9223372036854775807 - 1)|string }}"),
      "0 -9223372036854775808");
  ChatOptions options;
  options.variables = ordered_json::parse(R"({"x": 18446744073709551615})");
  expect_refused("{{ x }}", {"18446744073709551615", "64 bits"}, options);
}

TEST(ChatTemplateTest, TakesOddArguments) {
  for (const char* text :
       {"{{ 'abc'[::9223372036854775807] }}", "{{ [1, 2][::-9223372036854775807 - 1] }}",
        "{{ 'abc'[-9223372036854775807:9223372036854775807] }}",
        "{{ range(9223372036854775806, 9223372036854775807, 9)|list }}",
        "{{ 1.5|round(1000000000) }}", "{{ 1.5|round(-1000000000) }}",
        "{{ 'a'.split('b', 9223372036854775807) }}",
        "{{ 'abc'.find('c', -9223372036854775807, 9223372036854775807) }}",
        "{{ 'abc'.replace('', '-', -5) }}", "{{ [1]|slice(1000)|list|length }}",
        "{{ ''|title ~ ''|capitalize ~ ''|reverse }}"})
    EXPECT_NO_THROW(render_text(text)) << text;
  for (const char* text :
       {"{{ '%1000000000d' % 1 }}", "{{ '%.1000000000f' % 1 }}", "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{99999999999}'.format(1) }}", "{{ strftime_now('%1000000d') }}",
        "{{ [1]|batch(1000000000000, 0)|list }}", "{{ [1]|slice(1000000000000)|list }}",
        "{{ '%' % 1 }}", "{{ '{'.format(1) }}", "{{ '%(a' % {} }}", "{{ '\\ud800' }}",
        "{{ '\\x4' }}", "{{ '\\U00110000' }}", "{{ range(1, 2, 0) }}", "{{ 'a'[::0] }}",
        "{{ dict(**{1: 2}) }}", "{{ dict(a=1, *1) }}", "{{ [1, 2]|map('map', 'map')|list }}"})
    expect_refused(text, {"a.jinja, line 1: "});
}

TEST(ChatTemplateTest, RefusesChatsOfAnotherForm) {
  const ChatTemplate plain = ChatTemplate::parse("{{ messages }}", "a.jinja");
  const auto refused = [&](const char* messages, const ChatOptions& options,
                           std::initializer_list<std::string_view> parts) {
    expect_error([&] { plain.render(ordered_json::parse(messages), options); }, parts);
  };
  refused("[]", {}, {"messages is empty"});
  refused("{}", {}, {"messages is object"});
  refused("[{}, 1]", {}, {"messages[1] is number"});
  ChatOptions options;
  options.tools = "x";
  refused("[{}]", options, {"tools is string"});
  options = {};
  options.documents = ordered_json::parse("[1]");
  refused("[{}]", options, {"documents[0] is number"});
  options = {};
  options.variables = ordered_json::parse(R"({"messages": 1})");
  refused("[{}]", options, {"\"messages\"", "cannot be set"});
  options = {};
  options.variables = 5;
  refused("[{}]", options, {"variables are number"});
  options = {};
  options.continue_final_message = true;
  options.add_generation_prompt = true;
  refused("[{}]", options, {"continue_final_message", "add_generation_prompt"});
  options = {};
  options.variables["x"] = "a\xff";
  refused("[{}]", options, {"invalid UTF-8 at byte 2"});
}

TEST(ParseChatTest, TakesAListOrARequest) {
  const Chat list = parse_chat(R"([{"role": "user"}])", "c.json");
  EXPECT_EQ(list.messages, ordered_json::parse(R"([{"role": "user"}])"));
  EXPECT_TRUE(list.options.add_generation_prompt);
  const Chat request = parse_chat(
      R"({"model": "m", "messages": [{}], "tools": [{"b": 1, "a": 2}], "documents": null,
          "add_generation_prompt": null, "continue_final_message": true,
          "chat_template_kwargs": {"z": 1}})",
      "c.json");
  EXPECT_EQ(request.options.tools.dump(), R"([{"b":1,"a":2}])");
  EXPECT_TRUE(request.options.documents.is_null());
  EXPECT_TRUE(request.options.continue_final_message);
  EXPECT_FALSE(request.options.add_generation_prompt);
  EXPECT_EQ(request.options.variables.at("z"), 1);
  for (const char* text :
       {"5", "{}", "\"x\"", "null", "[", R"({"messages": [], "add_generation_prompt": 1})"})
    expect_error([&] { parse_chat(text, "c.json"); }, {"c.json: "});
}

using test::TemporaryFolder;

std::string render_in(const TemporaryFolder& folder, const ChatOptions& options = {}) {
  const auto found = find_chat_template(ModelFiles::open(folder.path().string()));
  return found ? found->render(ordered_json::parse("[{}]"), options) : "no template";
}

TEST(FindChatTemplateTest, TakesTheJinjaFileFirst) {
  const TemporaryFolder folder;
  EXPECT_EQ(render_in(folder), "no template");
  folder.write("tokenizer_config.json", R"({"eos_token": "E"})");
  EXPECT_EQ(render_in(folder), "no template");
  folder.write("tokenizer_config.json",
               R"({"chat_template": "config {{ eos_token }}", "eos_token": "E"})");
  EXPECT_EQ(render_in(folder), "config E");
  folder.write("chat_template.jinja", "file {{ eos_token }}\n");
  EXPECT_EQ(render_in(folder), "file E");
}

TEST(FindChatTemplateTest, TakesTheToolTemplateWhereToolsAreGiven) {
  const TemporaryFolder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  ChatOptions with_tools;
  with_tools.tools = ordered_json::array();
  EXPECT_EQ(render_in(folder), "plain");
  EXPECT_EQ(render_in(folder, with_tools), "tools");
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(render_in(folder, with_tools), "file");
  std::filesystem::create_directory(folder.path() / "chat_templates");
  folder.write("chat_templates/tool_use.jinja", "tool file");
  EXPECT_EQ(render_in(folder, with_tools), "tool file");
  EXPECT_EQ(render_in(folder), "file");
}

TEST(FindChatTemplateTest, ReadsSpecialTokensInEitherForm) {
  const TemporaryFolder folder;
  folder.write("chat_template.jinja",
               "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ pad_token }}");
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "unk_token": null, "pad_token": "P"})");
  EXPECT_EQ(render_in(folder), "<s></s>FalseP");
  folder.write("special_tokens_map.json",
               R"({"eos_token": {"content": "<end>"}, "pad_token": null})");
  EXPECT_EQ(render_in(folder), "<s><end>False");
  folder.write("tokenizer_config.json",
               R"({"bos_token": "B", "eos_token": "E", "added_tokens_decoder": {}})");
  EXPECT_EQ(render_in(folder), "BEFalse");
}

TEST(FindChatTemplateTest, RefusesWrongFiles) {
  const auto refused = [](const std::string& config,
                          std::initializer_list<std::string_view> parts) {
    const TemporaryFolder folder;
    folder.write("tokenizer_config.json", config);
    expect_error([&] { render_in(folder); }, parts);
  };
  refused(R"({"chat_template": 5})", {"tokenizer_config.json: chat_template", "string"});
  refused(R"({"chat_template": [{"name": "rag", "template": ""}]})",
          {"chat_template", "'default'"});
  refused(R"({"chat_template": [{"name": "default"}]})",
          {"chat_template[0]", "'template' is missing"});
  refused(R"({"chat_template": "{% if %}"})", {"tokenizer_config.json: chat_template, line 1: "});
  refused(R"({"chat_template": "", "bos_token": 1})",
          {"tokenizer_config.json: bos_token", "string"});
  refused("[1]", {"tokenizer_config.json", "object"});
}

}  // namespace
}  // namespace sluice
