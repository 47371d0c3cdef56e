#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace sluice {
namespace {

using nlohmann::json;

/// Whether brackets outside of strings are nested deeper than `deepest`. What reads or writes a
/// value may call itself for each level.
bool nests_deeper(std::string_view text, int deepest) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > deepest) return true;
  }
  return false;
}

/// Refuses keys that nlohmann's parser would let pass, as it goes.
class ParseGuard {
 public:
  explicit ParseGuard(std::string_view where) : where_(where) {}

  void see(json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event != json::parse_event_t::key) return;
    const auto& key = parsed.get_ref<const std::string&>();
    if (!keys_.back().insert(key).second) {
      throw Error("{}: key {} stands twice in one JSON object; keep one, or get the file again",
                  where_, quote(key));
    }
  }

 private:
  std::string_view where_;
  std::vector<std::set<std::string>> keys_;
};

/// The part of nlohmann's message that a reader needs.
std::string reason(const json::exception& error) {
  std::string text = error.what();
  if (const auto bracket = text.find("] "); bracket != std::string::npos)
    text.erase(0, bracket + 2);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return shortened(text, 200);
}

/// Builds a value whose objects keep their order. nlohmann's own builder looks at all keys of an
/// object for each new one.
class OrderedBuilder final : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;

  explicit OrderedBuilder(std::string_view where) : where_(where) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override {
    merge_equal_keys(stack_.back()->get_ref<Json::object_t&>());
    stack_.pop_back();
    return true;
  }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& error) override {
    throw Error("{}: not valid JSON: {}", where_, reason(error));
  }

 private:
  Json& place(Json value) {
    if (stack_.empty()) return root_ = std::move(value);
    Json& parent = *stack_.back();
    if (parent.is_array()) return parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    return parent.get_ref<Json::object_t&>().emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    stack_.push_back(&place(std::move(value)));  // stays there: only the last one's children grow
    return true;
  }

  static void merge_equal_keys(Json::object_t& object) {
    std::unordered_map<std::string_view, std::size_t> places;
    for (const auto& entry : object) places.emplace(entry.first, places.size());
    if (places.size() == object.size()) return;
    std::vector<Json*> values;
    Json::object_t merged;
    merged.reserve(places.size());
    for (auto& [key, value] : object) {
      const std::size_t at = places.at(key);
      if (at == values.size()) values.push_back(&merged.emplace_back(key, nullptr).second);
      *values[at] = std::move(value);
    }
    object = std::move(merged);
  }

  std::string_view where_;
  Json root_;
  std::string key_;
  std::vector<Json*> stack_;
};

/// What no parser of ours may see.
void refuse_deep_or_nul(std::string_view text, std::string_view where, int deepest) {
  if (nests_deeper(text, deepest))
    throw Error("{}: nested deeper than {} levels, which no such file is", where, deepest);
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw Error("{}: not valid JSON: there is a NUL byte at offset {}", where, nul);
}

template <typename Json>
std::optional<std::int64_t> checked_whole_number(const Json& value, std::int64_t lowest,
                                                 std::int64_t highest) {
  std::int64_t number = 0;
  if (value.is_number_float()) {
    constexpr double exact = 0x1p53;  // whole numbers up to here are doubles
    const double given = value.template get<double>();
    if (!(std::abs(given) <= exact) || std::trunc(given) != given) return std::nullopt;
    number = static_cast<std::int64_t>(given);
  } else if (value.is_number_unsigned()) {
    const auto given = value.template get<std::uint64_t>();
    if (given > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    number = static_cast<std::int64_t>(given);
  } else if (value.is_number_integer()) {
    number = value.template get<std::int64_t>();
  } else {
    return std::nullopt;
  }
  if (number < lowest || number > highest) return std::nullopt;
  return number;
}

/// Short lists as written; never dumps what is nested, which may be deep.
template <typename Json>
std::string describe_list(const Json& list) {
  constexpr std::size_t longest = 4;
  const bool is_flat = std::all_of(list.begin(), list.end(),
                                   [](const Json& element) { return element.is_primitive(); });
  if (list.size() > longest || !is_flat) return fmt::format("a list of {}", list.size());
  return shortened(json_text(list));
}

template <typename Json>
std::string describe_any(const Json& value) {
  if (value.is_string()) return quote(value.template get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return describe_list(value);
  return shortened(json_text(value));
}

}  // namespace

json parse_json(std::string_view text, std::string_view where, DuplicateKeys duplicates,
                int deepest) {
  refuse_deep_or_nul(text, where, deepest);
  try {
    if (duplicates == DuplicateKeys::last_wins) return json::parse(text.begin(), text.end());
    ParseGuard guard(where);
    return json::parse(text.begin(), text.end(),
                       [&guard](int /*depth*/, json::parse_event_t event, json& parsed) {
                         guard.see(event, parsed);
                         return true;
                       });
  } catch (const json::exception& error) {
    throw Error("{}: not valid JSON: {}", where, reason(error));
  }
}

json parse_json_line(std::string_view text, std::string_view place) {
  try {
    return parse_json(text, place, DuplicateKeys::last_wins);
  } catch (const Error& error) {
    std::string message = error.what();
    const std::string_view redundant = " at line 1, column";  // `place` names the line
    if (const auto found = message.find(redundant); found != std::string::npos)
      message.replace(found, redundant.size(), " at column");
    throw Error("{}", message);
  }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          int deepest) {
  refuse_deep_or_nul(text, where, deepest);
  OrderedBuilder builder(where);
  nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string quote_non_finite(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    std::string_view word;
    for (const std::string_view known : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && text.substr(i).starts_with(known)) word = known;
    }
    if (!word.empty()) {
      result += fmt::format("\"{}\"", word);
      i += word.size();
      continue;
    }
    if (c == '"') in_string = !in_string;
    const std::size_t taken = in_string && c == '\\' && i + 1 < text.size() ? 2 : 1;
    result += text.substr(i, taken);
    i += taken;
  }
  return result;
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<std::int64_t> whole_number(const json& value, std::int64_t lowest,
                                         std::int64_t highest) {
  return checked_whole_number(value, lowest, highest);
}

std::optional<std::int64_t> whole_number(const nlohmann::ordered_json& value, std::int64_t lowest,
                                         std::int64_t highest) {
  return checked_whole_number(value, lowest, highest);
}

std::string quote(std::string_view text) { return json_text(json(shortened(text))); }

std::string describe(const json& value) { return describe_any(value); }

std::string describe_ordered(const nlohmann::ordered_json& value) { return describe_any(value); }

}  // namespace sluice
