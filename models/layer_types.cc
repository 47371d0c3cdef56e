#include "models/layer_types.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

constexpr std::string_view kKey = "layer_types";
constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kFull = "full_attention";

}  // namespace

std::vector<bool> read_layer_types(const ConfigReader& fields, const ModelConfig& config) {
  if (!fields.has(kKey)) return {};
  const std::vector<std::string> types = fields.texts(kKey);
  if (static_cast<std::int64_t>(types.size()) != config.num_layers) {
    throw Error("{}: {} has {} entries, expected one for each of num_hidden_layers {}",
                fields.where(), kKey, types.size(), config.num_layers);
  }
  std::vector<bool> windowed;
  for (const std::string& type : types) {
    if (type != kSliding && type != kFull) {
      throw Error("{}: {} has {}, expected \"{}\" or \"{}\"", fields.where(), kKey, quote(type),
                  kFull, kSliding);
    }
    windowed.push_back(type == kSliding);
  }
  return windowed;
}

void set_windows(std::int64_t window_tokens, std::vector<bool> windowed, ModelConfig& config) {
  config.sliding_window_tokens = 0;
  config.windowed_layers.clear();
  const auto count = std::count(windowed.begin(), windowed.end(), true);
  if (window_tokens == 0 || (!windowed.empty() && count == 0)) return;
  config.sliding_window_tokens = window_tokens;
  if (count < static_cast<std::ptrdiff_t>(windowed.size()))
    config.windowed_layers = std::move(windowed);
}

void refuse_windows_without_size(const ConfigReader& fields, const ModelConfig& config,
                                 std::string_view size_fields) {
  const std::vector<bool> windowed = read_layer_types(fields, config);
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) return;
  throw Error("{}: {} has \"{}\", but there is no window; expected {} to give one", fields.where(),
              kKey, kSliding, size_fields);
}

void write_layer_types(const ModelConfig& config, nlohmann::ordered_json& fields) {
  if (config.windowed_layers.empty()) return;
  auto& types = fields[std::string(kKey)] = nlohmann::ordered_json::array();
  for (const bool windowed : config.windowed_layers) types.push_back(windowed ? kSliding : kFull);
}

}  // namespace sluice
