#include "models/chat_template/attributes.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/operators.h"

namespace sluice::jinja {
namespace {

Value get_entry_or(Heap& heap, const Mapping& mapping, const Arguments& arguments) {
  const Parameters given("get", arguments, {"key", "default"});
  if (const Value* const entry = find_entry(heap, mapping, given.at(0))) return *entry;
  return given.has(1) ? given.at(1) : Value(None{});
}

Value view(Heap& heap, const Mapping& mapping, SequenceKind kind) {
  std::vector<Value> items;
  for (const auto& [key, value] : mapping.entries) {
    if (kind == SequenceKind::dict_keys) items.push_back(key);
    if (kind == SequenceKind::dict_values) items.push_back(value);
    if (kind == SequenceKind::dict_items) items.push_back(heap.tuple({key, value}));
  }
  return heap.sequence(kind, std::move(items));
}

Value view_method(Heap& heap, const Mapping& mapping, const std::string& name, SequenceKind kind) {
  return heap.function(name, [&mapping, name, kind](Heap& at, Arguments& arguments) {
    const Parameters none(name, arguments, {});
    return view(at, mapping, kind);
  });
}

Value mapping_method(Heap& heap, const Mapping& mapping, const std::string& name) {
  if (name == "get") {
    return heap.function(name, [&mapping](Heap& at, Arguments& arguments) {
      return get_entry_or(at, mapping, arguments);
    });
  }
  if (name == "copy") {
    return heap.function(name, [&mapping](Heap& at, Arguments& arguments) {
      const Parameters none("copy", arguments, {});
      return at.mapping(mapping.entries);
    });
  }
  if (name == "items") return view_method(heap, mapping, name, SequenceKind::dict_items);
  if (name == "keys") return view_method(heap, mapping, name, SequenceKind::dict_keys);
  if (name == "values") return view_method(heap, mapping, name, SequenceKind::dict_values);
  return {};
}

std::size_t index_in(Heap& heap, const Sequence& sequence, const Value& item) {
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (equals(heap, sequence.items[i], item)) return i;
  }
  throw Error("index(): {} is not in the list", to_repr(heap, item));
}

Value sequence_method(Heap& heap, const Sequence& sequence, const std::string& name) {
  const bool is_list = sequence.kind == SequenceKind::list;
  if (!is_list && sequence.kind != SequenceKind::tuple) return {};
  if (name == "count") {
    return heap.function(name, [&sequence](Heap& at, Arguments& arguments) {
      const Parameters given("count", arguments, {"value"});
      const auto is_it = [&](const Value& item) { return equals(at, item, given.at(0)); };
      return Value(static_cast<std::int64_t>(
          std::count_if(sequence.items.begin(), sequence.items.end(), is_it)));
    });
  }
  if (name == "index") {
    return heap.function(name, [&sequence](Heap& at, Arguments& arguments) {
      const Parameters given("index", arguments, {"value"});
      return Value(static_cast<std::int64_t>(index_in(at, sequence, given.at(0))));
    });
  }
  if (name == "copy" && is_list) {
    return heap.function(name, [&sequence](Heap& at, Arguments& arguments) {
      const Parameters none("copy", arguments, {});
      return at.list(sequence.items);
    });
  }
  return {};
}

/// Whether another item than the one in the last call; remembers it.
Value has_changed(Heap& heap, Loop& loop, const Arguments& arguments) {
  const auto same = [&heap](const Value& a, const Value& b) { return equals(heap, a, b); };
  const bool is_same = loop.has_changed_before &&
                       std::equal(loop.last_changed.begin(), loop.last_changed.end(),
                                  arguments.positional.begin(), arguments.positional.end(), same);
  loop.last_changed = arguments.positional;
  loop.has_changed_before = true;
  return Value(!is_same);
}

Value loop_method(Heap& heap, Loop& loop, const std::string& name) {
  if (name == "cycle") {
    return heap.function(name, [&loop](Heap& /*at*/, Arguments& arguments) {
      if (arguments.positional.empty()) throw Error("loop.cycle() needs items");
      return arguments.positional[loop.index % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return heap.function(
        name, [&loop](Heap& at, Arguments& arguments) { return has_changed(at, loop, arguments); });
  }
  return heap.undefined(fmt::format("'loop' has no attribute {}", quote(name)));
}

Value neighbour(Heap& heap, const Loop& loop, std::size_t index) {
  if (index < loop.items.size()) return loop.items[index];
  return heap.undefined("the loop has no item there");
}

Value loop_attribute(Heap& heap, Loop& loop, const std::string& name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(loop.length);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(loop.depth);
  if (name == "depth0") return Value(loop.depth - 1);
  if (name == "previtem") return neighbour(heap, loop, loop.index - 1);
  if (name == "nextitem") return neighbour(heap, loop, loop.index + 1);
  return loop_method(heap, loop, name);
}

bool is_changing_method(const Value& value, std::string_view name) {
  constexpr std::array<std::string_view, 8> of_lists = {"append", "clear",  "extend",  "insert",
                                                        "pop",    "remove", "reverse", "sort"};
  constexpr std::array<std::string_view, 5> of_dicts = {"clear", "pop", "popitem", "setdefault",
                                                        "update"};
  if (value.mapping() != nullptr)
    return std::find(of_dicts.begin(), of_dicts.end(), name) != of_dicts.end();
  return value.sequence() != nullptr && value.sequence()->kind == SequenceKind::list &&
         std::find(of_lists.begin(), of_lists.end(), name) != of_lists.end();
}

/// Undefined without a reason where there is none.
Value find_attribute(Heap& heap, const Value& value, const std::string& name) {
  if (const auto* const mapping = value.mapping()) return mapping_method(heap, *mapping, name);
  if (const auto* const sequence = value.sequence()) return sequence_method(heap, *sequence, name);
  if (value.text() != nullptr) return text_method(heap, value, name);
  if (value.is<Loop*>()) return loop_attribute(heap, **value.as<Loop*>(), name);
  if (const auto* const callable = value.as<std::shared_ptr<Callable>>())
    return (*callable)->attribute(heap, name);
  if (!value.is<Namespace*>()) return {};
  for (const auto& [key, attribute] : (*value.as<Namespace*>())->attributes) {
    if (key == name) return attribute;
  }
  return {};
}

}  // namespace

std::string object_name(const Value& value) {
  if (value.is<None>()) return "None";
  return fmt::format("a {}", type_name(value));
}

Value missing_attribute(Heap& heap, const Value& value, std::string_view name) {
  return heap.undefined(fmt::format("{} has no attribute {}", object_name(value), quote(name)));
}

Value get_own_attribute(Heap& heap, const Value& value, const std::string& name) {
  require_defined(value);
  heap.step();
  if (is_changing_method(value, name)) {
    return heap.undefined(
        fmt::format("{}() would change a {}, which templates may not", name, type_name(value)));
  }
  Value found = find_attribute(heap, value, name);
  return found.is<Undefined>() && !found.as<Undefined>()->reason
             ? missing_attribute(heap, value, name)
             : found;
}

Value get_attribute(Heap& heap, const Value& value, const std::string& name) {
  require_defined(value);
  heap.step();
  const auto* const mapping = value.mapping();
  if (mapping == nullptr || is_changing_method(value, name))
    return get_own_attribute(heap, value, name);
  Value method = mapping_method(heap, *mapping, name);
  if (!method.is<Undefined>()) return method;
  const Value* const entry = find_entry(heap, *mapping, Value::constant(name));
  return entry != nullptr ? *entry : missing_attribute(heap, value, name);
}

}  // namespace sluice::jinja
