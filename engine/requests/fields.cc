#include "engine/requests/fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace sluice {

using Json = nlohmann::ordered_json;

namespace {

FieldError wrong_type(const std::string& name, const char* expected, const Json& found) {
  return FieldError(name, "{} must be {}, found {}", name, expected, describe_ordered(found));
}

}  // namespace

Fields::Fields(const Json& object, const char* what) : object_(object) {
  if (!object.is_object())
    throw FieldError("", "{} must be a JSON object, found {}", what, describe_ordered(object));
}

const Json* Fields::find(const std::string& name) const {
  asked_.push_back(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::boolean(const std::string& name, bool otherwise) const {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) throw wrong_type(name, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> Fields::text(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_type(name, "a text", *value);
  return value->get<std::string>();
}

std::optional<std::int64_t> Fields::whole(const std::string& name, std::int64_t lowest,
                                          std::int64_t highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = whole_number(*value, lowest, highest);
  if (!number)
    throw FieldError(name, "{} must be a whole number from {} to {}, found {}", name, lowest,
                     highest, describe_ordered(*value));
  return number;
}

std::optional<float> Fields::number(const std::string& name, float lowest, float highest) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  const auto result = static_cast<float>(number);
  if (!(number >= lowest && number <= highest))
    throw FieldError(name, "{} must be a number from {} to {}, found {}", name, lowest, highest,
                     describe_ordered(*value));
  return result;
}

std::vector<std::int32_t> Fields::token_ids(const std::string& name,
                                            std::int64_t vocab_size) const {
  const Json* value = find(name);
  return value == nullptr ? std::vector<std::int32_t>{} : read_token_ids(*value, name, vocab_size);
}

std::vector<std::int32_t> read_token_ids(const Json& list, const std::string& name,
                                         std::int64_t vocab_size) {
  if (!list.is_array()) throw wrong_type(name, "a list of token ids", list);
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<std::int64_t> id = whole_number(item, 0, vocab_size - 1);
    if (!id)
      throw FieldError(name, "{} has {}, expected token ids from 0 to {}", name,
                       describe_ordered(item), vocab_size - 1);
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

}  // namespace sluice
