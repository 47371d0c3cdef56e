#include "models/chat_template/value.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/operators.h"
#include "models/tokenizer.h"

namespace sluice::jinja {
namespace {

const std::string& checked_utf8(const std::string& text) {
  if (const auto bad = find_invalid_utf8(text))
    throw Error("{}: invalid UTF-8 at byte {}", quote(text), *bad + 1);
  return text;
}

Value json_number(const nlohmann::ordered_json& json) {
  if (json.is_number_float()) return Value(json.get<double>());
  const bool fits = !json.is_number_unsigned() ||
                    json.get<std::uint64_t>() <=
                        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!fits) throw Error("{} is beyond the whole numbers of 64 bits", json_text(json));
  return Value(json.get<std::int64_t>());
}

}  // namespace

CountedString::CountedString(std::string value, Heap* heap)
    : value_(std::move(value)), heap_(heap) {
  if (heap_ != nullptr) heap_->charge(value_.size());
}

CountedString::~CountedString() {
  if (heap_ != nullptr) heap_->release(value_.size());
}

Value Value::constant(std::string text) {
  return Value(Text{std::make_shared<const CountedString>(std::move(text), nullptr)});
}

const std::string* Value::text() const {
  const auto* text = as<Text>();
  return text == nullptr ? nullptr : &text->string->get();
}

Value Callable::attribute(Heap& heap, std::string_view name) const {
  return heap.undefined(fmt::format("a function has no attribute {}", quote(name)));
}

Value Heap::text(std::string text) {
  step_bytes(text.size());
  return Value(Text{std::make_shared<const CountedString>(std::move(text), this)});
}

Value Heap::markup(std::string text) {
  step_bytes(text.size());
  return Value(Text{std::make_shared<const CountedString>(std::move(text), this), true});
}

Value Heap::sequence(SequenceKind kind, std::vector<Value> items) {
  step(static_cast<std::int64_t>(items.size()));
  charge(items.size() * sizeof(Value));
  return Value(make<Sequence>(kind, std::move(items)));
}

Value Heap::mapping(std::vector<Entry> entries) {
  step(static_cast<std::int64_t>(entries.size()));
  charge(entries.size() * sizeof(Entry));
  return Value(make<Mapping>(std::move(entries)));
}

Value Heap::function(std::string name, Function::Body body) {
  step();
  return Value(
      std::shared_ptr<Callable>(std::make_shared<Function>(std::move(name), std::move(body))));
}

Value Heap::undefined(std::string reason) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(reason))});
}

Value Heap::from_json(const nlohmann::ordered_json& json) {
  const Level level(*this);
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number()) return json_number(json);
  if (json.is_string()) return text(checked_utf8(json.get_ref<const std::string&>()));
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json(item));
    return list(std::move(items));
  }
  if (!json.is_object()) throw Error("a JSON value of type {}", json.type_name());
  std::vector<Entry> entries;
  for (const auto& [key, value] : json.items())
    entries.emplace_back(text(checked_utf8(key)), from_json(value));
  return mapping(std::move(entries));
}

void Heap::step(std::int64_t count) {
  steps_ += count;
  if (steps_ > limits_.steps)
    throw Error("the template takes more than {} steps: it may loop without end", limits_.steps);
}

void Heap::require_room(std::size_t bytes) const {
  const auto room = limits_.memory_bytes - used_bytes_;
  if (room < 0 || bytes > static_cast<std::size_t>(room))
    throw Error("the template needs more than {} bytes of memory", limits_.memory_bytes);
}

void Heap::charge(std::size_t bytes) {
  // Counted before the check: whoever charged also releases.
  used_bytes_ += static_cast<std::int64_t>(bytes);
  try {
    require_room(0);
  } catch (const Error&) {
    used_bytes_ -= static_cast<std::int64_t>(bytes);
    throw;
  }
}

Heap::Level::Level(Heap& heap) : heap_(heap) {
  if (heap.depth_ >= heap.limits_.depth)
    throw Error("the template nests or calls itself more than {} levels deep", heap.limits_.depth);
  ++heap.depth_;
}

void Output::append(std::string_view text) {
  const auto most = static_cast<std::size_t>(heap_.limits().output_bytes);
  if (text.size() > most - text_.size())
    throw Error("the template writes more than {} bytes", most);
  heap_.step_bytes(text.size());
  heap_.charge(text.size());
  text_ += text;
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    throw Error("{}() takes at most {} arguments, not {}", function, names_.size(),
                arguments.positional.size());
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) throw Error("{}() has no parameter {}", function, quote(name));
    auto& place = values_[static_cast<std::size_t>(found - names_.begin())];
    if (place) throw Error("{}() got {} twice", function, quote(name));
    place = value;
  }
}

void Parameters::wrong_type(std::size_t index, std::string_view expected) const {
  throw Error("{}(): {} is of type {}, expected {}", function_, names_[index],
              type_name(*values_[index]), expected);
}

const Value& Parameters::at(std::size_t index) const {
  if (!has(index)) throw Error("{}() needs {}", function_, names_[index]);
  return *values_[index];
}

const std::string& Parameters::text(std::size_t index) const {
  const std::string* const text = at(index).text();
  if (text == nullptr) wrong_type(index, "str");
  return *text;
}

std::string Parameters::text_or(std::size_t index, std::string_view fallback) const {
  return is_given(index) ? text(index) : std::string(fallback);
}

std::int64_t Parameters::integer_or(std::size_t index, std::int64_t fallback) const {
  if (!is_given(index)) return fallback;
  const auto number = as_integer(*values_[index]);
  if (!number) wrong_type(index, "int");
  return *number;
}

bool Parameters::flag_or(std::size_t index, bool fallback) const {
  return has(index) ? truth(*values_[index]) : fallback;
}

std::string_view type_name(const Value& value) {
  if (const Sequence* const sequence = value.sequence()) {
    constexpr std::array<std::string_view, 7> kinds = {
        "list", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
    return kinds.at(static_cast<std::size_t>(sequence->kind));
  }
  constexpr std::array<std::string_view, std::variant_size_v<Value::Data>> types = {
      "Undefined", "NoneType", "bool",      "int",         "float",   "str",
      "list",      "dict",     "Namespace", "LoopContext", "function"};
  return types.at(value.data().index());
}

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* const boolean = value.as<bool>()) return *boolean ? 1 : 0;
  if (const auto* const integer = value.as<std::int64_t>()) return *integer;
  return std::nullopt;
}

}  // namespace sluice::jinja
