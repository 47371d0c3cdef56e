#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace sluice {

/// A field with a wrong value.
class FieldError : public Error {
 public:
  template <typename... Args>
  explicit FieldError(std::string field, fmt::format_string<Args...> format, Args&&... args)
      : Error(format, std::forward<Args>(args)...), field_(std::move(field)) {}

  /// Empty where the whole is no object.
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

/// The fields of a JSON object: a request's body, or a line of a prompts file. Null is "not given".
/// What is wrong is a FieldError.
class Fields {
 public:
  /// `what` names the object in messages. Throws FieldError where it is none. The object outlives
  /// this.
  explicit Fields(const nlohmann::ordered_json& object, const char* what = "the request's body");

  /// Null where the field is missing or null.
  const nlohmann::ordered_json* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }

  bool boolean(const std::string& name, bool otherwise) const;
  std::optional<std::string> text(const std::string& name) const;
  std::optional<std::int64_t> whole(const std::string& name, std::int64_t lowest,
                                    std::int64_t highest) const;
  std::optional<float> number(const std::string& name, float lowest, float highest) const;
  /// Ids below `vocab_size`.
  std::vector<std::int32_t> token_ids(const std::string& name, std::int64_t vocab_size) const;

  /// Names that were asked for so far, found or not.
  const std::vector<std::string>& asked() const { return asked_; }

 private:
  const nlohmann::ordered_json& object_;
  mutable std::vector<std::string> asked_;
};

/// A list of ids, `name` for messages. Throws FieldError.
std::vector<std::int32_t> read_token_ids(const nlohmann::ordered_json& list,
                                         const std::string& name, std::int64_t vocab_size);

}  // namespace sluice
