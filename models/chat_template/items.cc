// What is in a value: items, entries, parts.

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/text.h"

namespace sluice::jinja {
namespace {

bool is_indexable(const Sequence& sequence) {
  return sequence.kind == SequenceKind::list || sequence.kind == SequenceKind::tuple ||
         sequence.kind == SequenceKind::range;
}

/// Position of an item counted from either end, or nothing.
std::optional<std::size_t> position(std::int64_t index, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  if (index < -count || index >= count) return std::nullopt;
  return static_cast<std::size_t>(index < 0 ? index + count : index);
}

Value missing_item(Heap& heap, const Value& value, const Value& key) {
  if (const std::string* const name = key.text()) return missing_attribute(heap, value, *name);
  return heap.undefined(
      fmt::format("{} has no element {}", object_name(value), to_repr(heap, key)));
}

Value text_item(Heap& heap, const Value& value, std::int64_t index) {
  const std::string& text = *value.text();
  heap.step_bytes(text.size());
  const auto at = position(index, num_characters(text));
  if (!at) return missing_item(heap, value, Value(index));
  const std::size_t begin = character_offset(text, *at);
  return heap.text(text.substr(begin, character_offset(std::string_view(text).substr(begin), 1)));
}

/// Positions that a slice takes, as Python counts them.
std::vector<std::size_t> slice_positions(std::size_t size, const Value& begin, const Value& end,
                                         const Value& step) {
  const auto count = static_cast<std::int64_t>(size);
  const auto number = [](const Value& value, std::int64_t fallback) {
    if (value.is<None>()) return fallback;
    const auto integer = as_integer(value);
    if (!integer) throw Error("a slice needs whole numbers, not {}", type_name(value));
    return *integer;
  };
  const std::int64_t stride = number(step, 1);
  if (stride == 0) throw Error("a slice's step is 0");
  const std::int64_t lowest = stride > 0 ? 0 : -1;
  const std::int64_t highest = stride > 0 ? count : count - 1;
  const auto bound = [&](const Value& value, std::int64_t fallback) {
    const std::int64_t given = number(value, fallback);
    if (value.is<None>()) return fallback;
    return std::clamp(given < 0 ? given + count : given, lowest, highest);
  };
  const std::int64_t first = bound(begin, stride > 0 ? lowest : highest);
  const std::int64_t last = bound(end, stride > 0 ? highest : lowest);
  std::vector<std::size_t> positions;
  const std::int64_t distance = stride > 0 ? last - first : first - last;
  // The first distance/stride + 1 positions: no sum leaves the sequence.
  const std::uint64_t width =
      stride > 0 ? static_cast<std::uint64_t>(stride) : 0 - static_cast<std::uint64_t>(stride);
  for (std::uint64_t i = 0; distance > 0 && i < static_cast<std::uint64_t>(distance);) {
    const auto offset = static_cast<std::int64_t>(i);
    positions.push_back(static_cast<std::size_t>(stride > 0 ? first + offset : first - offset));
    if (width >= static_cast<std::uint64_t>(distance) - i) break;
    i += width;
  }
  return positions;
}

void require_hashable(const Value& key) {
  const Sequence* const sequence = key.sequence();
  const bool is_hashable =
      sequence == nullptr ? key.mapping() == nullptr : sequence->kind != SequenceKind::list;
  if (!is_hashable) throw Error("a {} cannot be a key", type_name(key));
}

}  // namespace

std::vector<Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  if (const auto* const text = value.text()) {
    heap.require_room(text->size() * sizeof(Value));
    for (const std::string_view character : characters(*text))
      items.push_back(heap.text(std::string(character)));
  } else if (const auto* const mapping = value.mapping()) {
    for (const auto& [key, entry] : mapping->entries) items.push_back(key);
  } else if (auto* const sequence = value.sequence()) {
    items.assign(sequence->items.begin() + static_cast<std::ptrdiff_t>(sequence->num_taken),
                 sequence->items.end());
    if (sequence->kind == SequenceKind::generator) sequence->num_taken = sequence->items.size();
  } else if (!value.is<Undefined>()) {
    throw Error("{} has no items to go over", object_name(value));
  }
  heap.step(static_cast<std::int64_t>(items.size()));
  return items;
}

std::int64_t length_of(const Value& value) {
  if (const auto* const text = value.text())
    return static_cast<std::int64_t>(num_characters(*text));
  if (const auto* const mapping = value.mapping())
    return static_cast<std::int64_t>(mapping->entries.size());
  const auto* const sequence = value.sequence();
  if (sequence != nullptr && sequence->kind != SequenceKind::generator)
    return static_cast<std::int64_t>(sequence->items.size());
  if (value.is<Undefined>()) return 0;
  throw Error("{} has no length", object_name(value));
}

const Value* find_entry(Heap& heap, const Mapping& mapping, const Value& key) {
  heap.step(1 + static_cast<std::int64_t>(mapping.entries.size() / 16));
  if (const std::string* const name = key.text()) {
    for (const auto& [other, value] : mapping.entries) {
      if (other.text() != nullptr && *other.text() == *name) return &value;
    }
    return nullptr;
  }
  require_hashable(key);
  for (const auto& [other, value] : mapping.entries) {
    if (equals(heap, other, key)) return &value;
  }
  return nullptr;
}

void set_entry(Heap& heap, std::vector<Entry>& entries, const Value& key, const Value& value) {
  require_hashable(key);
  heap.step(1 + static_cast<std::int64_t>(entries.size() / 16));
  for (auto& [other, entry] : entries) {
    if (!equals(heap, other, key)) continue;
    entry = value;
    return;
  }
  entries.emplace_back(key, value);
}

Value get_item(Heap& heap, const Value& value, const Value& key) {
  require_defined(value);
  if (const auto* const mapping = value.mapping()) {
    const bool can_be_key = key.sequence() == nullptr && key.mapping() == nullptr;
    const Value* const entry = can_be_key ? find_entry(heap, *mapping, key) : nullptr;
    if (entry != nullptr) return *entry;
  }
  if (const std::string* const name = key.text()) return get_own_attribute(heap, value, *name);
  const auto index = as_integer(key);
  if (!index) return missing_item(heap, value, key);
  if (value.text() != nullptr) return text_item(heap, value, *index);
  const auto* const sequence = value.sequence();
  const auto at = sequence != nullptr && is_indexable(*sequence)
                      ? position(*index, sequence->items.size())
                      : std::nullopt;
  return at ? sequence->items[*at] : missing_item(heap, value, key);
}

Value get_slice(Heap& heap, const Value& value, const Value& begin, const Value& end,
                const Value& step) {
  require_defined(value);
  if (const std::string* const text = value.text()) {
    heap.step_bytes(text->size());
    heap.require_room(text->size() * sizeof(std::string_view));
    const std::vector<std::string_view> parts = characters(*text);
    std::string result;
    for (const std::size_t at : slice_positions(parts.size(), begin, end, step))
      result += parts[at];
    return heap.text(std::move(result));
  }
  const auto* const sequence = value.sequence();
  if (sequence == nullptr || !is_indexable(*sequence))
    return heap.undefined(fmt::format("{} cannot be sliced", object_name(value)));
  std::vector<Value> items;
  for (const std::size_t at : slice_positions(sequence->items.size(), begin, end, step))
    items.push_back(sequence->items[at]);
  return heap.sequence(sequence->kind, std::move(items));
}

}  // namespace sluice::jinja
