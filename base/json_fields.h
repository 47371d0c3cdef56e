#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

namespace sluice {

/// Reads fields of a file's objects. Each throws Error, in one line that names the file and the
/// field, where it is missing or not what is expected.
class JsonFields {
 public:
  /// `where` names the file.
  explicit JsonFields(std::string where) : where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const nlohmann::json& at(const nlohmann::json& object, const char* key) const;
  const nlohmann::json& list(const nlohmann::json& object, const char* key) const;
  /// A whole number from `least` to `most`.
  std::int64_t number(const nlohmann::json& object, const char* key, std::int64_t least,
                      std::int64_t most) const;
  /// The same of a value that a field holds.
  std::int64_t number_of(const nlohmann::json& value, const char* key, std::int64_t least,
                         std::int64_t most) const;
  bool truth(const nlohmann::json& object, const char* key) const;
  std::string text(const nlohmann::json& object, const char* key) const;
  /// Above 0.
  double seconds(const nlohmann::json& object, const char* key) const;

 private:
  std::string where_;
};

}  // namespace sluice
