#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "models/chat_template/value.h"

// What Python's operators and built-in functions do with values. All throw Error where Python
// raises an exception, and where a whole number leaves 64 bits.
namespace sluice::jinja {

bool truth(const Value& value);
bool equals(Heap& heap, const Value& a, const Value& b);
/// Throws Error for types without an order.
std::partial_ordering compare(Heap& heap, const Value& a, const Value& b);
/// `item in container`.
bool contains(Heap& heap, const Value& container, const Value& item);

enum class Operator : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
};
Value calculate(Heap& heap, Operator operation, const Value& a, const Value& b);
Value negated(const Value& value);
Value plus(const Value& value);

/// What a loop goes over: items, keys, characters. Of a generator those that are left.
std::vector<Value> items_of(Heap& heap, const Value& value);
/// Throws Error for what has none.
std::int64_t length_of(const Value& value);

/// `value[key]`: an item, else an attribute, else undefined.
Value get_item(Heap& heap, const Value& value, const Value& key);
/// The entry of a dict, or nothing.
const Value* find_entry(Heap& heap, const Mapping& mapping, const Value& key);
/// Sets an entry, in place where the key is there.
void set_entry(Heap& heap, std::vector<Entry>& entries, const Value& key, const Value& value);
/// `value[begin:end:step]`; what is not given is None.
Value get_slice(Heap& heap, const Value& value, const Value& begin, const Value& end,
                const Value& step);

/// str() and repr().
std::string to_text(Heap& heap, const Value& value);
std::string to_repr(Heap& heap, const Value& value);

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool is_indented = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// json.dumps().
std::string to_json(Heap& heap, const Value& value, const JsonFormat& format);

/// printf-style formatting: `format % value`, with a tuple's items or a dict's.
std::string format_percent(Heap& heap, std::string_view format, const Value& value);

/// Throws Error with the reason when the value is undefined.
void require_defined(const Value& value);

}  // namespace sluice::jinja
