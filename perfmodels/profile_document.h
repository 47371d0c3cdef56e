#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A profile's JSON with its bases merged in, before anything is known about its fields.
class ProfileDocument {
 public:
  struct File {
    std::string path;
    nlohmann::json json;
  };
  /// `chain`: the profile itself, its base, that one's base, ... Each is an RFC 7386 merge patch to
  /// the next, but `name` and `description` are never inherited, and an object that is a number (or
  /// a curve) replaces the base's as a whole: none keeps the source of another.
  explicit ProfileDocument(std::vector<File> chain);

  const nlohmann::json& json() const { return merged_; }
  /// The file in which a value of the merged JSON stands; the profile itself for missing ones.
  const std::string& file_of(const nlohmann::json::json_pointer& path) const;

 private:
  std::vector<File> chain_;
  nlohmann::json merged_;
};

/// Parses a JSON text. Throws Error (one line, naming `where`) if it is no JSON object, is nested
/// deeper than a profile ever is, or has a key twice in one object.
nlohmann::json parse_profile_json(std::string_view text, std::string_view where);

/// One value of a document, which must outlive it.
class ProfileField {
 public:
  explicit ProfileField(const ProfileDocument& document)
      : document_(&document), value_(&document.json()) {}

  bool is_object() const { return value_->is_object(); }
  std::optional<ProfileField> find(std::string_view key) const;  ///< a member, if there
  ProfileField at(std::string_view key) const;                   ///< Throws Error when missing.
  std::vector<ProfileField> elements() const;                    ///< of a list that is not empty

  /// Throws Error if not an object, or if it has any other member.
  void expect_keys(std::initializer_list<std::string_view> known) const;
  double positive() const;      ///< finite, above 0
  double not_negative() const;  ///< finite, 0 or more
  bool flag() const;
  std::string text() const;  ///< not empty
  /// One of a few words, by its index.
  std::size_t word(std::initializer_list<std::string_view> words) const;

  /// Throws Error "file: path is ..., expected ...".
  [[noreturn]] void refuse(std::string_view expected) const;
  /// Throws Error "file: path: complaint".
  [[noreturn]] void complain(std::string_view complaint) const;

 private:
  ProfileField child(std::string_view key, const nlohmann::json& value) const;
  std::string path() const;

  const ProfileDocument* document_;
  const nlohmann::json* value_;
  nlohmann::json::json_pointer pointer_;
};

}  // namespace sluice
