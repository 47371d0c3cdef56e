#include "engine/requests/request_fields.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "codelets/runtime/batch.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t most_outputs = 128;
constexpr std::size_t most_stop_texts = 64;
constexpr std::size_t most_stop_tokens = 1024;
constexpr std::size_t longest_stop_bytes = 1024;
constexpr float highest_penalty = 2.0F;
constexpr float highest_temperature = 2.0F;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

std::optional<std::int64_t> read_num_outputs(const Fields& fields) {
  const std::optional<std::int64_t> n = fields.whole("n", 1, most_outputs);
  const std::int64_t best_of = fields.whole("best_of", 1, most_outputs).value_or(n.value_or(1));
  if (best_of != n.value_or(1))
    throw FieldError("best_of", "best_of must equal n, which is {}: other ones are not supported",
                     n.value_or(1));
  return n;
}

void read_sampling(RequestFields& read, const Fields& fields) {
  constexpr float least = 1e-6F;
  constexpr float highest_repetition = 100.0F;
  constexpr float lowest_repetition = 0.01F;
  read.temperature = fields.number("temperature", 0.0F, highest_temperature);
  read.top_p = fields.number("top_p", 0.0F, 1.0F);
  if (read.top_p) read.top_p = std::max(*read.top_p, least);  // the likeliest token is always left
  if (const auto top_k = fields.whole("top_k", -1, std::numeric_limits<int>::max()))
    read.top_k = std::max(0, static_cast<int>(*top_k));  // -1 is "off", too
  read.min_p = fields.number("min_p", 0.0F, 1.0F);
  read.repetition_penalty =
      fields.number("repetition_penalty", lowest_repetition, highest_repetition);
  read.presence_penalty = fields.number("presence_penalty", -highest_penalty, highest_penalty);
  read.frequency_penalty = fields.number("frequency_penalty", -highest_penalty, highest_penalty);
  const auto seed = fields.whole("seed", std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max());
  if (seed) read.seed = static_cast<std::uint64_t>(*seed);
}

void add_stop(std::vector<std::string>& stop, const Json& text) {
  const auto* given = text.get_ptr<const std::string*>();
  if (given == nullptr)
    throw FieldError("stop", "stop must be a text or a list of texts, found {}",
                     describe_ordered(text));
  if (given->empty())
    throw FieldError("stop", "stop has an empty text, which would end everything");
  if (given->size() > longest_stop_bytes)
    throw FieldError("stop", "stop has a text of {} bytes, expected at most {}", given->size(),
                     longest_stop_bytes);
  stop.push_back(*given);
}

std::optional<std::vector<std::string>> read_stop(const Fields& fields) {
  const Json* given = fields.find("stop");
  if (given == nullptr) return std::nullopt;
  std::vector<std::string> stop;
  if (!given->is_array()) {
    add_stop(stop, *given);
    return stop;
  }
  if (given->size() > most_stop_texts)
    throw FieldError("stop", "stop has {} texts, expected at most {}", given->size(),
                     most_stop_texts);
  for (const Json& text : *given) add_stop(stop, text);
  return stop;
}

void read_ends(RequestFields& read, const Fields& fields, const RequestFieldBounds& bounds) {
  const std::int64_t least = bounds.least_max_tokens;
  read.max_tokens = fields.whole("max_tokens", least, most_tokens);
  if (const auto newer = fields.whole("max_completion_tokens", least, most_tokens)) {
    read.max_tokens = newer;
    read.max_tokens_name = "max_completion_tokens";
  }
  read.min_tokens = fields.whole("min_tokens", 0, most_tokens);
  if (fields.has("ignore_eos")) read.ignore_eos = fields.boolean("ignore_eos", false);
  read.stop = read_stop(fields);
  read.stop_tokens = fields.token_ids("stop_token_ids", bounds.vocab_size);
  if (read.stop_tokens.size() > most_stop_tokens)
    throw FieldError("stop_token_ids", "stop_token_ids has {} ids, expected at most {}",
                     read.stop_tokens.size(), most_stop_tokens);
}

}  // namespace

void RequestFields::apply_to(Request& request) const {
  SamplingParams& sampling = request.sampling;
  sampling.temperature = temperature.value_or(sampling.temperature);
  sampling.top_p = top_p.value_or(sampling.top_p);
  sampling.min_p = min_p.value_or(sampling.min_p);
  sampling.top_k = top_k.value_or(sampling.top_k);
  sampling.repetition_penalty = repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = presence_penalty.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = frequency_penalty.value_or(sampling.frequency_penalty);
  sampling.seed = seed.value_or(sampling.seed);
  request.num_outputs = num_outputs.value_or(request.num_outputs);
  if (stop) request.stop.insert(request.stop.end(), stop->begin(), stop->end());
  request.stop_tokens.insert(request.stop_tokens.end(), stop_tokens.begin(), stop_tokens.end());
  request.ignore_eos = ignore_eos.value_or(request.ignore_eos);
  request.priority = priority.value_or(request.priority);
}

RequestFields read_request_fields(const Fields& fields, const RequestFieldBounds& bounds) {
  RequestFields read;
  read_sampling(read, fields);
  read.num_outputs = read_num_outputs(fields);
  read_ends(read, fields, bounds);
  if (const auto priority = fields.whole("priority", std::numeric_limits<int>::min() + 1,
                                         std::numeric_limits<int>::max()))
    read.priority = static_cast<int>(*priority);
  return read;
}

std::optional<int> read_logprobs_count(const Fields& fields, const std::string& name) {
  const std::optional<std::int64_t> count = fields.whole(name, 0, most_logprobs);
  return count ? std::optional(static_cast<int>(*count)) : std::nullopt;
}

}  // namespace sluice
