#pragma once

#include <optional>

#include "models/chat_template/chat_template.h"

namespace sluice {

class CommandLine;

/// --chat-template; `text` is its help.
void declare_chat_template_option(CommandLine& line, const char* text);
/// The file's that it names, else the model's own; nothing where there is none. Throws Error.
std::optional<ChatTemplate> find_chat_template(const CommandLine& line, const ModelFiles& files);
/// The same. Throws Error where there is none.
ChatTemplate open_chat_template(const CommandLine& line, const ModelFiles& files);

}  // namespace sluice
