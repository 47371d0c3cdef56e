#include "perfmodels/profile_document.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int deepest_nesting = 16;

/// A number or a curve, with its source or without.
bool is_number(const json& value) {
  return value.contains("value") || value.contains("source") || value.contains("over");
}

void drop_replaced_numbers(json& target, const json& patch) {
  for (const auto& [key, value] : patch.items()) {
    const auto old = target.find(key);
    if (old == target.end() || !old->is_object() || !value.is_object()) continue;
    if (is_number(value)) {
      target.erase(old);
    } else {
      drop_replaced_numbers(*old, value);
    }
  }
}

/// What the machine draws besides its devices is said in one of two ways: the nearer one counts.
void drop_other_way_to_say_watts(json& target, const json& patch) {
  const auto system = patch.find("system");
  if (system == patch.end() || !system->is_object() || !target["system"].is_object()) return;
  const bool by_idle = system->contains("idle_watts");
  if (by_idle != system->contains("other_watts"))
    target["system"].erase(by_idle ? "other_watts" : "idle_watts");
}

}  // namespace

ProfileDocument::ProfileDocument(std::vector<File> chain) : chain_(std::move(chain)) {
  merged_ = json::object();
  std::for_each(chain_.rbegin(), chain_.rend(), [this](const File& file) {
    merged_.erase("name");
    merged_.erase("description");
    drop_replaced_numbers(merged_, file.json);
    if (merged_.contains("system")) drop_other_way_to_say_watts(merged_, file.json);
    merged_.merge_patch(file.json);
  });
  merged_.erase("base");
}

const std::string& ProfileDocument::file_of(const json::json_pointer& path) const {
  for (const File& file : chain_) {
    if (file.json.contains(path)) return file.path;
  }
  return chain_.front().path;
}

json parse_profile_json(std::string_view text, std::string_view where) {
  json parsed = parse_json(text, where, DuplicateKeys::refuse, deepest_nesting);
  if (!parsed.is_object())
    throw Error("{}: found {}, expected an object that describes a machine", where,
                describe(parsed));
  return parsed;
}

ProfileField ProfileField::child(std::string_view key, const json& value) const {
  ProfileField field = *this;
  field.value_ = &value;
  field.pointer_.push_back(std::string(key));
  return field;
}

std::optional<ProfileField> ProfileField::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  if (member == value_->end()) return std::nullopt;
  return child(key, *member);
}

ProfileField ProfileField::at(std::string_view key) const {
  if (std::optional<ProfileField> field = find(key)) return *field;
  throw Error("{}: {} is missing", document_->file_of(pointer_), child(key, *value_).path());
}

std::vector<ProfileField> ProfileField::elements() const {
  if (!value_->is_array() || value_->empty()) refuse("a list with at least one element");
  std::vector<ProfileField> fields;
  for (std::size_t i = 0; i < value_->size(); ++i)
    fields.push_back(child(std::to_string(i), (*value_)[i]));
  return fields;
}

void ProfileField::expect_keys(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) refuse(fmt::format("an object with {}", fmt::join(known, ", ")));
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      child(key, value).complain(fmt::format("unknown key, expected {}", fmt::join(known, ", ")));
  }
}

double ProfileField::positive() const {
  const double number = value_->is_number() ? value_->get<double>() : 0;
  if (!(number > 0) || std::isinf(number)) refuse("a number above 0");
  return number;
}

double ProfileField::not_negative() const {
  const double number = value_->is_number() ? value_->get<double>() : -1;
  if (!(number >= 0) || std::isinf(number)) refuse("a number, 0 or more");
  return number;
}

bool ProfileField::flag() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string ProfileField::text() const {
  const auto* text = value_->get_ptr<const std::string*>();
  if (text == nullptr || text->find_first_not_of(" \t\n") == std::string::npos)
    refuse("a text that is not empty");
  return *text;
}

std::size_t ProfileField::word(std::initializer_list<std::string_view> words) const {
  const auto* text = value_->get_ptr<const std::string*>();
  const auto found = text == nullptr ? words.end() : std::find(words.begin(), words.end(), *text);
  if (found == words.end()) refuse(fmt::format("\"{}\"", fmt::join(words, "\" or \"")));
  return static_cast<std::size_t>(found - words.begin());
}

void ProfileField::refuse(std::string_view expected) const {
  throw Error("{}: {} is {}, expected {}", document_->file_of(pointer_), path(), describe(*value_),
              expected);
}

void ProfileField::complain(std::string_view complaint) const {
  throw Error("{}: {}: {}", document_->file_of(pointer_), path(), complaint);
}

std::string ProfileField::path() const {
  std::string path = pointer_.to_string();
  if (path.empty()) return "the profile";
  path.erase(0, 1);
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

}  // namespace sluice
