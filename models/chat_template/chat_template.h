#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "models/chat_template/limits.h"
#include "models/files.h"

namespace sluice {

/// What a chat is rendered with besides its messages, as Transformers' apply_chat_template takes
/// it.
struct ChatOptions {
  bool add_generation_prompt = false;
  bool continue_final_message = false;  ///< excludes add_generation_prompt
  nlohmann::ordered_json tools;         ///< a list of JSON schemas; null: none
  nlohmann::ordered_json documents;     ///< a list of objects; null: none
  nlohmann::ordered_json variables;  ///< an object of more variables (chat_template_kwargs); null
  std::optional<std::tm> now;        ///< for strftime_now; else the local time
  TemplateLimits limits;
};

/// A model's chat template: turns messages into the text of a prompt, as Transformers does it with
/// Jinja. Thread-safe.
class ChatTemplate {
 public:
  /// `name` begins the messages of errors. Throws Error (name, line, reason) for what is no Jinja
  /// or not supported.
  static ChatTemplate parse(std::string_view text, const std::string& name);

  /// The template that is taken instead where tools are given. Throws as parse() does.
  void set_tool_template(std::string_view text, const std::string& name);
  /// Variables of every rendering: an object, such as {"bos_token": "<s>"}.
  void set_special_tokens(nlohmann::ordered_json tokens);
  const nlohmann::ordered_json& special_tokens() const { return special_tokens_; }

  /// Renders messages: a list of objects, not empty. Throws Error for messages of another form,
  /// where the template fails or raises an exception itself, and at a limit.
  std::string render(const nlohmann::ordered_json& messages, const ChatOptions& options) const;

 private:
  struct Parsed;
  static std::shared_ptr<const Parsed> parse_one(std::string_view text, const std::string& name);

  std::shared_ptr<const Parsed> default_;
  std::shared_ptr<const Parsed> tool_use_;  ///< null: the default
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();
};

/// A chat as a JSON text: a list of messages, or an object with "messages" and perhaps "tools",
/// "documents", "add_generation_prompt" (true unless continued), "continue_final_message" and
/// "chat_template_kwargs"; other fields are ignored.
struct Chat {
  nlohmann::ordered_json messages;
  ChatOptions options;
};
/// Throws Error, which begins with `where`.
Chat parse_chat(std::string_view text, const std::string& where);

/// The template of a model's folder with its special tokens: chat_template.jinja, else
/// "chat_template" of tokenizer_config.json. Nothing where there is none. Throws Error.
std::optional<ChatTemplate> find_chat_template(const ModelFiles& files);

/// The special tokens that templates see, such as {"bos_token": "<s>"}: from
/// tokenizer_config.json and special_tokens_map.json. Throws Error.
nlohmann::ordered_json read_special_tokens(const ModelFiles& files);

}  // namespace sluice
