#include "engine/commands/options/serving_options.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t most_count = std::int64_t{1} << 30;

std::int64_t count_of(const CommandLine& line, const std::string& name, std::int64_t least) {
  return in_range<std::int64_t>(line, name, least, most_count);
}

/// "1000", or "hbm=864,ddr=38000", or one of these two.
KvTokens parse_kv_tokens(const std::string& text) {
  KvTokens tokens;
  std::string_view rest = text;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const std::size_t equals = item.find('=');
    const std::string_view tier = equals == std::string_view::npos ? "" : item.substr(0, equals);
    const std::string_view digits = tier.empty() ? item : item.substr(equals + 1);
    std::optional<std::int64_t>* const target =
        tier == "hbm" ? &tokens.hbm : (tier == "ddr" ? &tokens.ddr : &tokens.all);
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    const bool whole = error == std::errc() && end == digits.data() + digits.size();
    const bool known = tier.empty() ? item == text : !tokens.all && target != &tokens.all;
    if (!whole || !known || target->has_value() || count < 1 || count > most_count)
      throw UsageError("--kv-tokens {}: expected tokens above 0, like 100000 or hbm=864,ddr=38000",
                       text);
    *target = count;
    if (item.size() == rest.size()) return tokens;
    rest.remove_prefix(item.size() + 1);
  }
}

}  // namespace

void ServingSettings::apply_to(EngineOptions& options) const {
  options.max_sequences = limits.max_sequences;
  options.max_batch_tokens = limits.max_batch_tokens;
  options.prefill_chunk_tokens = limits.max_batch_tokens;
  options.admit_by = AdmitBy::known_tokens;
  options.max_skips = max_skips;
  options.max_overtakes = max_overtakes;
}

void declare_serving_options(CommandLine& line) {
  line.options().add_options()  //
      ("max-sequences", po::value<std::int64_t>()->default_value(64),
       "outputs that are computed at once")  //
      ("max-model-len", po::value<std::int64_t>(),
       "tokens that a prompt and its output may have together; without it, as many as the model "
       "allows")  //
      ("max-batch-tokens", po::value<std::int64_t>(),
       "tokens that one iteration computes; longer prompts take several; without it 2048")  //
      ("kv-tokens", po::value<std::string>(),
       "tokens that the KV cache holds, or of each pool: hbm=N,ddr=N; without it, as many as "
       "memory has room for")  //
      ("prefix-cache", po::value<std::string>()->default_value("on"),
       "on or off: prompts that begin alike share the KV of their beginning")  //
      ("max-skips", po::value<std::int64_t>()->default_value(16),
       "iterations in a row that a running output may be left out of while a later one takes "
       "part")  //
      ("max-overtakes", po::value<std::int64_t>()->default_value(64),
       "later requests that may be taken before one that waits");
}

ServingSettings read_serving(const CommandLine& line) {
  ServingSettings settings;
  ServingLimits& limits = settings.limits;
  limits.max_sequences = in_range<std::int64_t>(line, "max-sequences", 1, 4096);
  const std::int64_t least = EngineOptions::least_batch_tokens(limits.max_sequences);
  limits.max_batch_tokens = std::max(limits.max_batch_tokens, least);
  if (line.given("max-batch-tokens")) {
    limits.max_batch_tokens = count_of(line, "max-batch-tokens", 1);
    if (limits.max_batch_tokens < least)
      throw UsageError("--max-batch-tokens {}: expected at least {}, for {} sequences",
                       limits.max_batch_tokens, least, limits.max_sequences);
  }
  if (line.given("kv-tokens"))
    limits.kv_tokens = parse_kv_tokens(line.get<std::string>("kv-tokens"));
  if (line.given("max-model-len")) settings.max_model_len = count_of(line, "max-model-len", 2);
  settings.max_skips = count_of(line, "max-skips", 1);
  settings.max_overtakes = count_of(line, "max-overtakes", 0);
  const std::string& sharing = line.get<std::string>("prefix-cache");
  if (sharing != "on" && sharing != "off")
    throw UsageError("--prefix-cache {}: expected on or off", sharing);
  if (sharing == "off") settings.sharing = KvPool::Sharing::off;
  return settings;
}

std::vector<std::string> arguments_of(const ServingSettings& settings) {
  const ServingLimits& limits = settings.limits;
  std::vector<std::string> arguments;
  const auto add = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  const auto add_count = [&](const char* option, std::int64_t count) {
    add(option, fmt::format("{}", count));
  };
  add_count("--max-sequences", limits.max_sequences);
  add_count("--max-batch-tokens", limits.max_batch_tokens);
  if (settings.max_model_len) add_count("--max-model-len", *settings.max_model_len);
  if (const std::string tokens = to_string(limits.kv_tokens); !tokens.empty())
    add("--kv-tokens", tokens);
  add_count("--max-skips", settings.max_skips);
  add_count("--max-overtakes", settings.max_overtakes);
  add("--prefix-cache", settings.sharing == KvPool::Sharing::on ? "on" : "off");
  return arguments;
}

}  // namespace sluice
