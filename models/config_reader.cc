#include "models/config_reader.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::int64_t kLowestInt32 = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kHighestInt32 = std::numeric_limits<std::int32_t>::max();

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string where, std::string prefix)
    : object_(&object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    throw Error("{}: {} is {}, expected a JSON object", where_,
                prefix_.empty() ? "its content" : prefix_.substr(0, prefix_.size() - 1),
                describe(object));
  }
}

bool ConfigReader::equals(std::string_view key, const json& value) const {
  const json* found = find(key);
  return found != nullptr && *found == value;
}

bool ConfigReader::is_object(std::string_view key) const {
  const json* value = find(key);
  return value != nullptr && value->is_object();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_->items()) names.push_back(key);
  return names;
}

const json* ConfigReader::find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::is_null(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && found->is_null();
}

const json& ConfigReader::at(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) missing(key);
  return *value;
}

void ConfigReader::missing(std::string_view key) const {
  throw Error("{}: field {}{} is missing", where_, prefix_, key);
}

void ConfigReader::refuse(std::string_view key, std::string_view expected) const {
  const json* value = find(key);
  throw Error("{}: {}{} is {}, expected {}", where_, prefix_, key,
              value != nullptr ? describe(*value) : (is_null(key) ? "null" : "missing"), expected);
}

std::int64_t ConfigReader::count(std::string_view key) const {
  if (!has(key)) missing(key);
  return count(key, 0);
}

std::int64_t ConfigReader::count(std::string_view key, std::int64_t fallback,
                                 std::int64_t lowest) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  const auto number = whole_number(*value, lowest, kHighestInt32);
  if (!number) refuse(key, fmt::format("a whole number from {} to {}", lowest, kHighestInt32));
  return *number;
}

double ConfigReader::number(std::string_view key, double lowest, double highest) const {
  const json& value = at(key);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= lowest && number <= highest)) {
    refuse(key, fmt::format("a number from {} to {}", lowest, highest));
  }
  return number;
}

double ConfigReader::number(std::string_view key, double lowest, double highest,
                            double fallback) const {
  return has(key) ? number(key, lowest, highest) : fallback;
}

std::vector<double> ConfigReader::numbers(std::string_view key, double lowest,
                                          double highest) const {
  const json& list = at(key);
  const auto refuse_list = [&] {
    refuse(key, fmt::format("a list of numbers from {} to {}", lowest, highest));
  };
  if (!list.is_array()) refuse_list();
  std::vector<double> result;
  for (const json& element : list) {
    const double number = element.is_number() ? element.get<double>() : std::nan("");
    if (!(number >= lowest && number <= highest)) refuse_list();
    result.push_back(number);
  }
  return result;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) refuse(key, "a text");
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) refuse(key, "a list of texts");
  std::vector<std::string> result;
  for (const json& element : *value) {
    if (!element.is_string()) refuse(key, "a list of texts");
    result.push_back(element.get<std::string>());
  }
  return result;
}

std::vector<std::int32_t> ConfigReader::token_ids(std::string_view key,
                                                  std::vector<std::int32_t> fallback) const {
  const json* value = find(key);
  if (value == nullptr) return is_null(key) ? std::vector<std::int32_t>{} : std::move(fallback);
  std::vector<std::int32_t> ids;
  const auto add = [&](const json& element) {
    const auto id = whole_number(element, kLowestInt32, kHighestInt32);
    if (!id) refuse(key, "a token id (a whole number) or a list of them");
    if (*id >= 0) ids.push_back(static_cast<std::int32_t>(*id));
  };
  if (value->is_array()) {
    for (const json& element : *value) add(element);
  } else {
    add(*value);
  }
  return ids;
}

std::optional<std::int32_t> ConfigReader::token_id(std::string_view key,
                                                   std::optional<std::int32_t> fallback) const {
  if (!has(key)) return is_null(key) ? std::nullopt : fallback;
  const auto ids = token_ids(key);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return ConfigReader(*value, where_, fmt::format("{}{}.", prefix_, key));
}

}  // namespace sluice
