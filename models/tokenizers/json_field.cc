#include "models/tokenizers/json_field.h"

#include "base/error.h"
#include "base/json.h"

namespace sluice::tokenizers {

void JsonField::wrong_type(std::string_view expected) const {
  throw Error("{}: found {}, expected {}", where_, value_->type_name(), expected);
}

JsonField JsonField::member(const nlohmann::json& value, std::string_view key) const {
  return {value, fmt::format("{}{}{}", where_, separator_, key), "."};
}

JsonField JsonField::at(const std::string& key) const {
  if (!value_->is_object()) wrong_type("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) throw Error("{}: '{}' is missing", where_, key);
  return member(*found, key);
}

std::optional<JsonField> JsonField::find(const std::string& key) const {
  if (!value_->is_object()) wrong_type("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return member(*found, key);
}

std::size_t JsonField::size() const {
  if (!value_->is_array()) wrong_type("an array");
  return value_->size();
}

JsonField JsonField::item(std::size_t index) const {
  if (index >= size()) throw Error("{}: {} items, expected more", where_, size());
  return {(*value_)[index], fmt::format("{}[{}]", where_, index), "."};
}

const std::string& JsonField::text() const {
  if (!value_->is_string()) wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) wrong_type("true or false");
  return value_->get<bool>();
}

std::int32_t JsonField::token_id() const {
  if (!value_->is_number_integer()) wrong_type("a token id");
  const bool fits = value_->is_number_unsigned() &&
                    value_->get<std::uint64_t>() <= static_cast<std::uint64_t>(max_token_id);
  if (!fits) throw Error("{}: id {}, expected 0 to {}", where_, json_text(*value_), max_token_id);
  return value_->get<std::int32_t>();
}

bool JsonField::boolean_or(const std::string& key, bool fallback) const {
  const auto field = find(key);
  return field ? field->boolean() : fallback;
}

std::string JsonField::text_or(const std::string& key, std::string_view fallback) const {
  const auto field = find(key);
  return field ? field->text() : std::string(fallback);
}

}  // namespace sluice::tokenizers
