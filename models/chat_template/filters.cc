#include "models/chat_template/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/text.h"
#include "models/tokenizers/utf8.h"

namespace sluice::jinja {
namespace {

/// A filter of a value, with what stands in its parentheses.
struct Call {
  Heap& heap;
  const Value& value;
  const Arguments& arguments;
  std::string_view name;

  Parameters read(std::initializer_list<std::string_view> names) const {
    return {name, arguments, names};
  }
  std::string text() const { return to_text(heap, value); }
  /// A text, marked as safe where the value was.
  Value like_value(std::string text) const {
    return value.is_markup() ? heap.markup(std::move(text)) : heap.text(std::move(text));
  }
  std::vector<Value> items() const { return items_of(heap, value); }
};

Value changed(const Call& call, std::string (*change)(std::string_view)) {
  call.read({});
  return call.like_value(change(call.text()));
}

/// An item's "a.b.0": what the parameter `attribute` of filters names.
Value nested_attribute(Heap& heap, Value item, const Value& path) {
  if (const auto index = as_integer(path)) return get_item(heap, item, Value(*index));
  if (path.text() == nullptr)
    throw Error("an attribute is named by a text or a number, not {}", type_name(path));
  std::string_view rest = *path.text();
  while (true) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, end);
    std::int64_t index = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && stop == part.data() + part.size() && index >= 0;
    item = get_item(heap, item, is_index ? Value(index) : heap.text(std::string(part)));
    if (end == rest.size()) return item;
    rest.remove_prefix(end + 1);
  }
}

/// What sort, min, max and unique compare: an attribute, in lower case unless cases matter.
struct Key {
  std::optional<Value> attribute;
  bool case_sensitive = false;

  Value of(Heap& heap, const Value& item) const {
    Value value = attribute ? nested_attribute(heap, item, *attribute) : item;
    if (case_sensitive || value.text() == nullptr) return value;
    return heap.text(lower_case(*value.text()));
  }
};

std::optional<Value> attribute_of(const Parameters& given, std::size_t index) {
  return given.is_given(index) ? std::optional(given.at(index)) : std::nullopt;
}

/// Stable; each item's key is made once.
std::vector<Value> sorted(Heap& heap, std::vector<Value> items, const std::vector<Key>& keys,
                          bool reverse) {
  using Keyed = std::pair<std::vector<Value>, Value>;
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    std::vector<Value> values;
    values.reserve(keys.size());
    for (const Key& key : keys) values.push_back(key.of(heap, item));
    keyed.emplace_back(std::move(values), std::move(item));
  }
  const auto is_before = [&heap](const Keyed& a, const Keyed& b) {
    for (std::size_t i = 0; i < a.first.size(); ++i) {
      if (!equals(heap, a.first[i], b.first[i]))
        return std::is_lt(compare(heap, a.first[i], b.first[i]));
    }
    return false;
  };
  if (reverse) {  // Python keeps the order of equal ones in either direction
    std::reverse(keyed.begin(), keyed.end());
    std::stable_sort(keyed.begin(), keyed.end(), is_before);
    std::reverse(keyed.begin(), keyed.end());
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), is_before);
  }
  std::vector<Value> result;
  result.reserve(keyed.size());
  for (Keyed& pair : keyed) result.push_back(std::move(pair.second));
  return result;
}

Value absolute(const Call& call) {
  call.read({});
  if (const auto* const real = call.value.as<double>()) return Value(std::abs(*real));
  const auto integer = as_integer(call.value);
  if (!integer) throw Error("abs: {} is no number", object_name(call.value));
  return *integer < 0 ? negated(call.value) : Value(*integer);
}

Value attribute(const Call& call) {
  const Parameters given = call.read({"name"});
  return get_own_attribute(call.heap, call.value, given.text(0));
}

Value batch(const Call& call) {
  const Parameters given = call.read({"linecount", "fill_with"});
  const std::int64_t count = given.integer_or(0, 0);
  if (count < 1) throw Error("batch: {} items a line", count);
  std::vector<Value> lines;
  std::vector<Value> line;
  for (const Value& item : call.items()) {
    if (static_cast<std::int64_t>(line.size()) == count)
      lines.push_back(call.heap.list(std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    if (given.is_given(1)) {
      call.heap.step(count);  // at most so many as there may be steps
      line.resize(static_cast<std::size_t>(count), given.at(1));
    }
    lines.push_back(call.heap.list(std::move(line)));
  }
  return call.heap.generator(std::move(lines));
}

Value slice(const Call& call) {
  const Parameters given = call.read({"slices", "fill_with"});
  const std::vector<Value> items = call.items();
  const std::int64_t count = given.integer_or(0, 0);
  if (count < 1) throw Error("slice: {} slices", count);
  const auto num_slices = static_cast<std::size_t>(count);
  call.heap.require_room(num_slices);
  call.heap.step(count);
  const std::size_t longer = items.size() % num_slices;
  std::vector<Value> slices;
  for (std::size_t i = 0, at = 0; i < num_slices; ++i) {
    const std::size_t size = items.size() / num_slices + (i < longer ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(at),
                            items.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
    if (given.is_given(1) && i >= longer) part.push_back(given.at(1));
    slices.push_back(call.heap.list(std::move(part)));
  }
  return call.heap.generator(std::move(slices));
}

Value center(const Call& call) {
  constexpr std::int64_t default_width = 80;
  const Parameters given = call.read({"width"});
  Arguments width;
  width.positional.emplace_back(given.integer_or(0, default_width));
  const Value method = text_method(call.heap, call.heap.text(call.text()), "center");
  return (*method.as<std::shared_ptr<Callable>>())->call(call.heap, std::move(width));
}

Value fallback(const Call& call) {
  const Parameters given = call.read({"default_value", "boolean"});
  const bool is_missing =
      call.value.is<Undefined>() || (given.flag_or(1, false) && !truth(call.value));
  if (!is_missing) return call.value;
  return given.has(0) ? given.at(0) : call.heap.text("");
}

const Mapping& require_mapping(const Call& call) {
  require_defined(call.value);
  if (call.value.mapping() == nullptr)
    throw Error("{} needs a dict, not {}", call.name, object_name(call.value));
  return *call.value.mapping();
}

std::vector<Value> pairs_of(const Call& call, const Mapping& mapping) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : mapping.entries) pairs.push_back(call.heap.tuple({key, value}));
  return pairs;
}

Value sorted_dict(const Call& call) {
  const Parameters given = call.read({"case_sensitive", "by", "reverse"});
  const std::string by = given.text_or(1, "key");
  if (by != "key" && by != "value") throw Error("dictsort: by is {}, not key or value", quote(by));
  const Key key{Value(std::int64_t{by == "key" ? 0 : 1}), given.flag_or(0, false)};
  return call.heap.list(
      sorted(call.heap, pairs_of(call, require_mapping(call)), {key}, given.flag_or(2, false)));
}

Value items(const Call& call) {
  call.read({});
  if (call.value.is<Undefined>()) return call.heap.generator({});
  return call.heap.generator(pairs_of(call, require_mapping(call)));
}

Value escape(const Call& call) {
  call.read({});
  if (call.value.is_markup()) return call.value;
  const std::string text = call.text();
  call.heap.require_room(text.size());
  return call.heap.markup(escaped_html(text));
}

Value first(const Call& call) {
  call.read({});
  Sequence* const sequence = call.value.sequence();
  if (sequence != nullptr && sequence->kind == SequenceKind::generator &&
      sequence->num_taken < sequence->items.size())
    return sequence->items[sequence->num_taken++];
  const std::vector<Value> list = call.items();
  return list.empty() ? call.heap.undefined("first: there is no item") : list.front();
}

Value last(const Call& call) {
  call.read({});
  if (call.value.sequence() != nullptr && call.value.sequence()->kind == SequenceKind::generator)
    throw Error("last: {} has no end; add |list in front", object_name(call.value));
  const std::vector<Value> list = call.items();
  return list.empty() ? call.heap.undefined("last: there is no item") : list.back();
}

/// float(): of a text with blanks around it, and digits in groups.
std::optional<double> parse_float(std::string_view text) {
  std::string digits(stripped(text, Side::both));
  std::string plain;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool is_between = i > 0 && i + 1 < digits.size() && std::isdigit(digits[i - 1]) != 0 &&
                            std::isdigit(digits[i + 1]) != 0;
    if (digits[i] == '_' && is_between) continue;
    plain += digits[i];
  }
  if (plain.empty() || plain.find_first_of("xX(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

/// int(): a text in the base, perhaps with its prefix.
std::optional<std::int64_t> parse_int(std::string_view text, int base) {
  std::string digits(stripped(text, Side::both));
  std::string plain;
  for (const char byte : digits) {
    if (byte != '_') plain += byte;
  }
  const bool is_negative = plain.starts_with('-');
  if (is_negative || plain.starts_with('+')) plain.erase(0, 1);
  const auto has_prefix = [&](int of_base, std::string_view lower, std::string_view upper) {
    return base == of_base && (plain.starts_with(lower) || plain.starts_with(upper));
  };
  constexpr int binary = 2, octal = 8, hexadecimal = 16;
  if (has_prefix(binary, "0b", "0B") || has_prefix(octal, "0o", "0O") ||
      has_prefix(hexadecimal, "0x", "0X"))
    plain.erase(0, 2);
  if (is_negative) plain.insert(0, "-");
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (error == std::errc::result_out_of_range && end == plain.data() + plain.size())
    throw Error("int: {} is beyond the whole numbers of 64 bits", quote(text));
  if (error != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> truncated(double value) {
  constexpr double limit = 0x1p63;
  if (std::isnan(value)) return std::nullopt;
  if (!(std::abs(value) < limit)) throw Error("int: a number is beyond 64 bits");
  return static_cast<std::int64_t>(value);
}

Value to_int(const Call& call) {
  constexpr std::int64_t decimal = 10, highest_base = 36;
  const Parameters given = call.read({"default", "base"});
  const std::int64_t base = given.integer_or(1, decimal);
  if (base < 2 || base > highest_base) throw Error("int: base {}", base);
  std::optional<std::int64_t> number = as_integer(call.value);
  require_defined(call.value);
  if (const auto* const real = call.value.as<double>()) number = truncated(*real);
  if (const std::string* const text = call.value.text()) {
    number = parse_int(*text, static_cast<int>(base));
    const std::optional<double> real = number ? std::nullopt : parse_float(*text);
    if (real) number = truncated(*real);
  }
  if (number) return Value(*number);
  return given.has(0) ? given.at(0) : Value(std::int64_t{0});
}

Value to_float(const Call& call) {
  const Parameters given = call.read({"default"});
  require_defined(call.value);
  std::optional<double> number;
  if (const auto integer = as_integer(call.value)) number = static_cast<double>(*integer);
  if (const auto* const real = call.value.as<double>()) number = *real;
  if (const std::string* const text = call.value.text()) number = parse_float(*text);
  if (number) return Value(*number);
  return given.has(0) ? given.at(0) : Value(0.0);
}

Value format(const Call& call) {
  const std::string text = call.text();
  if (call.arguments.named.empty())
    return call.like_value(
        format_percent(call.heap, text, call.heap.tuple(call.arguments.positional)));
  if (!call.arguments.positional.empty()) throw Error("format: values and names cannot be mixed");
  std::vector<Entry> entries;
  for (const auto& [name, value] : call.arguments.named)
    entries.emplace_back(call.heap.text(name), value);
  return call.like_value(format_percent(call.heap, text, call.heap.mapping(std::move(entries))));
}

Value indent(const Call& call) {
  constexpr std::int64_t default_width = 4;
  const Parameters given = call.read({"width", "first", "blank"});
  const bool is_text = given.has(0) && given.at(0).text() != nullptr;
  const std::int64_t width = is_text ? 0 : given.integer_or(0, default_width);
  call.heap.require_room(static_cast<std::size_t>(std::max<std::int64_t>(0, width)));
  const std::string indention =
      is_text ? given.text(0)
              : std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, width)), ' ');
  const bool indents_blank = given.flag_or(2, false);
  const std::string text = call.text() + "\n";
  std::string out = given.flag_or(1, false) ? indention : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text, LineEnds::drop)) {
    if (!is_first) out += "\n";
    if (!is_first && (indents_blank || !line.empty())) out += indention;
    is_first = false;
    out += line;
    call.heap.step();
    call.heap.require_room(out.size());
  }
  return call.like_value(std::move(out));
}

Value join(const Call& call) {
  const Parameters given = call.read({"d", "attribute"});
  const std::string separator = given.has(0) ? to_text(call.heap, given.at(0)) : "";
  std::string out;
  bool is_first = true;
  for (const Value& item : call.items()) {
    if (!is_first) out += separator;
    is_first = false;
    out += to_text(call.heap,
                   given.is_given(1) ? nested_attribute(call.heap, item, given.at(1)) : item);
    call.heap.require_room(out.size());
  }
  return call.heap.text(std::move(out));
}

Value length(const Call& call) {
  call.read({});
  return Value(length_of(call.value));
}

Value list(const Call& call) {
  call.read({});
  return call.heap.list(call.items());
}

Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value map_attribute(const Call& call) {
  const Parameters given = call.read({"attribute", "default"});
  std::vector<Value> mapped;
  for (const Value& item : call.items()) {
    Value value = nested_attribute(call.heap, item, given.at(0));
    if (value.is<Undefined>() && given.has(1)) value = given.at(1);
    mapped.push_back(std::move(value));
  }
  return call.heap.generator(std::move(mapped));
}

Value map(const Call& call) {
  if (call.arguments.positional.empty()) {
    if (call.arguments.named.empty()) throw Error("map needs a filter or an attribute");
    return map_attribute(call);
  }
  const std::string* const name = call.arguments.positional.front().text();
  if (name == nullptr) throw Error("map: the filter's name is no text");
  const Arguments rest = without_first(call.arguments, 1);
  std::vector<Value> mapped;
  for (const Value& item : call.items())
    mapped.push_back(apply_filter(call.heap, *name, item, rest));
  return call.heap.generator(std::move(mapped));
}

enum class Keep : std::uint8_t { matching, others };
enum class Look : std::uint8_t { at_item, at_attribute };

/// select, reject, selectattr, rejectattr.
Value filtered(const Call& call, Look look, Keep keep) {
  const std::size_t num_own = look == Look::at_attribute ? 1 : 0;
  const auto& given = call.arguments.positional;
  if (given.size() < num_own) throw Error("{} needs an attribute's name", call.name);
  const bool has_test = given.size() > num_own;
  const std::string* const test = has_test ? given[num_own].text() : nullptr;
  if (has_test && test == nullptr) throw Error("{}: the test's name is no text", call.name);
  const Arguments rest = without_first(call.arguments, num_own + (has_test ? 1 : 0));
  std::vector<Value> kept;
  for (const Value& item : call.items()) {
    const Value value =
        look == Look::at_item ? item : nested_attribute(call.heap, item, given.front());
    const bool matches = has_test ? apply_test(call.heap, *test, value, rest) : truth(value);
    if (matches == (keep == Keep::matching)) kept.push_back(item);
  }
  return call.heap.generator(std::move(kept));
}

enum class Extreme : std::uint8_t { lowest, highest };

Value extreme(const Call& call, Extreme which) {
  const Parameters given = call.read({"case_sensitive", "attribute"});
  const Key key{attribute_of(given, 1), given.flag_or(0, false)};
  const std::vector<Value> list = call.items();
  if (list.empty()) return call.heap.undefined(fmt::format("{}: there is no item", call.name));
  Value best = list.front();
  Value best_key = key.of(call.heap, best);
  for (std::size_t i = 1; i < list.size(); ++i) {
    Value candidate = key.of(call.heap, list[i]);
    const auto order = compare(call.heap, candidate, best_key);
    if (which == Extreme::lowest ? std::is_lt(order) : std::is_gt(order)) {
      best = list[i];
      best_key = std::move(candidate);
    }
  }
  return best;
}

Value replace(const Call& call) {
  const Parameters given = call.read({"old", "new", "count"});
  const std::int64_t count = given.integer_or(2, -1);
  const std::size_t most =
      count < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(count);
  return call.like_value(replaced_within(call.heap, call.text(), to_text(call.heap, given.at(0)),
                                         to_text(call.heap, given.at(1)), most));
}

Value reverse(const Call& call) {
  call.read({});
  if (call.value.sequence() != nullptr && call.value.sequence()->kind == SequenceKind::generator)
    throw Error("reverse: {} has no end; add |list in front", object_name(call.value));
  std::vector<Value> list = call.items();
  std::reverse(list.begin(), list.end());
  if (call.value.text() == nullptr) return call.heap.generator(std::move(list));
  std::string text;
  for (const Value& character : list) text += *character.text();
  return call.like_value(std::move(text));
}

/// As Python rounds: the nearest decimal of the exact value, halves to the even digit.
double rounded(double value, std::int64_t precision) {
  constexpr std::int64_t most_digits = 400;  // more than any double has
  if (!std::isfinite(value) || precision > most_digits) return value;
  if (precision < 0) {
    if (precision < -most_digits) return std::copysign(0.0, value);
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  const std::string text = fmt::format("{:.{}f}", value, precision);
  return std::strtod(text.c_str(), nullptr);
}

Value round(const Call& call) {
  const Parameters given = call.read({"precision", "method"});
  const std::int64_t precision = given.integer_or(0, 0);
  const std::string method = given.text_or(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Error("round: the method is {}, not common, ceil or floor", quote(method));
  const auto integer = as_integer(call.value);
  if (integer && method == "common" && precision >= 0) return Value(*integer);
  if (!integer && !call.value.is<double>())
    throw Error("round: {} is no number", object_name(call.value));
  const double value = integer ? static_cast<double>(*integer) : *call.value.as<double>();
  if (method == "common") {
    const double result = rounded(value, precision);
    return integer ? Value(truncated(result).value_or(0)) : Value(result);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) / scale);
}

Value safe(const Call& call) {
  call.read({});
  if (!call.value.is<Text>()) return call.heap.markup(call.text());
  Text text = *call.value.as<Text>();
  text.is_markup = true;
  return Value(std::move(text));
}

Value sort(const Call& call) {
  const Parameters given = call.read({"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = given.flag_or(1, false);
  std::vector<Key> keys;
  if (given.is_given(2) && given.at(2).text() != nullptr) {
    std::string_view rest = *given.at(2).text();
    for (bool more = true; more;) {
      const std::size_t end = std::min(rest.find(','), rest.size());
      keys.push_back({call.heap.text(std::string(rest.substr(0, end))), case_sensitive});
      more = end < rest.size();
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  } else {
    keys.push_back({attribute_of(given, 2), case_sensitive});
  }
  return call.heap.list(sorted(call.heap, call.items(), keys, given.flag_or(0, false)));
}

Value string(const Call& call) {
  call.read({});
  return call.value.is<Text>() ? call.value : call.heap.text(call.text());
}

Value sum(const Call& call) {
  const Parameters given = call.read({"attribute", "start"});
  Value total = given.has(1) ? given.at(1) : Value(std::int64_t{0});
  for (const Value& item : call.items()) {
    total = calculate(call.heap, Operator::add, total,
                      given.is_given(0) ? nested_attribute(call.heap, item, given.at(0)) : item);
  }
  return total;
}

/// `(item separator, key separator)`.
void read_separators(const Value& value, JsonFormat& format) {
  const Sequence* const pair = value.sequence();
  if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
      pair->items[1].text() == nullptr)
    throw Error("tojson: separators are two texts");
  format.item_separator = *pair->items[0].text();
  format.key_separator = *pair->items[1].text();
}

Value json(const Call& call) {
  const Parameters given = call.read({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = given.flag_or(0, false);
  format.sort_keys = given.flag_or(3, false);
  format.is_indented = given.is_given(1);
  if (format.is_indented) {
    format.item_separator = ",";
    if (given.at(1).text() != nullptr) {
      format.indent = given.text(1);
    } else {
      const auto width =
          static_cast<std::size_t>(std::max<std::int64_t>(0, given.integer_or(1, 0)));
      call.heap.require_room(width);
      format.indent = std::string(width, ' ');
    }
  }
  if (given.is_given(2)) read_separators(given.at(2), format);
  return call.heap.text(to_json(call.heap, call.value, format));
}

Value trim(const Call& call) {
  const Parameters given = call.read({"chars"});
  const std::string text = call.text();
  return call.like_value(std::string(given.is_given(0) ? stripped(text, given.text(0), Side::both)
                                                       : stripped(text, Side::both)));
}

Value unique(const Call& call) {
  const Parameters given = call.read({"case_sensitive", "attribute"});
  const Key key{attribute_of(given, 1), given.flag_or(0, false)};
  std::vector<Value> kept;
  std::vector<Value> seen;
  for (const Value& item : call.items()) {
    const Value own = key.of(call.heap, item);
    const bool is_known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equals(call.heap, other, own);
    });
    if (is_known) continue;
    seen.push_back(own);
    kept.push_back(item);
  }
  return call.heap.generator(std::move(kept));
}

Value count_words(const Call& call) {
  call.read({});
  const std::string text = call.text();
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t i = 0; i < text.size(); i += tokenizers::utf8_length(text[i])) {
    const char32_t character = tokenizers::decode_utf8(std::string_view(text).substr(i));
    const bool is_part = is_letter(character) || is_number(character) || character == '_';
    if (is_part && !in_word) ++count;
    in_word = is_part;
  }
  return Value(count);
}

struct Filter {
  std::string_view name;
  Value (*run)(const Call&);
};

constexpr Filter filters[] = {
    {"abs", absolute},
    {"attr", attribute},
    {"batch", batch},
    {"capitalize", [](const Call& call) { return changed(call, capitalized); }},
    {"center", center},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", sorted_dict},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", [](const Call& call) { return changed(call, lower_case); }},
    {"map", map},
    {"max", [](const Call& call) { return extreme(call, Extreme::highest); }},
    {"min", [](const Call& call) { return extreme(call, Extreme::lowest); }},
    {"reject", [](const Call& call) { return filtered(call, Look::at_item, Keep::others); }},
    {"rejectattr",
     [](const Call& call) { return filtered(call, Look::at_attribute, Keep::others); }},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe},
    {"select", [](const Call& call) { return filtered(call, Look::at_item, Keep::matching); }},
    {"selectattr",
     [](const Call& call) { return filtered(call, Look::at_attribute, Keep::matching); }},
    {"slice", slice},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", [](const Call& call) { return changed(call, title_words); }},
    {"tojson", json},
    {"trim", trim},
    {"unique", unique},
    {"upper", [](const Call& call) { return changed(call, upper_case); }},
    {"wordcount", count_words},
};

}  // namespace

Value apply_filter(Heap& heap, const std::string& name, const Value& value,
                   const Arguments& arguments) {
  const Heap::Level level(heap);
  heap.step();
  const auto* const found = std::find_if(std::begin(filters), std::end(filters),
                                         [&](const Filter& filter) { return filter.name == name; });
  if (found == std::end(filters)) throw Error("unknown filter {}", quote(name));
  return found->run(Call{heap, value, arguments, name});
}

}  // namespace sluice::jinja
