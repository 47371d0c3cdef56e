#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/generation_config.h"
#include "models/tokenizer.h"

namespace sluice {

/// What a client may ask of the server's memory and patience.
struct ServeLimits {
  std::int64_t header_bytes = 16 << 10;
  std::int64_t body_bytes = 8 << 20;
  std::int64_t all_bodies_bytes = 128 << 20;  ///< of requests that are being read
  std::int64_t connections = 4096;
  std::int64_t outputs = 512;              ///< prompts times n in one request
  std::int64_t unsent_bytes = 1 << 20;     ///< of a stream whose reader is slow
  std::chrono::milliseconds idle{60'000};  ///< between the requests of a connection
  std::chrono::milliseconds header{10'000};
  std::chrono::milliseconds body{60'000};
  std::chrono::milliseconds stalled_write{30'000};
};

/// How a conversation becomes text.
struct ChatRendering {
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  const nlohmann::ordered_json* variables = nullptr;  ///< chat_template_kwargs, an object, or null
};

/// The text of a list of messages, each an object whose "content" is a text. Throws Error where the
/// template does not take them.
using ChatRenderer =
    std::function<std::string(const nlohmann::ordered_json& messages, const ChatRendering& how)>;

/// The model as requests see it. The tokenizer outlives the server.
struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer = nullptr;  ///< null: token ids only
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  ///< tokens of a prompt and its output
  GenerationConfig generation;     ///< what a request gets that says nothing
  ChatRenderer render_chat;        ///< empty: no chat
};

struct ServeSettings {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: any that is free
  std::string api_key_file;   ///< a key a line; empty: no key is asked for
  std::chrono::milliseconds drain{30'000};
  ServeLimits limits;
  ServedModel model;
};

}  // namespace sluice
