#include "models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr double kHighestTheta = 1e12;
constexpr double kHighestFactor = 1e6;
constexpr double kLowestFactor = 1e-10;
constexpr double kHighestMscale = 1e3;
constexpr float kDefaultTheta = 10000.0F;
constexpr std::string_view kOriginal = "original_max_position_embeddings";
constexpr std::string_view kKnownTypes =
    "\"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\", \"longrope\" or \"proportional\"";

/// What config.json says of rotary embedding, all places taken together.
struct Rope {
  float theta = kDefaultTheta;
  std::optional<RopeVariant> scaling;
  std::int64_t max_positions = 0;

  bool operator==(const Rope&) const = default;
};

/// Reads one object of RoPE parameters; `fields` is all of config.json.
class RopeReader {
 public:
  RopeReader(const ConfigReader& rope, const ConfigReader& fields, const ModelConfig& config)
      : rope_(rope), fields_(fields), config_(config) {}

  Rope read() const {
    Rope result;
    result.theta = theta();
    result.max_positions = config_.max_positions;
    const std::string_view type_key = rope_.contains("rope_type") ? "rope_type" : "type";
    if (rope_.is_null(type_key)) rope_.refuse(type_key, kKnownTypes);
    const std::string type = rope_.text(type_key, "default");
    if (type != "proportional" && config_.rotary_dim == 0) refuse_partial_rotation(rope_);
    if (type == "default") return result;
    result.scaling = read_scaling(type, type_key);
    if (type == "yarn" && result.theta == 1.0F)
      throw Error("{}: rope_theta is 1, expected more for rope_type \"yarn\"", fields_.where());
    result.max_positions = reach_tokens(*result.scaling);
    return result;
  }

 private:
  static void refuse_partial_rotation(const ConfigReader& from) {
    constexpr std::string_view key = "partial_rotary_factor";
    if (from.number(key, 0.0, 1.0, 1.0) == 1.0) return;
    from.refuse(key, "1 (for this family Transformers ignores it, other engines do not)");
  }

  float theta() const {
    constexpr std::string_view key = "rope_theta";
    const ConfigReader& from = rope_.has(key) ? rope_ : fields_;
    return static_cast<float>(from.number(key, 1.0, kHighestTheta, kDefaultTheta));
  }

  RopeVariant read_scaling(std::string_view type, std::string_view type_key) const {
    if (type == "llama3") return read_llama3();
    if (type == "linear") return read_linear();
    if (type == "dynamic") return {.kind = RopeKind::dynamic, .factor = factor()};
    if (type == "yarn") return read_yarn();
    if (type == "longrope") return read_longrope();
    if (type == "proportional") return read_proportional();
    rope_.refuse(type_key, kKnownTypes);
  }

  float factor() const { return positive("factor"); }
  float positive(std::string_view key) const {
    return static_cast<float>(rope_.number(key, kLowestFactor, kHighestFactor));
  }
  /// Python's `value or fallback`: null and 0 are as good as nothing.
  float positive_or(std::string_view key, float fallback) const {
    const double number = rope_.number(key, 0.0, kHighestFactor, 0.0);
    return number == 0.0 ? fallback : static_cast<float>(number);
  }

  std::int64_t original_max_positions() const {
    return fields_.has(kOriginal) ? fields_.count(kOriginal)
                                  : rope_.count(kOriginal, config_.max_positions);
  }

  RopeVariant read_llama3() const {
    RopeVariant scaling{.kind = RopeKind::llama3,
                        .factor = factor(),
                        .low_freq_factor = positive("low_freq_factor"),
                        .high_freq_factor = positive("high_freq_factor"),
                        .original_max_positions = original_max_positions()};
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope_.refuse("high_freq_factor",
                   fmt::format("more than low_freq_factor ({})", scaling.low_freq_factor));
    }
    return scaling;
  }

  RopeVariant read_linear() const {
    return {.kind = RopeKind::linear,
            .factor = factor(),
            .original_max_positions = config_.max_positions};
  }

  /// The factor, or, where it is null, how much longer the context is than the trained one.
  double factor_or_ratio(std::int64_t original) const {
    if (rope_.has("factor")) return rope_.number("factor", kLowestFactor, kHighestFactor);
    return static_cast<double>(config_.max_positions) / static_cast<double>(original);
  }

  RopeVariant read_yarn() const {
    if (!rope_.contains("factor")) rope_.missing("factor");
    RopeVariant scaling{.kind = RopeKind::yarn,
                        .original_max_positions = original_max_positions(),
                        .beta_fast = positive_or("beta_fast", 32.0F),
                        .beta_slow = positive_or("beta_slow", 1.0F),
                        .truncate = rope_.flag("truncate", true)};
    const double factor = factor_or_ratio(scaling.original_max_positions);
    scaling.factor = static_cast<float>(factor);
    scaling.attention_factor = yarn_attention_factor(factor);
    return scaling;
  }

  float yarn_attention_factor(double factor) const {
    if (rope_.has("attention_factor")) return positive("attention_factor");
    const auto scale = [factor](double multiplier) {
      return factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
    };
    const double mscale = rope_.number("mscale", 0.0, kHighestMscale, 0.0);
    const double all_dim = rope_.number("mscale_all_dim", 0.0, kHighestMscale, 0.0);
    if (mscale == 0.0 || all_dim == 0.0) return static_cast<float>(scale(1.0));
    return static_cast<float>(scale(mscale) / scale(all_dim));
  }

  RopeVariant read_longrope() const {
    RopeVariant scaling{.kind = RopeKind::longrope,
                        .original_max_positions = original_max_positions(),
                        .pair_factors = pair_factors("short_factor"),
                        .long_factors = pair_factors("long_factor")};
    const auto original = static_cast<double>(scaling.original_max_positions);
    const double factor = factor_or_ratio(scaling.original_max_positions);
    scaling.factor = static_cast<float>(factor);
    if (rope_.has("attention_factor")) {
      scaling.attention_factor = positive("attention_factor");
    } else if (factor > 1.0 && original > 1.0) {
      scaling.attention_factor =
          static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(original)));
    }
    return scaling;
  }

  std::vector<float> pair_factors(std::string_view key) const {
    std::vector<float> factors;
    for (const double factor : rope_.numbers(key, kLowestFactor, kHighestFactor))
      factors.push_back(static_cast<float>(factor));
    const std::int64_t expected = config_.rotated_dims() / 2;
    if (static_cast<std::int64_t>(factors.size()) != expected) {
      rope_.refuse(key, fmt::format("a list of {} numbers ({} / 2)", expected,
                                    config_.rotary_dim == 0 ? "head_dim" : "rotated dimensions"));
    }
    return factors;
  }

  RopeVariant read_proportional() const {
    RopeVariant scaling{.kind = RopeKind::proportional};
    if (rope_.has("factor")) scaling.factor = factor();
    scaling.rotated_part = static_cast<float>(rope_.number("partial_rotary_factor", 0.0, 1.0, 1.0));
    return scaling;
  }

  /// The longest context: models are published with max_position_embeddings as trained, and the
  /// stretch beside it. Where frequencies depend on the length it ends at what is trained.
  std::int64_t reach_tokens(const RopeVariant& scaling) const {
    const auto stretched = [&](std::int64_t positions) {
      const double tokens = static_cast<double>(positions) * static_cast<double>(scaling.factor);
      return std::max(config_.max_positions,
                      static_cast<std::int64_t>(std::min(tokens, double{INT32_MAX})));
    };
    switch (scaling.kind) {
      case RopeKind::linear:
        return stretched(config_.max_positions);
      case RopeKind::yarn:
        return stretched(scaling.original_max_positions);
      case RopeKind::longrope:
        return std::min(config_.max_positions, scaling.original_max_positions);
      default:
        return config_.max_positions;
    }
  }

  const ConfigReader& rope_;
  const ConfigReader& fields_;
  const ModelConfig& config_;
};

/// The parameters are a layer type's each: all must say the same.
Rope read_nested(const ConfigReader& by_type, const ConfigReader& fields,
                 const ModelConfig& config) {
  std::optional<Rope> common;
  std::string first;
  for (const std::string& type : by_type.keys()) {
    if (by_type.is_null(type)) by_type.refuse(type, "the RoPE parameters of these layers");
    const Rope rope = RopeReader(*by_type.object(type), fields, config).read();
    if (common && rope != *common) {
      throw Error("{}: {}{} differs from {}{}; layers that rotate differently are not supported",
                  fields.where(), by_type.prefix(), type, by_type.prefix(), first);
    }
    if (!common) first = type;
    common = rope;
  }
  return *common;
}

Rope read_object(const ConfigReader& rope, const ConfigReader& fields, const ModelConfig& config) {
  const std::vector<std::string> keys = rope.keys();
  const bool nested = std::any_of(keys.begin(), keys.end(),
                                  [&](const std::string& key) { return rope.is_object(key); });
  return nested ? read_nested(rope, fields, config) : RopeReader(rope, fields, config).read();
}

std::optional<ConfigReader> filled_object(const ConfigReader& fields, std::string_view key) {
  auto object = fields.object(key);
  return object && object->keys().empty() ? std::nullopt : object;
}

/// Says so where Transformers' rule may surprise.
void warn_of_contradiction(const ConfigReader& fields, const Rope& taken, const Rope& ignored) {
  if (taken == ignored || !is_first_time(fields.where() + " rope")) return;
  logger().warn(
      "{}: rope_scaling and rope_parameters differ; rope_scaling counts (rope_theta {}), as in "
      "Transformers 5",
      fields.where(), taken.theta);
}

Rope read_all(const ConfigReader& fields, const ModelConfig& config) {
  const auto scaling = filled_object(fields, "rope_scaling");
  const auto parameters = filled_object(fields, "rope_parameters");
  if (!scaling && !parameters) {
    const nlohmann::json nothing = nlohmann::json::object();
    return RopeReader(ConfigReader(nothing, fields.where()), fields, config).read();
  }
  Rope rope = read_object(scaling ? *scaling : *parameters, fields, config);
  if (scaling && parameters)
    warn_of_contradiction(fields, rope, read_object(*parameters, fields, config));
  return rope;
}

void warn_of_cut(const ConfigReader& fields, const ModelConfig& config, const Rope& rope) {
  if (rope.max_positions >= config.max_positions || !is_first_time(fields.where() + " reach"))
    return;
  logger().warn(
      "{}: rope_type \"longrope\" is done up to {} tokens of context "
      "(original_max_position_embeddings), not to {}",
      fields.where(), rope.max_positions, config.max_positions);
}

std::string_view type_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic:
      return "dynamic";
    case RopeKind::yarn:
      return "yarn";
    case RopeKind::longrope:
      return "longrope";
    case RopeKind::proportional:
      break;
  }
  return "proportional";
}

ordered_json shortest_list(const std::vector<float>& values) {
  ordered_json list = ordered_json::array();
  for (const float value : values) list.push_back(shortest(value));
  return list;
}

/// How many of a head's dimensions rotate, as Transformers rounds it.
std::int64_t read_rotary_dim(const ConfigReader& fields, const ModelConfig& config,
                             double default_part) {
  constexpr std::string_view key = "partial_rotary_factor";
  double part = fields.number(key, 0.0, 1.0, default_part);
  auto rope = filled_object(fields, "rope_scaling");
  if (!rope) rope = filled_object(fields, "rope_parameters");
  if (rope) part = rope->number(key, 0.0, 1.0, part);
  const auto dims = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * part);
  if (dims < 2 || dims % 2 != 0) {
    throw Error(
        "{}: {} {} of head_dim {} is {} dimensions; RoPE rotates pairs and needs an even "
        "number from 2 on",
        fields.where(), key, part, config.head_dim, dims);
  }
  return dims;
}

/// The factor that gives rotary_dim again.
double rotary_part(const ModelConfig& config) {
  const auto head_dim = static_cast<double>(config.head_dim);
  const auto dims = static_cast<double>(config.rotary_dim);
  double part = dims / head_dim;
  while (head_dim * part < dims) part = std::nextafter(part, 1.0);
  return part;
}

}  // namespace

void read_rope(const ConfigReader& fields, ModelConfig& config,
               std::optional<double> default_part) {
  config.position = PositionKind::rope;
  if (default_part) {
    config.rotary_dim = read_rotary_dim(fields, config, *default_part);
  } else if (fields.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields.refuse("partial_rotary_factor",
                  "1 (for this family Transformers ignores it, other engines do not)");
  }
  const Rope rope = read_all(fields, config);
  warn_of_cut(fields, config, rope);
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  config.max_positions = rope.max_positions;
}

void write_rope(const ModelConfig& config, ordered_json& fields) {
  fields["rope_theta"] = shortest(config.rope_theta);
  if (config.rotary_dim > 0) fields["partial_rotary_factor"] = rotary_part(config);
  fields["rope_scaling"] = nullptr;
  if (!config.rope_scaling) return;
  const RopeVariant& scaling = *config.rope_scaling;
  ordered_json rope = {{"factor", shortest(scaling.factor)}};
  switch (scaling.kind) {
    case RopeKind::llama3:
      rope["low_freq_factor"] = shortest(scaling.low_freq_factor);
      rope["high_freq_factor"] = shortest(scaling.high_freq_factor);
      break;
    case RopeKind::yarn:
      rope["beta_fast"] = shortest(scaling.beta_fast);
      rope["beta_slow"] = shortest(scaling.beta_slow);
      rope["truncate"] = scaling.truncate;
      rope["attention_factor"] = shortest(scaling.attention_factor);
      break;
    case RopeKind::longrope:
      rope["short_factor"] = shortest_list(scaling.pair_factors);
      rope["long_factor"] = shortest_list(scaling.long_factors);
      rope["attention_factor"] = shortest(scaling.attention_factor);
      break;
    case RopeKind::linear:
      fields["max_position_embeddings"] = scaling.original_max_positions;
      break;
    case RopeKind::proportional:
      rope["partial_rotary_factor"] = shortest(scaling.rotated_part);
      break;
    case RopeKind::dynamic:
      break;
  }
  if (scaling.kind == RopeKind::llama3 || scaling.kind == RopeKind::yarn ||
      scaling.kind == RopeKind::longrope) {
    rope[std::string(kOriginal)] = scaling.original_max_positions;
  }
  rope["rope_type"] = type_name(scaling.kind);
  fields["rope_scaling"] = std::move(rope);
}

}  // namespace sluice
