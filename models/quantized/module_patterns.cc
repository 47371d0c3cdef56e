#include "models/quantized/module_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

constexpr std::string_view expression_prefix = "re:";
// A name has some dozen characters. An expression that needs more steps than this is refused
// instead of running for minutes.
constexpr std::uint32_t most_steps = 1'000'000;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Expression = std::unique_ptr<pcre2_code, FreeCode>;

/// One that matches from the first character on. Throws Error that begins with `where`.
Expression compile(std::string_view text, std::string_view where) {
  int error = 0;
  std::size_t offset = 0;
  Expression code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                PCRE2_ANCHORED | PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &offset,
                                nullptr));
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw Error("{}: {} is no regular expression: {} at character {}", where, quote(text),
                reinterpret_cast<const char*>(message), offset);
  }
  return code;
}

bool matches(std::string_view expression, std::string_view name) {
  constexpr std::string_view where = "quantization_config";
  const Expression code = compile(expression, where);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), most_steps);
  const int rc = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0,
                             0, data.get(), context.get());
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
    throw Error("{}: the regular expression {} gave up on the name {} (PCRE2 error {})", where,
                quote(expression), quote(name), rc);
  }
  return rc >= 0;
}

enum class Rank : std::uint8_t { name, expression, of_class };

std::optional<Rank> rank_of(std::string_view module, std::string_view module_class,
                            const std::string& target) {
  if (matches_name(module, target))
    return target.starts_with(expression_prefix) ? Rank::expression : Rank::name;
  if (target == module_class) return Rank::of_class;
  return std::nullopt;
}

}  // namespace

void check_patterns(const std::vector<std::string>& patterns, const std::string& where) {
  for (const std::string_view pattern : patterns) {
    if (pattern.starts_with(expression_prefix))
      compile(pattern.substr(expression_prefix.size()), where);
  }
}

bool matches_name(std::string_view module, std::string_view pattern) {
  if (!pattern.starts_with(expression_prefix)) return pattern == module;
  return matches(pattern.substr(expression_prefix.size()), module);
}

const QuantizationScheme* scheme_of(const QuantizationConfig& config, std::string_view module,
                                    std::string_view module_class) {
  const auto is_it = [&](const std::string& target) {
    return rank_of(module, module_class, target).has_value();
  };
  if (std::any_of(config.ignored.begin(), config.ignored.end(), is_it)) return nullptr;
  const QuantizationScheme* best = nullptr;
  std::tuple<Rank, std::string_view> place;
  for (const QuantizationScheme& scheme : config.schemes) {
    for (const std::string& target : scheme.targets) {
      const auto rank = rank_of(module, module_class, target);
      if (!rank) continue;
      const std::tuple<Rank, std::string_view> here(*rank, target);
      if (best != nullptr && here > place) continue;  // of two equal targets the last counts
      best = &scheme;
      place = here;
    }
  }
  return best;
}

void read_unconverted(const ConfigReader& fields, std::string_view key,
                      QuantizationConfig& config) {
  config.ignored = fields.texts(key);
  const std::string where = fmt::format("{}: {}{}", fields.where(), fields.prefix(), key);
  for (const std::string& pattern : config.ignored) compile(pattern, where);
}

bool is_converted(std::string_view module, const std::vector<std::string>& patterns) {
  return std::none_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return module.ends_with(pattern) ||
           matches(fmt::format("(?:{}){}", pattern, R"((?:(?<=\.)|(?=\.|$)))"), module);
  });
}

const QuantizationScheme* linear_scheme_of(const QuantizationConfig& config,
                                           std::string_view module, std::string_view module_class) {
  const bool is_meant = module_class == "Linear" && (module != "lm_head" || config.quantizes_head);
  return is_meant && is_converted(module, config.ignored) ? &config.schemes.front() : nullptr;
}

}  // namespace sluice
