#include "engine/serve/openai_response.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

/// JSON has no infinity; other servers write this, too.
constexpr double least_logprob = -9999.0;

/// The shortest number that is this float, so that equal ones have equal texts.
ordered_json number_of(float logprob) {
  if (!(logprob > least_logprob)) return least_logprob;
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), logprob);
  double value = 0;
  std::from_chars(text.data(), written.ptr, value);
  return value;
}

std::int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string bytes_of(const Tokenizer* tokenizer, std::int32_t token) {
  if (tokenizer == nullptr) return {};
  return tokenizer->is_special(token) ? tokenizer->special_text(token)
                                      : tokenizer->token_bytes(token);
}

/// The likeliest tokens, and the one that stands there even if it is none of them.
std::vector<TokenLogprob> with_chosen(const TokenLogprobs& position) {
  std::vector<TokenLogprob> tokens = position.likeliest;
  const bool is_there = std::any_of(tokens.begin(), tokens.end(), [&](const TokenLogprob& token) {
    return token.token == position.token.token;
  });
  if (!is_there) tokens.push_back(position.token);
  return tokens;
}

ordered_json finish_json(const std::optional<FinishReason>& reason) {
  return reason ? ordered_json(finish_name(*reason)) : ordered_json(nullptr);
}

}  // namespace

const char* finish_name(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

std::string logprob_text(const Tokenizer* tokenizer, std::int32_t token) {
  std::string bytes = bytes_of(tokenizer, token);
  if (!find_invalid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

OpenAiAnswer::OpenAiAnswer(OpenAiRequest request, std::string id, std::int64_t created,
                           const Tokenizer* tokenizer)
    : request_(std::move(request)),
      id_(std::move(id)),
      created_(created),
      tokenizer_(tokenizer),
      prompt_logprobs_(request_.prompts.size()),
      choices_(static_cast<std::size_t>(request_.num_outputs())) {
  for (const Request& prompt : request_.prompts) prompt_tokens_ += std::ssize(prompt.prompt_tokens);
}

std::size_t OpenAiAnswer::choice_number(std::int64_t prompt, std::int64_t output) const {
  return static_cast<std::size_t>(prompt * request_.prompts.front().num_outputs + output);
}

const Request& OpenAiAnswer::prompt_of(std::size_t number) const {
  const auto each = static_cast<std::size_t>(request_.prompts.front().num_outputs);
  return request_.prompts[number / each];
}

void OpenAiAnswer::add_prompt_logprobs(std::int64_t prompt, std::vector<TokenLogprobs> positions) {
  prompt_logprobs_.at(static_cast<std::size_t>(prompt)) = std::move(positions);
}

std::vector<std::string> OpenAiAnswer::add_token(std::int64_t prompt, OutputToken token) {
  if (!request_.wants_output) return {};
  const std::size_t number = choice_number(prompt, token.output);
  Choice& choice = choices_.at(number);
  ++output_tokens_;
  std::vector<std::string> chunks;
  begin(number, chunks);
  choice.text += token.text;
  if (request_.return_token_ids) choice.tokens.push_back(token.token);
  if (request_.logprobs) choice.logprobs.push_back(std::move(token.logprobs));
  const bool has_news = !choice.text.empty() || !choice.tokens.empty() || !choice.logprobs.empty();
  if (request_.stream && has_news) chunks.push_back(chunk(number));
  return chunks;
}

std::vector<std::string> OpenAiAnswer::finish_output(std::int64_t prompt, std::int64_t output,
                                                     FinishReason reason, std::string_view text) {
  const std::size_t number = choice_number(prompt, output);
  Choice& choice = choices_.at(number);
  std::vector<std::string> chunks;
  begin(number, chunks);
  if (request_.wants_output) choice.text += text;
  if (!choice.finished) ++num_finished_;
  choice.finished = request_.wants_output ? reason : FinishReason::length;
  if (request_.stream) chunks.push_back(chunk(number));
  return chunks;
}

/// A stream's first chunk of a choice: who speaks, or the prompt that is echoed.
void OpenAiAnswer::begin(std::size_t number, std::vector<std::string>& chunks) {
  Choice& choice = choices_[number];
  if (choice.begun) return;
  choice.begun = true;
  if (!request_.stream) return;
  if (request_.endpoint == Endpoint::completions && !request_.echo && !request_.return_token_ids)
    return;
  ordered_json object;
  if (request_.endpoint == Endpoint::completions) {
    object = head("text_completion");
    ordered_json first = completion_choice(number, {});
    first["text"] = request_.echo ? prompt_of(number).prompt : "";
    if (request_.echo && request_.logprobs)
      first["logprobs"] = completion_logprobs({}, true, number, choice.offset_characters);
    if (request_.return_token_ids) first["prompt_token_ids"] = prompt_of(number).prompt_tokens;
    object["choices"] = ordered_json::array({first});
  } else {
    object = head("chat.completion.chunk");
    ordered_json first = chat_choice(number, {});
    first["delta"] = {{"role", "assistant"}, {"content", ""}};
    object["choices"] = ordered_json::array({first});
    if (request_.return_token_ids) object["prompt_token_ids"] = prompt_of(number).prompt_tokens;
  }
  if (request_.stream_usage == OpenAiRequest::Usage::at_end) object["usage"] = nullptr;
  if (request_.stream_usage == OpenAiRequest::Usage::in_each_chunk) object["usage"] = usage();
  chunks.push_back(json_text(object));
}

std::string OpenAiAnswer::chunk(std::size_t number) {
  Choice& choice = choices_[number];
  const bool is_chat = request_.endpoint == Endpoint::chat;
  ordered_json object = head(is_chat ? "chat.completion.chunk" : "text_completion");
  ordered_json news = is_chat ? chat_choice(number, choice) : completion_choice(number, choice);
  if (!is_chat && request_.logprobs && !choice.logprobs.empty())
    news["logprobs"] =
        completion_logprobs(choice.logprobs, false, number, choice.offset_characters);
  object["choices"] = ordered_json::array({std::move(news)});
  if (request_.stream_usage == OpenAiRequest::Usage::at_end) object["usage"] = nullptr;
  if (request_.stream_usage == OpenAiRequest::Usage::in_each_chunk) object["usage"] = usage();
  choice.text.clear();
  choice.tokens.clear();
  choice.logprobs.clear();
  return json_text(object);
}

std::optional<std::string> OpenAiAnswer::usage_chunk() const {
  if (request_.stream_usage == OpenAiRequest::Usage::none) return std::nullopt;
  ordered_json object =
      head(request_.endpoint == Endpoint::chat ? "chat.completion.chunk" : "text_completion");
  object["choices"] = ordered_json::array();
  object["usage"] = usage();
  return json_text(object);
}

std::string OpenAiAnswer::whole() const {
  const bool is_chat = request_.endpoint == Endpoint::chat;
  ordered_json object = head(is_chat ? "chat.completion" : "text_completion");
  ordered_json choices = ordered_json::array();
  for (std::size_t number = 0; number < choices_.size(); ++number) {
    const Choice& choice = choices_[number];
    if (is_chat) {
      choices.push_back(chat_choice(number, choice));
      continue;
    }
    ordered_json entry = completion_choice(number, choice);
    if (request_.echo) entry["text"] = prompt_of(number).prompt + choice.text;
    std::int64_t offset = 0;
    if (request_.logprobs)
      entry["logprobs"] = completion_logprobs(choice.logprobs, request_.echo, number, offset);
    if (request_.return_token_ids) entry["prompt_token_ids"] = prompt_of(number).prompt_tokens;
    choices.push_back(std::move(entry));
  }
  object["choices"] = std::move(choices);
  if (is_chat && request_.return_token_ids) object["prompt_token_ids"] = prompt_of(0).prompt_tokens;
  object["usage"] = usage();
  return json_text(object);
}

ordered_json OpenAiAnswer::head(std::string_view object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", request_.model}};
}

ordered_json OpenAiAnswer::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", output_tokens_},
          {"total_tokens", prompt_tokens_ + output_tokens_}};
}

ordered_json OpenAiAnswer::completion_choice(std::size_t number, const Choice& choice) const {
  ordered_json entry = {{"index", number},
                        {"text", choice.text},
                        {"logprobs", nullptr},
                        {"finish_reason", finish_json(choice.finished)}};
  if (request_.return_token_ids) entry["token_ids"] = choice.tokens;
  return entry;
}

ordered_json OpenAiAnswer::chat_choice(std::size_t number, const Choice& choice) const {
  ordered_json entry = {{"index", number}};
  if (request_.stream) {
    entry["delta"] = ordered_json::object();
    if (!choice.text.empty()) entry["delta"]["content"] = choice.text;
  } else {
    entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  }
  const bool has_logprobs = request_.logprobs && !(request_.stream && choice.logprobs.empty());
  entry["logprobs"] = has_logprobs ? chat_logprobs(choice.logprobs) : ordered_json(nullptr);
  entry["finish_reason"] = finish_json(choice.finished);
  if (request_.return_token_ids) entry["token_ids"] = choice.tokens;
  return entry;
}

/// The form of /v1/completions: parallel lists. The first token of an echoed prompt follows
/// nothing, so its entries are null.
ordered_json OpenAiAnswer::completion_logprobs(const std::vector<TokenLogprobs>& positions,
                                               bool with_prompt, std::size_t number,
                                               std::int64_t& offset) const {
  ordered_json lists = {{"tokens", ordered_json::array()},
                        {"token_logprobs", ordered_json::array()},
                        {"top_logprobs", ordered_json::array()},
                        {"text_offset", ordered_json::array()}};
  const auto add = [&](std::int32_t token, const TokenLogprobs* position) {
    const std::string text = logprob_text(tokenizer_, token);
    lists["tokens"].push_back(text);
    lists["text_offset"].push_back(offset);
    offset += num_characters(text);
    if (position == nullptr) {
      lists["token_logprobs"].push_back(nullptr);
      lists["top_logprobs"].push_back(nullptr);
      return;
    }
    lists["token_logprobs"].push_back(number_of(position->token.logprob));
    ordered_json top = ordered_json::object();
    for (const TokenLogprob& likely : with_chosen(*position)) {
      const std::string name = logprob_text(tokenizer_, likely.token);
      // Tokens may have the same text: the likelier counts, and the chosen one before all.
      if (likely.token == position->token.token || !top.contains(name))
        top[name] = number_of(likely.logprob);
    }
    lists["top_logprobs"].push_back(std::move(top));
  };
  if (with_prompt) {
    const Request& prompt = prompt_of(number);
    const auto each = static_cast<std::size_t>(prompt.num_outputs);
    add(prompt.prompt_tokens.front(), nullptr);
    for (const TokenLogprobs& position : prompt_logprobs_[number / each])
      add(position.token.token, &position);
  }
  for (const TokenLogprobs& position : positions) add(position.token.token, &position);
  return lists;
}

ordered_json OpenAiAnswer::token_entry(const TokenLogprob& token) const {
  const std::string bytes = bytes_of(tokenizer_, token.token);
  ordered_json list = ordered_json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return {{"token", logprob_text(tokenizer_, token.token)},
          {"logprob", number_of(token.logprob)},
          {"bytes", std::move(list)}};
}

/// The form of chat: a list of objects.
ordered_json OpenAiAnswer::chat_logprobs(const std::vector<TokenLogprobs>& positions) const {
  ordered_json content = ordered_json::array();
  for (const TokenLogprobs& position : positions) {
    ordered_json entry = token_entry(position.token);
    ordered_json top = ordered_json::array();
    for (const TokenLogprob& likely : position.likeliest) top.push_back(token_entry(likely));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace sluice
