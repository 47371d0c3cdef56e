#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/backend.h"
#include "engine/serve/openai_request.h"

namespace sluice {

/// One request's answer as its tokens come: JSON texts of OpenAI's completion and chat completion
/// objects, or of the chunks of a stream. Choices are numbered prompt by prompt.
class OpenAiAnswer {
 public:
  /// `tokenizer` may be null, and outlives this. `created` is in seconds since 1970.
  OpenAiAnswer(OpenAiRequest request, std::string id, std::int64_t created,
               const Tokenizer* tokenizer);

  const OpenAiRequest& request() const { return request_; }
  const std::string& id() const { return id_; }

  void add_prompt_logprobs(std::int64_t prompt, std::vector<TokenLogprobs> positions);
  /// Both return the chunks that a stream sends now, and nothing where the answer is no stream.
  std::vector<std::string> add_token(std::int64_t prompt, OutputToken token);
  std::vector<std::string> finish_output(std::int64_t prompt, std::int64_t output,
                                         FinishReason reason, std::string_view text);

  bool is_finished() const { return num_finished_ == request_.num_outputs(); }
  /// The chunk behind all others of a stream, where usage was asked for.
  std::optional<std::string> usage_chunk() const;
  /// The object of an answer that is no stream, once it is finished.
  std::string whole() const;

  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  std::int64_t output_tokens() const { return output_tokens_; }

 private:
  struct Choice {
    std::string text;
    std::vector<std::int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    std::optional<FinishReason> finished;
    bool begun = false;                  ///< of a stream: its first chunk is out
    std::int64_t offset_characters = 0;  ///< of a stream: of the logprobs that are out
  };

  std::size_t choice_number(std::int64_t prompt, std::int64_t output) const;
  nlohmann::ordered_json head(std::string_view object) const;
  nlohmann::ordered_json usage() const;
  /// A choice's chunk with what has gathered, which it takes.
  std::string chunk(std::size_t number);
  void begin(std::size_t number, std::vector<std::string>& chunks);
  nlohmann::ordered_json completion_choice(std::size_t number, const Choice& choice) const;
  nlohmann::ordered_json chat_choice(std::size_t number, const Choice& choice) const;
  nlohmann::ordered_json completion_logprobs(const std::vector<TokenLogprobs>& positions,
                                             bool with_prompt, std::size_t number,
                                             std::int64_t& offset) const;
  nlohmann::ordered_json chat_logprobs(const std::vector<TokenLogprobs>& positions) const;
  nlohmann::ordered_json token_entry(const TokenLogprob& token) const;
  const Request& prompt_of(std::size_t number) const;

  OpenAiRequest request_;
  std::string id_;
  std::int64_t created_ = 0;
  const Tokenizer* tokenizer_;
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  ///< by prompt, without the first
  std::vector<Choice> choices_;
  std::int64_t num_finished_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t output_tokens_ = 0;
};

/// OpenAI's word for the end of an output that was not interrupted.
const char* finish_name(FinishReason reason);

/// A token's text in logprobs: its characters, a special token's name, or "bytes:\xe2" where it is
/// a part of a character.
std::string logprob_text(const Tokenizer* tokenizer, std::int32_t token);

}  // namespace sluice
