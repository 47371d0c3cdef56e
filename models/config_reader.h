#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Reads the fields of one JSON object (config.json, or an object inside it) and names the field in
/// every complaint. A field that is null counts as missing unless said otherwise. Keeps a
/// reference: the JSON must outlive it.
class ConfigReader {
 public:
  /// `where` is the file's path; `prefix` the path inside it ("rope_scaling."). Throws Error if not
  /// an object.
  ConfigReader(const nlohmann::json& object, std::string where, std::string prefix = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// There, null or not.
  bool contains(std::string_view key) const { return has(key) || is_null(key); }
  /// There, and this value; numbers by value (1 is 1.0).
  bool equals(std::string_view key, const nlohmann::json& value) const;
  bool is_object(std::string_view key) const;
  std::vector<std::string> keys() const;
  /// There, and null: the few fields where that differs from a missing one ask.
  bool is_null(std::string_view key) const;

  /// A count from 1 (or `lowest`) to 2^31-1; 20.0 is one, too. Without a fallback the field must be
  /// there.
  std::int64_t count(std::string_view key) const;
  std::int64_t count(std::string_view key, std::int64_t fallback, std::int64_t lowest = 1) const;
  /// A number within [lowest, highest]; infinities and NaN never are.
  double number(std::string_view key, double lowest, double highest) const;
  double number(std::string_view key, double lowest, double highest, double fallback) const;
  /// A list of such numbers. Throws Error when missing.
  std::vector<double> numbers(std::string_view key, double lowest, double highest) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<std::string> texts(std::string_view key) const;  ///< empty when missing
  /// One token id or a list of them; none when null, the fallback when missing. Ids below 0, which
  /// people write for "none", are left out.
  std::vector<std::int32_t> token_ids(std::string_view key,
                                      std::vector<std::int32_t> fallback = {}) const;
  /// One token id, or the first of a list; none when null or negative, the fallback when missing.
  std::optional<std::int32_t> token_id(std::string_view key,
                                       std::optional<std::int32_t> fallback = {}) const;
  /// The object behind a key; nothing when missing.
  std::optional<ConfigReader> object(std::string_view key) const;

  const std::string& where() const { return where_; }
  const std::string& prefix() const { return prefix_; }
  /// Throws Error "config.json: hidden_size is "x", expected ...".
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;
  [[noreturn]] void missing(std::string_view key) const;

 private:
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json& at(std::string_view key) const;

  const nlohmann::json* object_;
  std::string where_;
  std::string prefix_;
};

}  // namespace sluice
