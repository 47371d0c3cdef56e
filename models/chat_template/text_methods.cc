// The methods of str.

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/text.h"
#include "models/tokenizers/utf8.h"

namespace sluice::jinja {
namespace {

/// A call of a method: the text and what stands in the parentheses.
struct Call {
  Heap& heap;
  const std::string& text;
  const Arguments& arguments;
  std::string_view name;

  Parameters read(std::initializer_list<std::string_view> names) const {
    return {name, arguments, names};
  }
  Value texts(const std::vector<std::string_view>& parts) const {
    heap.require_room(parts.size() * sizeof(Value));
    std::vector<Value> items;
    items.reserve(parts.size());
    for (const std::string_view part : parts) items.push_back(heap.text(std::string(part)));
    return heap.list(std::move(items));
  }
};

std::size_t limit_or_all(std::int64_t limit) {
  return limit < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(limit);
}

Value strip(const Call& call, Side side) {
  const Parameters given = call.read({"chars"});
  const std::string_view rest =
      given.is_given(0) ? stripped(call.text, given.text(0), side) : stripped(call.text, side);
  return call.heap.text(std::string(rest));
}

std::vector<std::string_view> split_by(std::string_view text, std::string_view separator,
                                       std::size_t most) {
  std::vector<std::string_view> parts;
  for (std::size_t at = text.find(separator); at != std::string_view::npos && parts.size() < most;
       at = text.find(separator)) {
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_by_from_right(std::string_view text, std::string_view separator,
                                                  std::size_t most) {
  std::vector<std::string_view> parts;
  for (std::size_t at = text.rfind(separator); at != std::string_view::npos && parts.size() < most;
       at = text.rfind(separator)) {
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(const Call& call, Side side) {
  const Parameters given = call.read({"sep", "maxsplit"});
  const std::size_t most = limit_or_all(given.integer_or(1, -1));
  call.heap.require_room(call.text.size() * sizeof(std::string_view));
  if (!given.is_given(0)) {
    return call.texts(side == Side::left ? split_at_space(call.text, most)
                                         : split_at_space_from_right(call.text, most));
  }
  if (given.text(0).empty()) throw Error("{}(): the separator is empty", call.name);
  call.heap.step_search(call.text.size(), given.text(0).size());
  return call.texts(side == Side::left ? split_by(call.text, given.text(0), most)
                                       : split_by_from_right(call.text, given.text(0), most));
}

Value partition(const Call& call, Side side) {
  const Parameters given = call.read({"sep"});
  const std::string& separator = given.text(0);
  if (separator.empty()) throw Error("{}(): the separator is empty", call.name);
  const std::string& text = call.text;
  call.heap.step_search(text.size(), separator.size());
  const std::size_t at = side == Side::left ? text.find(separator) : text.rfind(separator);
  std::string parts[3];
  if (at != std::string::npos) {
    parts[0] = text.substr(0, at);
    parts[1] = separator;
    parts[2] = text.substr(at + separator.size());
  } else {
    parts[side == Side::left ? 0 : 2] = text;
  }
  return call.heap.tuple(
      {call.heap.text(parts[0]), call.heap.text(parts[1]), call.heap.text(parts[2])});
}

Value split_lines_of(const Call& call) {
  const Parameters given = call.read({"keepends"});
  call.heap.require_room(call.text.size() * sizeof(std::string_view));
  return call.texts(
      split_lines(call.text, given.flag_or(0, false) ? LineEnds::keep : LineEnds::drop));
}

/// The part of the text between the characters that a method's arguments `start` and `end` name.
struct Window {
  std::string_view text;
  std::int64_t first = 0;  ///< its first character; negative where start lies behind end or text
};

Window window_of(const Call& call, const Parameters& given) {
  const auto length = static_cast<std::int64_t>(num_characters(call.text));
  const auto bound = [length](std::int64_t at) {
    return at < 0 ? std::max<std::int64_t>(0, at + length) : at;
  };
  const std::int64_t begin = bound(given.integer_or(1, 0));
  const std::int64_t end = std::min(bound(given.integer_or(2, length)), length);
  if (begin > end) return {{}, -1};
  const std::size_t from = character_offset(call.text, static_cast<std::size_t>(begin));
  const std::size_t to = character_offset(call.text, static_cast<std::size_t>(end));
  return {std::string_view(call.text).substr(from, to - from), begin};
}

enum class Edge : std::uint8_t { start, end };

Value has_affix(const Call& call, Edge edge) {
  const Parameters given = call.read({"prefix", "start", "end"});
  const Window window = window_of(call, given);
  const auto matches = [&](const Value& affix) {
    if (affix.text() == nullptr)
      throw Error("{}() needs a text or a tuple of texts, not {}", call.name, type_name(affix));
    return window.first >= 0 && (edge == Edge::start ? window.text.starts_with(*affix.text())
                                                     : window.text.ends_with(*affix.text()));
  };
  const Sequence* const sequence = given.at(0).sequence();
  if (sequence == nullptr || sequence->kind != SequenceKind::tuple)
    return Value(matches(given.at(0)));
  return Value(std::any_of(sequence->items.begin(), sequence->items.end(), matches));
}

std::int64_t find_in(const Call& call, Side side) {
  const Parameters given = call.read({"sub", "start", "end"});
  const Window window = window_of(call, given);
  if (window.first < 0) return -1;
  call.heap.step_search(window.text.size(), given.text(0).size());
  const std::size_t at =
      side == Side::left ? window.text.find(given.text(0)) : window.text.rfind(given.text(0));
  if (at == std::string_view::npos) return -1;
  return window.first + static_cast<std::int64_t>(num_characters(window.text.substr(0, at)));
}

Value index_in(const Call& call, Side side) {
  const std::int64_t found = find_in(call, side);
  if (found < 0) throw Error("{}(): the text is not there", call.name);
  return Value(found);
}

Value count_in(const Call& call) {
  const Parameters given = call.read({"sub", "start", "end"});
  const Window window = window_of(call, given);
  if (window.first < 0) return Value(std::int64_t{0});
  call.heap.step_search(window.text.size(), given.text(0).size());
  return Value(static_cast<std::int64_t>(count_of(window.text, given.text(0))));
}

Value replace(const Call& call) {
  const Parameters given = call.read({"old", "new", "count"});
  const std::size_t most = limit_or_all(given.integer_or(2, -1));
  return call.heap.text(replaced_within(call.heap, call.text, given.text(0), given.text(1), most));
}

Value join(const Call& call) {
  const Parameters given = call.read({"iterable"});
  require_defined(given.at(0));
  std::string out;
  bool is_first = true;
  for (const Value& item : items_of(call.heap, given.at(0))) {
    if (item.text() == nullptr) throw Error("join(): {} is no text", object_name(item));
    if (!is_first) out += call.text;
    is_first = false;
    out += *item.text();
    call.heap.require_room(out.size());
  }
  return call.heap.text(std::move(out));
}

Value pad(const Call& call, std::function<std::size_t(std::size_t, std::size_t)> left_share) {
  const Parameters given = call.read({"width", "fillchar"});
  if (!given.has(0)) throw Error("{}() needs width", call.name);
  const std::string fill = given.text_or(1, " ");
  if (num_characters(fill) != 1) throw Error("{}(): fillchar is not one character", call.name);
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(0, given.integer_or(0, 0)));
  const std::size_t length = num_characters(call.text);
  if (width <= length) return call.heap.text(call.text);
  call.heap.require_room(width);
  call.heap.require_room(width * fill.size());
  const std::size_t left = left_share(width - length, width);
  std::string out;
  for (std::size_t i = 0; i < left; ++i) out += fill;
  out += call.text;
  for (std::size_t i = left; i < width - length; ++i) out += fill;
  return call.heap.text(std::move(out));
}

Value center(const Call& call) {
  return pad(call, [](std::size_t margin, std::size_t width) {
    return margin / 2 + (margin & width & 1U);  // as Python rounds it
  });
}

Value zero_fill(const Call& call) {
  const Parameters given = call.read({"width"});
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(0, given.integer_or(0, 0)));
  const std::size_t length = num_characters(call.text);
  if (width <= length) return call.heap.text(call.text);
  call.heap.require_room(width);
  const bool has_sign = call.text.starts_with('+') || call.text.starts_with('-');
  std::string out = call.text;
  out.insert(has_sign ? 1 : 0, width - length, '0');
  return call.heap.text(std::move(out));
}

Value without_affix(const Call& call, Edge edge) {
  const Parameters given = call.read({"affix"});
  std::string_view rest = call.text;
  const std::string& affix = given.text(0);
  if (edge == Edge::start && rest.starts_with(affix)) rest.remove_prefix(affix.size());
  if (edge == Edge::end && rest.ends_with(affix)) rest.remove_suffix(affix.size());
  return call.heap.text(std::string(rest));
}

/// Whether it has characters, and all are such.
Value all_are(const Call& call, bool (*matches)(char32_t)) {
  call.read({});
  std::string_view rest = call.text;
  if (rest.empty()) return Value(false);
  for (; !rest.empty(); rest.remove_prefix(tokenizers::utf8_length(rest.front()))) {
    if (!matches(tokenizers::decode_utf8(rest))) return Value(false);
  }
  return Value(true);
}

bool is_alphanumeric(char32_t character) { return is_letter(character) || is_number(character); }

Value is_ascii(const Call& call) {
  call.read({});
  return Value(std::all_of(call.text.begin(), call.text.end(),
                           [](char byte) { return static_cast<signed char>(byte) >= 0; }));
}

Value changed(const Call& call, std::string (*change)(std::string_view)) {
  call.read({});
  return call.heap.text(change(call.text));
}

/// The value that a field of str.format names: empty for the next one, a number, or a name.
Value format_field(const Call& call, std::string_view name, std::size_t& next) {
  const auto positional = [&](std::size_t index) {
    if (index >= call.arguments.positional.size())
      throw Error("format(): there is no argument {}", index);
    return call.arguments.positional[index];
  };
  if (name.empty()) return positional(next++);
  if (name.find_first_not_of("0123456789") == std::string_view::npos) {
    constexpr std::size_t most_digits = 6;
    if (name.size() > most_digits) throw Error("format(): there is no argument {}", name);
    return positional(std::stoul(std::string(name)));
  }
  for (const auto& [key, value] : call.arguments.named) {
    if (key == name) return value;
  }
  throw Error(
      "format(): there is no argument {} (only names and numbers are supported, without a "
      "format behind ':')",
      quote(name));
}

Value format(const Call& call) {
  std::string out;
  std::size_t next = 0;
  std::string_view rest = call.text;
  while (!rest.empty()) {
    const char byte = rest.front();
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      out += byte;
      rest.remove_prefix(2);
    } else if (byte == '{') {
      const std::size_t end = rest.find('}');
      if (end == std::string_view::npos) throw Error("format(): a '{{' without '}}'");
      std::string_view name = rest.substr(1, end - 1);
      const bool is_repr = name.ends_with("!r");
      if (is_repr || name.ends_with("!s")) name.remove_suffix(2);
      const Value value = format_field(call, name, next);
      out += is_repr ? to_repr(call.heap, value) : to_text(call.heap, value);
      rest.remove_prefix(end + 1);
    } else {
      out += byte;
      rest.remove_prefix(1);
    }
    call.heap.require_room(out.size());
  }
  return call.heap.text(std::move(out));
}

struct Method {
  std::string_view name;
  Value (*run)(const Call&);
};

constexpr Method methods[] = {
    {"capitalize", [](const Call& call) { return changed(call, capitalized); }},
    {"casefold", [](const Call& call) { return changed(call, lower_case); }},
    {"center", center},
    {"count", count_in},
    {"endswith", [](const Call& call) { return has_affix(call, Edge::end); }},
    {"find", [](const Call& call) { return Value(find_in(call, Side::left)); }},
    {"format", format},
    {"index", [](const Call& call) { return index_in(call, Side::left); }},
    {"isalnum", [](const Call& call) { return all_are(call, is_alphanumeric); }},
    {"isalpha", [](const Call& call) { return all_are(call, is_letter); }},
    {"isascii", is_ascii},
    {"isdecimal", [](const Call& call) { return all_are(call, is_digit); }},
    {"isdigit", [](const Call& call) { return all_are(call, is_digit); }},
    {"islower", [](const Call& call) { return Value(is_lower_text(call.text)); }},
    {"isnumeric", [](const Call& call) { return all_are(call, is_number); }},
    {"isspace", [](const Call& call) { return all_are(call, is_space); }},
    {"isupper", [](const Call& call) { return Value(is_upper_text(call.text)); }},
    {"join", join},
    {"ljust",
     [](const Call& call) {
       return pad(call, [](std::size_t, std::size_t) { return std::size_t{0}; });
     }},
    {"lower", [](const Call& call) { return changed(call, lower_case); }},
    {"lstrip", [](const Call& call) { return strip(call, Side::left); }},
    {"partition", [](const Call& call) { return partition(call, Side::left); }},
    {"removeprefix", [](const Call& call) { return without_affix(call, Edge::start); }},
    {"removesuffix", [](const Call& call) { return without_affix(call, Edge::end); }},
    {"replace", replace},
    {"rfind", [](const Call& call) { return Value(find_in(call, Side::right)); }},
    {"rindex", [](const Call& call) { return index_in(call, Side::right); }},
    {"rjust",
     [](const Call& call) {
       return pad(call, [](std::size_t margin, std::size_t) { return margin; });
     }},
    {"rpartition", [](const Call& call) { return partition(call, Side::right); }},
    {"rsplit", [](const Call& call) { return split(call, Side::right); }},
    {"rstrip", [](const Call& call) { return strip(call, Side::right); }},
    {"split", [](const Call& call) { return split(call, Side::left); }},
    {"splitlines", split_lines_of},
    {"startswith", [](const Call& call) { return has_affix(call, Edge::start); }},
    {"strip", [](const Call& call) { return strip(call, Side::both); }},
    {"swapcase", [](const Call& call) { return changed(call, swapped_case); }},
    {"title", [](const Call& call) { return changed(call, title_case); }},
    {"upper", [](const Call& call) { return changed(call, upper_case); }},
    {"zfill", zero_fill},
};

}  // namespace

std::string replaced_within(Heap& heap, std::string_view text, std::string_view from,
                            std::string_view to, std::size_t most) {
  heap.step_search(text.size(), from.size());
  const std::size_t count = std::min(count_of(text, from), most);
  std::size_t added = 0;
  if (__builtin_mul_overflow(count, to.size(), &added))
    added = std::numeric_limits<std::size_t>::max() / 2;
  heap.require_room(text.size() + added);
  return replaced(text, from, to, most);
}

Value text_method(Heap& heap, const Value& text, const std::string& name) {
  const auto* const found = std::find_if(std::begin(methods), std::end(methods),
                                         [&](const Method& method) { return method.name == name; });
  if (found == std::end(methods)) return {};
  return heap.function(name, [text, found](Heap& at, Arguments& arguments) {
    at.step_bytes(text.text()->size());
    return found->run(Call{at, *text.text(), arguments, found->name});
  });
}

}  // namespace sluice::jinja
