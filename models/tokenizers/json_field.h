#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::tokenizers {

/// Ids above this are refused: a tiny file must not make us allocate gigabytes.
constexpr std::int32_t max_token_id = (1 << 23) - 1;

/// A JSON value and the place where it stands, so that every message names the file and the field.
/// Refers to the document, which must outlive it. All getters throw Error when the type is another.
/// Messages begin with where(): "tokenizer.json: model.vocab".
class JsonField {
 public:
  JsonField(const nlohmann::json& document, std::string path)
      : JsonField(document, std::move(path), ": ") {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  JsonField at(const std::string& key) const;                   ///< throws when absent
  std::optional<JsonField> find(const std::string& key) const;  ///< nothing when absent or null
  std::size_t size() const;                                     ///< of an array
  JsonField item(std::size_t index) const;                      ///< of an array

  const std::string& text() const;
  bool boolean() const;
  std::int32_t token_id() const;  ///< 0 .. max_token_id

  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, std::string_view fallback) const;

  /// The "type" that tokenizer.json's components carry.
  const std::string& type() const { return at("type").text(); }

 private:
  JsonField(const nlohmann::json& value, std::string where, std::string_view separator)
      : value_(&value), where_(std::move(where)), separator_(separator) {}
  [[noreturn]] void wrong_type(std::string_view expected) const;
  JsonField member(const nlohmann::json& value, std::string_view key) const;

  const nlohmann::json* value_;
  std::string where_;
  std::string_view separator_;  ///< between where_ and a key
};

}  // namespace sluice::tokenizers
