#include "base/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestQuote = 200;

std::string cut(std::string text) {
  if (text.size() <= kLongestQuote) return text;
  text.resize(kLongestQuote);
  return text + "...";
}

/// Refuses what nlohmann's parser would let pass, as it goes.
class ParseGuard {
 public:
  ParseGuard(std::string_view where, DuplicateKeys duplicates, int deepest)
      : where_(where), duplicates_(duplicates), deepest_(deepest) {}

  void see(int depth, json::parse_event_t event, const json& parsed) {
    if (depth > deepest_)
      throw Error("{}: nested deeper than {} levels, which no such file is", where_, deepest_);
    if (duplicates_ == DuplicateKeys::last_wins) return;
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
  DuplicateKeys duplicates_;
  int deepest_;
  std::vector<std::set<std::string>> keys_;
};

/// The part of nlohmann's message that a reader needs.
std::string reason(const json::exception& error) {
  std::string text = error.what();
  if (const auto bracket = text.find("] "); bracket != std::string::npos)
    text.erase(0, bracket + 2);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return cut(std::move(text));
}

/// Short lists as written; never dumps what is nested, which may be deep.
std::string describe_list(const json& list) {
  constexpr std::size_t longest = 4;
  const bool is_flat = std::all_of(list.begin(), list.end(),
                                   [](const json& element) { return element.is_primitive(); });
  if (list.size() > longest || !is_flat) return fmt::format("a list of {}", list.size());
  return cut(json_text(list));
}

}  // namespace

json parse_json(std::string_view text, std::string_view where, DuplicateKeys duplicates,
                int deepest) {
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    throw Error("{}: not valid JSON: there is a NUL byte at offset {}", where, nul);
  try {
    if (duplicates == DuplicateKeys::last_wins && deepest == std::numeric_limits<int>::max())
      return json::parse(text.begin(), text.end());
    ParseGuard guard(where, duplicates, deepest);
    return json::parse(text.begin(), text.end(),
                       [&guard](int depth, json::parse_event_t event, json& parsed) {
                         guard.see(depth, event, parsed);
                         return true;
                       });
  } catch (const json::exception& error) {
    throw Error("{}: not valid JSON: {}", where, reason(error));
  }
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

std::string quote(std::string_view text) {
  const bool is_long = text.size() > kLongestQuote;
  const json shown = std::string(text.substr(0, kLongestQuote));
  return json_text(shown) + (is_long ? "..." : "");
}

std::string describe(const json& value) {
  if (value.is_string()) return quote(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return describe_list(value);
  return cut(json_text(value));
}

}  // namespace sluice
