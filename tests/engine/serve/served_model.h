#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "engine/serve/serve_settings.h"
#include "models/model.h"
#include "models/tokenizer.h"

namespace sluice::test {

/// The embedded model's tokenizer (2048 ids), and a chat template of "role: content" lines.
inline ServedModel served_model() {
  static const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(open_model("tiny").files);
  ServedModel model;
  model.name = "tiny";
  model.tokenizer = tokenizer.get();
  model.vocab_size = tokenizer->vocab_size();
  model.max_model_len = 512;
  model.render_chat = [](const nlohmann::ordered_json& messages, const ChatRendering& options) {
    std::string text;
    for (const auto& message : messages) {
      if (message.at("role") == "nobody") throw Error("nobody may not speak");
      text += message.at("role").get<std::string>() + ": " +
              message.at("content").get<std::string>() + "\n";
    }
    if (options.variables != nullptr) text += options.variables->dump() + "\n";
    if (options.continue_final_message) text.pop_back();
    if (options.add_generation_prompt) text += "assistant:";
    return text;
  };
  return model;
}

}  // namespace sluice::test
