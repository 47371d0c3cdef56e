#include "engine/serve/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "engine/requests/request_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_messages = 4096;
constexpr std::int64_t completion_tokens_by_default = 16;  // as OpenAI's
/// Messages and template variables in each other; more than any client sends.
constexpr int deepest_body = 64;

/// What `read` gives; a field that it finds wrong is an ApiError of status 400.
template <typename Read>
auto naming_fields(const Read& read) {
  try {
    return read();
  } catch (const FieldError& error) {
    throw bad_field(error.field(), "{}", error.what());
  }
}

Json parse_body(std::string_view body) {
  try {
    return parse_ordered_json(body, "the request's body", deepest_body);
  } catch (const Error& error) {
    throw ApiError({.status = 400, .param = {}, .code = {}}, error.what());
  }
}

// --- what is refused ---

bool is_empty(const Json& value) {
  return ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

void refuse_response_format(const Fields& fields) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  const bool is_text =
      format->is_object() && format->contains("type") && (*format)["type"] == "text";
  if (!is_text)
    throw bad_field("response_format",
                    "response_format other than {{\"type\": \"text\"}} is not "
                    "supported");
}

void refuse_modalities(const Fields& fields) {
  const Json* modalities = fields.find("modalities");
  if (modalities == nullptr) return;
  if (*modalities != Json::array({"text"}) && !is_empty(*modalities))
    throw bad_field("modalities", "modalities other than [\"text\"] are not supported");
}

/// Fields that would change the output, and are not done. Empty ones change nothing.
void refuse_what_is_not_done(const Fields& fields) {
  for (const char* name : {"tools", "functions", "logit_bias", "suffix", "audio"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !is_empty(*value))
      throw bad_field(name, "{} is not supported; leave it out", name);
  }
  refuse_response_format(fields);
  refuse_modalities(fields);
}

// --- prompts ---

ApiError too_long(const std::string& param, const ServedModel& model, const std::string& found) {
  return {{.status = 400, .param = param, .code = "context_length_exceeded"},
          fmt::format("This model's maximum context length is {} tokens, and the request has {}; "
                      "shorten it",
                      model.max_model_len, found)};
}

const Tokenizer& tokenizer_for(const ServedModel& model, const std::string& param) {
  if (model.tokenizer == nullptr)
    throw bad_field(param, "this model has no tokenizer: give the prompt as token ids");
  return *model.tokenizer;
}

std::vector<std::int32_t> encode(const std::string& text, const std::string& param,
                                 const ServedModel& model, Tokenizer::SpecialTokens special) {
  try {
    return tokenizer_for(model, param).encode(text, special);
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw bad_field(param, "{}: {}", param, error.what());
  }
}

Tokenizer::SpecialTokens read_special(const Fields& fields, bool otherwise) {
  return fields.boolean("add_special_tokens", otherwise) ? Tokenizer::SpecialTokens::add
                                                         : Tokenizer::SpecialTokens::leave_out;
}

std::string text_of(const std::vector<std::int32_t>& tokens, const ServedModel& model) {
  if (model.tokenizer == nullptr) return {};
  Utf8Stream utf8;  // the tokens may begin or end inside of a character
  std::string text = utf8.feed(model.tokenizer->decode(tokens));
  text += utf8.finish();
  return text;
}

class PromptReader {
 public:
  PromptReader(const Fields& fields, const ServedModel& model)
      : model_(model), special_(read_special(fields, true)) {
    const Json* prompt = fields.find("prompt");
    if (prompt == nullptr) throw bad_field("prompt", "prompt is missing");
    read(*prompt);
  }

  std::vector<Request> take() { return std::move(prompts_); }

 private:
  void read(const Json& prompt) {
    if (prompt.is_string()) return add_text(prompt);
    if (!prompt.is_array())
      throw bad_field("prompt", "prompt must be a text, token ids, or a list of them, found {}",
                      describe_ordered(prompt));
    if (prompt.empty()) throw bad_field("prompt", "prompt is an empty list");
    if (prompt.front().is_number()) return add_ids(prompt);
    for (const Json& one : prompt) {
      if (one.is_string()) {
        add_text(one);
      } else {
        add_ids(one);
      }
    }
  }

  void add_text(const Json& text) {
    Request request;
    request.prompt = text.get<std::string>();
    if (request.prompt.empty()) throw bad_field("prompt", "the prompt is empty; give it some text");
    request.prompt_tokens = encode(request.prompt, "prompt", model_, special_);
    add(std::move(request));
  }

  void add_ids(const Json& ids) {
    Request request;
    request.prompt_tokens = read_token_ids(ids, "prompt", model_.vocab_size);
    request.prompt = text_of(request.prompt_tokens, model_);
    add(std::move(request));
  }

  void add(Request request) {
    if (request.prompt_tokens.empty())
      throw bad_field("prompt", "the prompt gives no tokens; give it some text");
    request.index = std::ssize(prompts_);
    prompts_.push_back(std::move(request));
  }

  const ServedModel& model_;
  Tokenizer::SpecialTokens special_;
  std::vector<Request> prompts_;
};

// --- messages ---

/// A part of a message: its text, as nothing else is understood.
const std::string& text_of_part(const Json& part, const std::string& param) {
  if (!part.is_object()) throw bad_field(param, "{} must be a list of objects", param);
  const auto type = part.find("type");
  if (type != part.end() && *type != "text" && *type != "input_text")
    throw bad_field(param, "{} has a part of type {}; only text is supported", param,
                    describe_ordered(*type));
  const auto text = part.find("text");
  if (text == part.end() || !text->is_string())
    throw bad_field(param, "{} has a part without a \"text\"", param);
  return text->get_ref<const std::string&>();
}

std::string text_of_content(const Json& content, const std::string& param) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw bad_field(param, "{} must be a text or a list of parts, found {}", param,
                    describe_ordered(content));
  std::string text;
  for (const Json& part : content) {
    if (!text.empty()) text += '\n';
    text += text_of_part(part, param);
  }
  return text;
}

/// A message with its content as one text; other members pass, as templates may know them.
Json read_message(const Json& given, std::size_t number) {
  const std::string param = fmt::format("messages[{}]", number);
  if (!given.is_object()) throw bad_field(param, "{} must be an object", param);
  const auto role = given.find("role");
  if (role == given.end() || !role->is_string())
    throw bad_field(param + ".role", "{}.role must be a text", param);
  Json message = given;
  const auto content = given.find("content");
  if (content != given.end() && !content->is_null()) {
    message["content"] = text_of_content(*content, param + ".content");
  } else if (!given.contains("tool_calls")) {
    throw bad_field(param + ".content", "{}.content is missing", param);
  }
  return message;
}

Json read_messages(const Fields& fields) {
  const Json* given = fields.find("messages");
  if (given == nullptr) throw bad_field("messages", "messages is missing");
  if (!given->is_array() || given->empty())
    throw bad_field("messages", "messages must be a list of at least one message, found {}",
                    describe_ordered(*given));
  if (given->size() > most_messages)
    throw bad_field("messages", "messages has {} of them, expected at most {}", given->size(),
                    most_messages);
  Json messages = Json::array();
  for (const Json& message : *given) messages.push_back(read_message(message, messages.size()));
  return messages;
}

ChatRendering read_chat_options(const Fields& fields) {
  ChatRendering options;
  options.continue_final_message = fields.boolean("continue_final_message", false);
  options.add_generation_prompt =
      fields.boolean("add_generation_prompt", !options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt)
    throw bad_field("continue_final_message",
                    "continue_final_message and add_generation_prompt exclude each other");
  options.variables = fields.find("chat_template_kwargs");
  if (options.variables != nullptr && !options.variables->is_object())
    throw bad_field("chat_template_kwargs", "chat_template_kwargs must be an object, found {}",
                    describe_ordered(*options.variables));
  return options;
}

Request read_chat(const Fields& fields, const ServedModel& model) {
  const Json messages = read_messages(fields);
  const ChatRendering options = read_chat_options(fields);
  if (!model.render_chat)
    throw ApiError({.status = 400, .param = "messages", .code = "no_chat_template"},
                   "this model has no chat template: use /v1/completions, or start the server with "
                   "--chat-template FILE");
  Request request;
  try {
    request.prompt = model.render_chat(messages, options);
  } catch (const Error& error) {
    throw bad_field("messages", "the chat template refuses the messages: {}", error.what());
  }
  request.prompt_tokens = encode(request.prompt, "messages", model, read_special(fields, false));
  if (request.prompt_tokens.empty())
    throw bad_field("messages", "the chat template gives an empty prompt");
  return request;
}

// --- what comes back ---

std::optional<int> read_logprobs(const Fields& fields, Endpoint endpoint) {
  if (endpoint == Endpoint::completions) return read_logprobs_count(fields, "logprobs");
  const bool wanted = fields.boolean("logprobs", false);
  const int top = read_logprobs_count(fields, "top_logprobs").value_or(0);
  if (top > 0 && !wanted) throw bad_field("top_logprobs", "top_logprobs needs \"logprobs\": true");
  return wanted ? std::optional(top) : std::nullopt;
}

OpenAiRequest::Usage read_stream_usage(const Fields& fields, bool stream) {
  const Json* given = fields.find("stream_options");
  if (given == nullptr) return OpenAiRequest::Usage::none;
  if (!stream) throw bad_field("stream_options", "stream_options needs \"stream\": true");
  if (!given->is_object())
    throw bad_field("stream_options", "stream_options must be an object, found {}",
                    describe_ordered(*given));
  const Fields options(*given);
  const bool at_end = options.boolean("include_usage", false);
  if (at_end && options.boolean("continuous_usage_stats", false))
    return OpenAiRequest::Usage::in_each_chunk;
  return at_end ? OpenAiRequest::Usage::at_end : OpenAiRequest::Usage::none;
}

std::string read_model_name(const Fields& fields, const ServedModel& model) {
  std::string name = fields.text("model").value_or(model.name);
  if (name == model.name) return name;
  throw ApiError({.status = 404, .param = "model", .code = "model_not_found"},
                 fmt::format("The model {} does not exist; this server has {}", quote(name),
                             quote(model.name)));
}

// --- the whole ---

std::vector<Request> read_prompts(const Fields& fields, Endpoint endpoint,
                                  const ServedModel& model) {
  if (endpoint == Endpoint::completions) return PromptReader(fields, model).take();
  std::vector<Request> prompts;
  prompts.push_back(read_chat(fields, model));
  return prompts;
}

/// Tokens that may follow a prompt. Throws ApiError where it leaves too few of the model's.
std::int64_t room_behind(const Request& request, const RequestFields& given, Endpoint endpoint,
                         const ServedModel& model) {
  const std::int64_t prompt = std::ssize(request.prompt_tokens);
  const std::int64_t room = model.max_model_len - prompt;
  const std::int64_t wanted = given.max_tokens.value_or(1);
  const char* param = endpoint == Endpoint::chat ? "messages" : "prompt";
  if (room < wanted)
    throw too_long(param, model,
                   given.max_tokens
                       ? fmt::format("{} ({} in the prompt, {} by {})", prompt + wanted, prompt,
                                     wanted, given.max_tokens_name)
                       : fmt::format("{} in the prompt alone", prompt));
  if (given.max_tokens) return *given.max_tokens;
  return endpoint == Endpoint::chat ? room : std::min(room, completion_tokens_by_default);
}

/// What was asked for, or what the model's folder says, as far as there is room.
std::int64_t min_tokens_of(const Request& request, std::optional<std::int64_t> given,
                           std::int64_t max_tokens, const ServedModel& model) {
  if (given.value_or(0) > max_tokens)
    throw bad_field("min_tokens", "min_tokens is {}, expected at most the {} that may be generated",
                    *given, max_tokens);
  const std::int64_t prompt = std::ssize(request.prompt_tokens);
  return given.value_or(std::min(max_tokens, model.generation.min_new_tokens_after(prompt)));
}

void fill_prompt(Request& request, const Request& common, std::int64_t max_tokens,
                 std::int64_t min_tokens) {
  const std::int64_t index = request.index;
  Request filled = common;
  filled.index = index;
  filled.prompt = std::move(request.prompt);
  filled.prompt_tokens = std::move(request.prompt_tokens);
  filled.max_new_tokens = std::max<std::int64_t>(1, max_tokens);
  filled.min_new_tokens = min_tokens;
  filled.sampling.seed += static_cast<std::uint64_t>(index);  // prompts draw apart
  request = std::move(filled);
}

/// What all prompts of a body have in common.
Request common_request(const RequestFields& given, const OpenAiRequest& parsed,
                       const ServedModel& model, std::uint64_t seed) {
  if (given.stop && model.tokenizer == nullptr)
    throw bad_field("stop", "stop needs text, and this model has no tokenizer");
  Request common;
  common.sampling = default_sampling(model.generation);
  common.sampling.seed = seed;
  if (model.tokenizer != nullptr) common.stop = model.generation.stop_strings;
  given.apply_to(common);
  common.logprobs = parsed.logprobs;
  if (parsed.echo) common.prompt_logprobs = parsed.logprobs;
  return common;
}

OpenAiRequest read_form(const Fields& fields, Endpoint endpoint, const ServedModel& model) {
  OpenAiRequest parsed;
  parsed.endpoint = endpoint;
  parsed.model = read_model_name(fields, model);
  refuse_what_is_not_done(fields);
  fields.text("user");  // nothing is done with it
  parsed.stream = fields.boolean("stream", false);
  parsed.stream_usage = read_stream_usage(fields, parsed.stream);
  if (endpoint == Endpoint::completions) parsed.echo = fields.boolean("echo", false);
  parsed.return_token_ids = fields.boolean("return_token_ids", false);
  parsed.logprobs = read_logprobs(fields, endpoint);
  return parsed;
}

}  // namespace

SamplingParams default_sampling(const GenerationConfig& generation) {
  SamplingParams params;
  params.temperature =
      generation.do_sample.value_or(true) ? generation.temperature.value_or(1.0F) : 0.0F;
  params.top_k = generation.top_k.value_or(0);
  params.top_p = generation.top_p.value_or(1.0F);
  params.min_p = generation.min_p.value_or(0.0F);
  params.repetition_penalty = generation.repetition_penalty.value_or(1.0F);
  return params;
}

OpenAiRequest parse_openai_request(std::string_view body, Endpoint endpoint,
                                   const ServedModel& model, const ServeLimits& limits,
                                   std::uint64_t seed) {
  const Json object = parse_body(body);
  return naming_fields([&] {
    const Fields fields(object);
    OpenAiRequest parsed = read_form(fields, endpoint, model);
    const RequestFields given = read_request_fields(
        fields, {.vocab_size = model.vocab_size, .least_max_tokens = parsed.echo ? 0 : 1});
    const Request common = common_request(given, parsed, model, seed);
    parsed.wants_output = given.max_tokens != 0;
    parsed.prompts = read_prompts(fields, endpoint, model);
    if (std::ssize(parsed.prompts) * common.num_outputs > limits.outputs)
      throw bad_field("prompt", "{} prompts with {} outputs each, expected at most {} together",
                      parsed.prompts.size(), common.num_outputs, limits.outputs);
    for (Request& prompt : parsed.prompts) {
      const std::int64_t room = room_behind(prompt, given, endpoint, model);
      fill_prompt(prompt, common, room, min_tokens_of(prompt, given.min_tokens, room, model));
    }
    return parsed;
  });
}

TokenizeRequest parse_tokenize_request(std::string_view body, const ServedModel& model) {
  const Json object = parse_body(body);
  return naming_fields([&] {
    const Fields fields(object);
    read_model_name(fields, model);
    TokenizeRequest parsed;
    parsed.return_token_strs = fields.boolean("return_token_strs", false);
    if (fields.has("messages")) {
      parsed.tokens = read_chat(fields, model).prompt_tokens;
      return parsed;
    }
    const std::optional<std::string> text = fields.text("prompt");
    if (!text) throw bad_field("prompt", "prompt is missing");
    parsed.tokens = encode(*text, "prompt", model, read_special(fields, true));
    return parsed;
  });
}

std::vector<std::int32_t> parse_detokenize_request(std::string_view body,
                                                   const ServedModel& model) {
  const Json object = parse_body(body);
  return naming_fields([&] {
    const Fields fields(object);
    read_model_name(fields, model);
    if (!fields.has("tokens")) throw bad_field("tokens", "tokens is missing");
    tokenizer_for(model, "tokens");
    return fields.token_ids("tokens", model.vocab_size);
  });
}

}  // namespace sluice
