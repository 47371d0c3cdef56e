#include "models/chat_template/globals.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/operators.h"

namespace sluice::jinja {
namespace {

std::int64_t required_integer(const Value& value) {
  const auto number = as_integer(value);
  if (!number) throw Error("range() needs whole numbers, not {}", object_name(value));
  return *number;
}

/// At most as many items as Jinja's sandbox allows.
Value range(Heap& heap, const Arguments& arguments) {
  constexpr std::int64_t most_items = 100'000;
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty())
    throw Error("range() takes one to three numbers");
  const std::int64_t begin = given.size() == 1 ? 0 : required_integer(given[0]);
  const std::int64_t end = required_integer(given[given.size() == 1 ? 0 : 1]);
  const std::int64_t step = given.size() == 3 ? required_integer(given[2]) : 1;
  if (step == 0) throw Error("range(): the step is 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(items.size()) == most_items)
      throw Error("range(): more than {} items", most_items);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return heap.sequence(SequenceKind::range, std::move(items));
}

/// The entries that dict() and namespace() are made of: a dict or pairs, then names.
std::vector<Entry> entries_of(Heap& heap, const Arguments& arguments) {
  std::vector<Entry> entries;
  if (arguments.positional.size() > 1) throw Error("dict() and namespace() take one value");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional.front();
    require_defined(source);
    if (source.mapping() != nullptr) {
      entries = source.mapping()->entries;
    } else {
      for (const Value& item : items_of(heap, source)) {
        const std::vector<Value> pair = items_of(heap, item);
        if (pair.size() != 2) throw Error("dict() needs pairs, not {} values", pair.size());
        set_entry(heap, entries, pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named)
    set_entry(heap, entries, heap.text(name), value);
  return entries;
}

Value make_namespace(Heap& heap, const Arguments& arguments) {
  auto* const space = heap.make<Namespace>();
  for (const auto& [name, value] : entries_of(heap, arguments)) {
    if (name.text() == nullptr) throw Error("namespace(): a name is no text");
    set_namespace_attribute(heap, *space, *name.text(), value);
  }
  return Value(space);
}

/// A function that gives its separator, but nothing when first called.
Value make_joiner(Heap& heap, const Arguments& arguments) {
  const Parameters given("joiner", arguments, {"sep"});
  const Value separator = given.has(0) ? given.at(0) : heap.text(", ");
  const auto was_used = std::make_shared<bool>(false);
  return heap.function("joiner", [separator, was_used](Heap& at, Arguments& none) {
    const Parameters nothing("joiner", none, {});
    return std::exchange(*was_used, true) ? separator : at.text("");
  });
}

[[noreturn]] void raise_exception(Heap& heap, const Arguments& arguments) {
  const Parameters given("raise_exception", arguments, {"message"});
  constexpr std::size_t longest = 1000;
  throw Error("{}", printable(shortened(to_text(heap, given.at(0)), longest)));
}

/// What Python itself replaces: a local time without a zone has none to name.
std::string without_python_directives(std::string_view format) {
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char next = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : ' ';
    if (next == ' ') {
      out += format[i];
      continue;
    }
    ++i;
    if (next == 'f') out += "000000";
    if (next != 'f' && next != 'z' && next != 'Z') {
      out += '%';
      out += next;
    }
  }
  return out;
}

Value format_time(Heap& heap, const Arguments& arguments, const std::tm& now) {
  constexpr std::size_t most_bytes = 4096;
  const Parameters given("strftime_now", arguments, {"format"});
  // A byte more, for strftime also gives 0 for an empty text.
  const std::string format = without_python_directives(given.text(0)) + "|";
  std::string text(most_bytes, '\0');
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now);
  if (size == 0) throw Error("strftime_now(): the time is longer than {} bytes", most_bytes);
  text.resize(size - 1);
  return heap.text(std::move(text));
}

}  // namespace

void set_namespace_attribute(Heap& heap, Namespace& space, const std::string& name,
                             const Value& value) {
  if (name.starts_with('_'))
    throw Error("a namespace's attribute may not begin with '_': {}", quote(name));
  heap.step(1 + static_cast<std::int64_t>(space.attributes.size() / 16));
  for (auto& [key, attribute] : space.attributes) {
    if (key != name) continue;
    attribute = value;
    return;
  }
  heap.charge(sizeof(Entry) + name.size());
  space.attributes.emplace_back(name, value);
}

std::vector<std::pair<std::string, Value>> global_functions(Heap& heap, const std::tm& now) {
  std::vector<std::pair<std::string, Value>> globals;
  const auto add = [&](const char* name, Function::Body body) {
    globals.emplace_back(name, heap.function(name, std::move(body)));
  };
  add("dict", [](Heap& at, Arguments& given) { return at.mapping(entries_of(at, given)); });
  add("joiner", make_joiner);
  add("namespace", make_namespace);
  add("raise_exception", [](Heap& at, Arguments& given) -> Value { raise_exception(at, given); });
  add("range", range);
  add("strftime_now", [now](Heap& at, Arguments& given) { return format_time(at, given, now); });
  return globals;
}

}  // namespace sluice::jinja
