#include "engine/commands/options/chat_template_option.h"

#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "engine/commands/options/command_line.h"

namespace sluice {

void declare_chat_template_option(CommandLine& line, const char* text) {
  line.options().add_options()  //
      ("chat-template", boost::program_options::value<std::string>(), text);
}

std::optional<ChatTemplate> find_chat_template(const CommandLine& line, const ModelFiles& files) {
  if (!line.given("chat-template")) return find_chat_template(files);
  const std::string& path = line.get<std::string>("chat-template");
  ChatTemplate chat_template = ChatTemplate::parse(read_file(path), path);
  chat_template.set_special_tokens(read_special_tokens(files));
  return chat_template;
}

ChatTemplate open_chat_template(const CommandLine& line, const ModelFiles& files) {
  std::optional<ChatTemplate> found = find_chat_template(line, files);
  if (!found) {
    throw Error(
        "{}: the model has no chat template, neither chat_template.jinja nor \"chat_template\" in "
        "tokenizer_config.json; give one with --chat-template FILE",
        files.root());
  }
  return std::move(*found);
}

}  // namespace sluice
