#include "models/chat_template/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/interpreter.h"
#include "models/chat_template/parser.h"
#include "models/chat_template/text.h"
#include "models/tokenizer.h"

namespace sluice {

struct ChatTemplate::Parsed {
  std::string name;
  std::string source;
  jinja::Block block;
};

namespace {

using Json = nlohmann::ordered_json;

/// What marks the end of the message that is continued, as Transformers writes it.
constexpr std::string_view continue_tag = "CONTINUE_FINAL_MESSAGE_TAG ";

void require_objects(const Json& list, std::string_view what) {
  if (!list.is_array()) throw Error("{} is {}, expected a list of objects", what, list.type_name());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object())
      throw Error("{}[{}] is {}, expected an object", what, i, list[i].type_name());
  }
}

Json value_or(const Json& message, const char* key, const Json& fallback) {
  const auto found = message.find(key);
  return found == message.end() || found->is_null() ? fallback : *found;
}

/// A message without the fields that are null, and its reasoning under both names that templates
/// know.
Json normalized(const Json& message) {
  Json reasoning = value_or(message, "reasoning", nullptr);
  for (const char* name : {"thinking", "reasoning_content"})
    reasoning = value_or(message, name, reasoning);
  Json::object_t fields;  // appended to: a search for each key would be slow where there are many
  const bool has_reasoning = !reasoning.is_null();
  if (has_reasoning) fields.emplace_back("thinking", value_or(message, "thinking", reasoning));
  for (const auto& [key, value] : message.items()) {
    if (value.is_null() || (has_reasoning && key == "thinking")) continue;
    fields.emplace_back(key, value);
  }
  if (has_reasoning && value_or(message, "reasoning_content", nullptr).is_null())
    fields.emplace_back("reasoning_content", reasoning);
  return fields;
}

Json normalized_messages(const Json& messages) {
  require_objects(messages, "messages");
  if (messages.empty()) throw Error("messages is empty: a chat needs at least one message");
  Json result = Json::array();
  for (const Json& message : messages) result.push_back(normalized(message));
  return result;
}

/// The text of the last message that is continued: its content, or the last part that is text.
std::string& text_to_continue(Json& messages) {
  Json& message = messages.back();
  const auto content = message.find("content");
  if (content == message.end())
    throw Error("continue_final_message: the final message has no content to continue");
  if (content->is_string()) return content->get_ref<std::string&>();
  for (std::size_t i = content->is_array() ? content->size() : 0; i > 0; --i) {
    Json& part = (*content)[i - 1];
    if (part.is_object() && part.contains("text") && part["text"].is_string())
      return part["text"].get_ref<std::string&>();
  }
  throw Error("continue_final_message: the final message has no text to continue");
}

/// The rendered text up to where the continued message ends.
std::string cut_at_tag(const std::string& rendered, std::string_view message) {
  const std::string_view bare_tag = continue_tag.substr(0, continue_tag.size() - 1);
  const std::size_t at = rendered.rfind(bare_tag);
  const std::string_view text = jinja::stripped(message, jinja::Side::both);
  if (at == std::string::npos || rendered.find(text) == std::string::npos) {
    throw Error(
        "continue_final_message: the template does not write the final message as it is, so that "
        "it cannot be continued");
  }
  const std::string_view before = std::string_view(rendered).substr(0, at);
  if (std::string_view(rendered).substr(at).starts_with(continue_tag)) return std::string(before);
  return std::string(jinja::stripped(before, jinja::Side::right));
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return local;
}

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

void add_variables(jinja::Heap& heap, const Json& object, Variables& variables) {
  if (object.is_null()) return;
  if (!object.is_object())
    throw Error("the template's variables are {}, expected an object", object.type_name());
  for (const auto& [name, value] : object.items())
    variables.emplace_back(name, heap.from_json(value));
}

/// Later variables of a name hide earlier ones: the first that is found counts.
Variables make_variables(jinja::Heap& heap, const Json& messages, const ChatOptions& options,
                         const Json& special_tokens) {
  if (!options.tools.is_null()) require_objects(options.tools, "tools");
  if (!options.documents.is_null()) require_objects(options.documents, "documents");
  Variables variables;
  variables.emplace_back("messages", heap.from_json(messages));
  variables.emplace_back("tools", heap.from_json(options.tools));
  variables.emplace_back("documents", heap.from_json(options.documents));
  variables.emplace_back("add_generation_prompt", jinja::Value(options.add_generation_prompt));
  for (const auto& variable : variables) {
    if (options.variables.is_object() && options.variables.contains(variable.first))
      throw Error("the variable {} is the chat's own and cannot be set", quote(variable.first));
  }
  add_variables(heap, options.variables, variables);
  add_variables(heap, special_tokens, variables);
  return variables;
}

}  // namespace

std::shared_ptr<const ChatTemplate::Parsed> ChatTemplate::parse_one(std::string_view text,
                                                                    const std::string& name) {
  if (const auto bad = find_invalid_utf8(text))
    throw Error("{}: invalid UTF-8 at byte {}", name, *bad + 1);
  try {
    return std::make_shared<const Parsed>(Parsed{name, std::string(text), jinja::parse(text)});
  } catch (const Error& error) {
    throw Error("{}, {}", name, error.what());
  }
}

Chat parse_chat(std::string_view text, const std::string& where) {
  Json document = parse_ordered_json(text, where);
  Chat chat;
  if (document.is_array()) {
    chat.messages = std::move(document);
    chat.options.add_generation_prompt = true;
    return chat;
  }
  if (!document.is_object() || !document.contains("messages"))
    throw Error("{}: expected a list of messages, or an object with \"messages\"", where);
  const auto flag = [&](const char* name, bool fallback) {
    const auto found = document.find(name);
    if (found == document.end() || found->is_null()) return fallback;
    if (!found->is_boolean())
      throw Error("{}: {} is {}, expected true or false", where, name, found->type_name());
    return found->get<bool>();
  };
  const auto field = [&](const char* name) {
    return document.contains(name) ? std::move(document[name]) : Json();
  };
  chat.options.continue_final_message = flag("continue_final_message", false);
  chat.options.add_generation_prompt =
      flag("add_generation_prompt", !chat.options.continue_final_message);
  chat.options.tools = field("tools");
  chat.options.documents = field("documents");
  chat.options.variables = field("chat_template_kwargs");
  chat.messages = field("messages");
  return chat;
}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& name) {
  ChatTemplate chat_template;
  chat_template.default_ = parse_one(text, name);
  return chat_template;
}

void ChatTemplate::set_tool_template(std::string_view text, const std::string& name) {
  tool_use_ = parse_one(text, name);
}

void ChatTemplate::set_special_tokens(Json tokens) { special_tokens_ = std::move(tokens); }

std::string ChatTemplate::render(const Json& messages, const ChatOptions& options) const {
  const Parsed& parsed = tool_use_ != nullptr && !options.tools.is_null() ? *tool_use_ : *default_;
  Json chat = normalized_messages(messages);
  std::string continued;
  if (options.continue_final_message) {
    if (options.add_generation_prompt)
      throw Error("continue_final_message and add_generation_prompt exclude each other");
    if (parsed.source.find("content") == std::string::npos)
      throw Error("continue_final_message: the template does not read a message's content");
    std::string& text = text_to_continue(chat);
    continued = text;
    text += continue_tag;
  }
  jinja::Heap heap(options.limits);
  std::string rendered;
  try {
    Variables variables = make_variables(heap, chat, options, special_tokens_);
    rendered = jinja::render(parsed.block, std::move(variables),
                             options.now ? *options.now : local_time(), heap);
  } catch (const Error& error) {
    throw Error("{}, {}", parsed.name, error.what());
  }
  return options.continue_final_message ? cut_at_tag(rendered, continued) : rendered;
}

}  // namespace sluice
