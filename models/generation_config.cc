#include "models/generation_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/config_reader.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::int64_t lowest_int = std::numeric_limits<std::int32_t>::min();

/// When a field that is not done changes nothing, beside null.
enum class Neutral : std::uint8_t { only_null, zero, one, at_least_one, empty, no };

struct Field {
  std::string_view name;
  FieldEffect effect = FieldEffect::none;
  Neutral neutral = Neutral::only_null;
};

using enum FieldEffect;

/// Every field of GenerationConfig, Transformers 5.24, in its order. How long an output may be is
/// for --max-tokens to say.
constexpr std::array fields_of_transformers = std::to_array<Field>({
    {"max_length"},
    {"max_new_tokens"},
    {"min_length", done},
    {"min_new_tokens", done},
    {"early_stopping"},
    {"max_time", output, Neutral::only_null},
    {"stop_strings", done},
    {"do_sample", done},
    {"num_beams", output, Neutral::one},
    {"use_mtp"},
    {"use_cache"},
    {"cache_implementation"},
    {"cache_config"},
    {"max_cache_len"},
    {"temperature", done},
    {"top_k", done},
    {"top_p", done},
    {"min_p", done},
    {"top_h", sampled_output, Neutral::only_null},
    {"typical_p", sampled_output, Neutral::at_least_one},
    {"epsilon_cutoff", sampled_output, Neutral::zero},
    {"eta_cutoff", sampled_output, Neutral::zero},
    {"repetition_penalty", done},
    {"encoder_repetition_penalty", output, Neutral::one},
    {"length_penalty"},  // of beams
    {"no_repeat_ngram_size", output, Neutral::zero},
    {"bad_words_ids", output, Neutral::empty},
    {"renormalize_logits"},
    {"forced_bos_token_id", output, Neutral::only_null},
    {"forced_eos_token_id", output, Neutral::only_null},
    {"remove_invalid_values"},  // a NaN is an error here
    {"exponential_decay_length_penalty", output, Neutral::only_null},
    {"suppress_tokens", done},
    {"begin_suppress_tokens", done},
    {"sequence_bias", output, Neutral::empty},
    {"token_healing", output, Neutral::no},
    {"guidance_scale", output, Neutral::one},
    {"watermarking_config", output, Neutral::only_null},
    {"num_return_sequences", output, Neutral::one},
    {"output_attentions"},
    {"output_hidden_states"},
    {"output_scores"},
    {"output_logits"},
    {"return_dict_in_generate"},
    {"pad_token_id"},
    {"bos_token_id"},
    {"eos_token_id", done},
    {"encoder_no_repeat_ngram_size", output, Neutral::zero},
    {"decoder_start_token_id"},
    {"is_assistant"},
    {"num_assistant_tokens"},
    {"num_assistant_tokens_schedule"},
    {"assistant_confidence_threshold"},
    {"prompt_lookup_num_tokens"},
    {"max_matching_ngram_size"},
    {"assistant_early_exit"},
    {"assistant_lookbehind"},
    {"target_lookbehind"},
    {"assistant_ensemble_weight"},
    {"speculation_type"},
    {"compile_config"},
    {"disable_compile"},
    {"continuous_batching_config"},
    {"low_memory"},
    {"penalty_alpha", output, Neutral::zero},
    {"dola_layers", output, Neutral::only_null},
    {"diversity_penalty"},  // of groups of beams
    {"num_beam_groups", output, Neutral::one},
    {"constraints", output, Neutral::empty},
    {"force_words_ids", output, Neutral::empty},
    {"prefill_chunk_size"},
    {"_from_model_config"},
    {"transformers_version"},
});

bool is_neutral(Neutral neutral, const json& value) {
  const bool is_number = value.is_number();
  const double number = is_number ? value.get<double>() : 0;
  switch (neutral) {
    case Neutral::only_null:
      return value.is_null();
    case Neutral::zero:
      return is_number && number <= 0;
    case Neutral::one:
      return is_number && number == 1;
    case Neutral::at_least_one:
      return is_number && number >= 1;
    case Neutral::empty:
      return value.empty();
    case Neutral::no:
      return value.is_boolean() && !value.get<bool>();
  }
  return false;
}

std::vector<FieldNotDone> find_not_done(const json& object) {
  std::vector<FieldNotDone> found;
  for (const Field& field : fields_of_transformers) {
    if (field.effect == done || field.effect == none) continue;
    const auto value = object.find(field.name);
    if (value == object.end() || value->is_null() || is_neutral(field.neutral, *value)) continue;
    found.push_back({.name = std::string(field.name),
                     .value = describe(*value),
                     .only_sampled = field.effect == sampled_output});
  }
  return found;
}

/// A text or a list of texts; no empty one.
std::vector<std::string> read_stop_strings(const json& object, const ConfigReader& fields) {
  if (!fields.has("stop_strings")) return {};
  std::vector<std::string> texts = object.at("stop_strings").is_string()
                                       ? std::vector{fields.text("stop_strings", "")}
                                       : fields.texts("stop_strings");
  if (std::find(texts.begin(), texts.end(), "") != texts.end())
    fields.refuse("stop_strings", "texts that are not empty");
  return texts;
}

}  // namespace

std::optional<FieldEffect> effect_of_field(std::string_view name) {
  for (const Field& field : fields_of_transformers) {
    if (field.name == name) return field.effect;
  }
  return std::nullopt;
}

std::int64_t GenerationConfig::min_new_tokens_after(std::int64_t prompt_tokens) const {
  return std::max<std::int64_t>(0, min_new_tokens.value_or(min_length_tokens - prompt_tokens));
}

GenerationConfig parse_generation_config(std::string_view text, const std::string& where) {
  const json parsed = parse_json(quote_non_finite(text), where, DuplicateKeys::last_wins);
  const ConfigReader fields(parsed, where);
  const auto number = [&fields](std::string_view key, double highest) -> std::optional<float> {
    if (!fields.has(key)) return std::nullopt;
    return static_cast<float>(fields.number(key, 0.0, highest));
  };
  GenerationConfig defaults;
  defaults.where = where;
  if (fields.has("do_sample")) defaults.do_sample = fields.flag("do_sample", false);
  defaults.temperature = number("temperature", 1e6);
  defaults.top_p = number("top_p", 1.0);
  defaults.min_p = number("min_p", 1.0);
  if (fields.has("repetition_penalty")) {
    defaults.repetition_penalty =
        static_cast<float>(fields.number("repetition_penalty", 1e-6, 1e6));
  }
  if (fields.has("top_k"))  // -1: off, as vLLM has it
    defaults.top_k =
        static_cast<int>(std::max<std::int64_t>(0, fields.count("top_k", 0, lowest_int)));
  defaults.eos_token_ids = fields.token_ids("eos_token_id");
  if (fields.has("min_new_tokens"))
    defaults.min_new_tokens = fields.count("min_new_tokens", 0, lowest_int);
  defaults.min_length_tokens = fields.count("min_length", 0, lowest_int);
  defaults.suppress_tokens = fields.token_ids("suppress_tokens");
  defaults.begin_suppress_tokens = fields.token_ids("begin_suppress_tokens");
  defaults.stop_strings = read_stop_strings(parsed, fields);
  defaults.not_done = find_not_done(parsed);
  return defaults;
}

std::vector<std::string> warnings_of(const GenerationConfig& defaults, bool samples) {
  std::vector<std::string> lines;
  for (const FieldNotDone& field : defaults.not_done) {
    if (field.only_sampled && !samples) continue;
    lines.push_back(fmt::format(
        "{}: {} is {}, which is not done here: the output may differ from Transformers'; take the "
        "field out of the file if you do not need it",
        defaults.where, field.name, field.value));
  }
  return lines;
}

}  // namespace sluice
