// Any bytes as the body of a request: either it is refused in OpenAI's form, or what comes out is
// something that an engine can run, and its answer is JSON.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/serve/openai_request.h"
#include "engine/serve/openai_response.h"
#include "models/model.h"
#include "models/tokenizer.h"

namespace {

using nlohmann::json;

void require(bool condition) {
  if (!condition) std::abort();
}

const sluice::ServedModel& model() {
  static const std::unique_ptr<sluice::Tokenizer> tokenizer =
      sluice::open_tokenizer(sluice::open_model("tiny").files);
  static const sluice::ServedModel made = [] {
    sluice::ServedModel served;
    served.name = "tiny";
    served.tokenizer = tokenizer.get();
    served.vocab_size = tokenizer->vocab_size();
    served.max_model_len = 512;
    served.render_chat = [](const nlohmann::ordered_json& messages, const sluice::ChatRendering&) {
      std::string text;
      for (const auto& message : messages) text += message.value("role", "") + ": ";
      return text;
    };
    return served;
  }();
  return made;
}

void check_prompt(const sluice::Request& request) {
  const std::int64_t prompt = std::ssize(request.prompt_tokens);
  require(prompt > 0 && request.max_new_tokens > 0 && request.num_outputs > 0);
  require(prompt + request.max_new_tokens <= model().max_model_len + 1);  // an echo alone has one
  require(request.min_new_tokens >= 0 && request.min_new_tokens <= request.max_new_tokens);
  for (const std::int32_t id : request.prompt_tokens) require(id >= 0 && id < model().vocab_size);
  for (const std::string& stop : request.stop) require(!stop.empty());
  const sluice::SamplingParams& sampling = request.sampling;
  require(sampling.temperature >= 0 && sampling.top_k >= 0 && sampling.min_p >= 0);
  require(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.repetition_penalty > 0);
}

void check_answer(sluice::OpenAiRequest request) {
  const std::int64_t prompts = std::ssize(request.prompts);
  const std::int64_t outputs = request.prompts.front().num_outputs;
  sluice::OpenAiAnswer answer(std::move(request), "id", 0, model().tokenizer);
  for (std::int64_t prompt = 0; prompt < prompts; ++prompt) {
    for (std::int64_t output = 0; output < outputs; ++output) {
      const sluice::OutputToken token{.output = output, .token = 300, .text = "x", .logprobs = {}};
      for (const std::string& chunk : answer.add_token(prompt, token)) require(json::accept(chunk));
      for (const std::string& chunk :
           answer.finish_output(prompt, output, sluice::FinishReason::stop, ""))
        require(json::accept(chunk));
    }
  }
  require(answer.is_finished() && json::accept(answer.whole()));
}

template <typename Parse>
void check_refusal(Parse parse) {
  try {
    parse();
  } catch (const sluice::ApiError& error) {
    require(error.details().status == 400 || error.details().status == 404);
    const std::string body = error.body();
    require(body.find('\n') == std::string::npos && body.size() < 2000);
    require(json::parse(body).at("error").at("message").is_string());
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const auto endpoint : {sluice::Endpoint::completions, sluice::Endpoint::chat}) {
    check_refusal([&] {
      sluice::OpenAiRequest request = sluice::parse_openai_request(body, endpoint, model(), {}, 1);
      require(!request.prompts.empty() && request.num_outputs() <= sluice::ServeLimits().outputs);
      for (const sluice::Request& prompt : request.prompts) check_prompt(prompt);
      check_answer(std::move(request));
    });
  }
  check_refusal([&] { sluice::parse_tokenize_request(body, model()); });
  check_refusal([&] { sluice::parse_detokenize_request(body, model()); });
  return 0;
}
