#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/chat_template.h"
#include "models/tokenizers/json_field.h"

namespace sluice {
namespace {

using tokenizers::JsonField;

/// A JSON file of the folder; null where there is none.
nlohmann::json read_json(const ModelFiles& files, const std::string& name) {
  const auto text = files.read(name);
  if (!text) return nullptr;
  return parse_json(quote_non_finite(*text), files.path(name), DuplicateKeys::last_wins);
}

/// Tokens are texts, or objects with "content"; null ones are none.
void add_special_tokens(const JsonField& root, nlohmann::ordered_json& tokens) {
  constexpr std::array<const char*, 7> names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};
  for (const char* name : names) {
    if (!root.value().contains(name)) continue;
    const auto field = root.find(name);
    if (!field) {
      tokens.erase(name);
    } else {
      tokens[name] = field->value().is_object() ? field->at("content").text() : field->text();
    }
  }
}

/// The named templates of tokenizer_config.json: "default" and "tool_use" count.
std::optional<ChatTemplate> from_list(const JsonField& list) {
  std::optional<JsonField> by_default;
  std::optional<JsonField> for_tools;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonField item = list.item(i);
    const std::string& name = item.at("name").text();
    if (name == "default") by_default = item.at("template");
    if (name == "tool_use") for_tools = item.at("template");
  }
  if (!by_default)
    throw Error("{}: no template is named 'default'; name one so, or give --chat-template",
                list.where());
  ChatTemplate chat_template = ChatTemplate::parse(by_default->text(), by_default->where());
  if (for_tools) chat_template.set_tool_template(for_tools->text(), for_tools->where());
  return chat_template;
}

std::optional<ChatTemplate> from_config(const ModelFiles& files) {
  const nlohmann::json config = read_json(files, "tokenizer_config.json");
  if (config.is_null()) return std::nullopt;
  const JsonField root(config, files.path("tokenizer_config.json"));
  const auto field = root.find("chat_template");
  if (!field) return std::nullopt;
  if (field->value().is_array()) return from_list(*field);
  return ChatTemplate::parse(field->text(), field->where());
}

std::optional<ChatTemplate> from_jinja_files(const ModelFiles& files) {
  const std::string name = "chat_template.jinja";
  const std::string tool_name = "chat_templates/tool_use.jinja";
  const auto text = files.read(name);
  if (!text) return std::nullopt;
  ChatTemplate chat_template = ChatTemplate::parse(*text, files.path(name));
  if (const auto for_tools = files.read(tool_name))
    chat_template.set_tool_template(*for_tools, files.path(tool_name));
  return chat_template;
}

}  // namespace

nlohmann::ordered_json read_special_tokens(const ModelFiles& files) {
  auto tokens = nlohmann::ordered_json::object();
  const nlohmann::json config = read_json(files, "tokenizer_config.json");
  if (!config.is_null()) add_special_tokens({config, files.path("tokenizer_config.json")}, tokens);
  if (config.is_object() && config.contains("added_tokens_decoder")) return tokens;
  const nlohmann::json map = read_json(files, "special_tokens_map.json");
  if (!map.is_null()) add_special_tokens({map, files.path("special_tokens_map.json")}, tokens);
  return tokens;
}

std::optional<ChatTemplate> find_chat_template(const ModelFiles& files) {
  auto found = from_jinja_files(files);
  if (!found) found = from_config(files);
  if (found) found->set_special_tokens(read_special_tokens(files));
  return found;
}

}  // namespace sluice
