#include "models/chat_template/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/chat_template/text.h"

namespace sluice::jinja {
namespace {

constexpr std::string_view operator_names[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void refuse_operands(Operator operation, const Value& a, const Value& b) {
  throw Error("'{}' has no meaning between {} and {}",
              operator_names[static_cast<std::size_t>(operation)], type_name(a), type_name(b));
}

[[noreturn]] void refuse_overflow() {
  throw Error("a whole number leaves 64 bits, which is not supported");
}

std::optional<double> as_double(const Value& value) {
  if (const auto* const real = value.as<double>()) return *real;
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

/// With all 64 bits of a whole number.
std::optional<long double> as_number(const Value& value) {
  if (const auto* const real = value.as<double>()) return *real;
  if (const auto integer = as_integer(value)) return static_cast<long double>(*integer);
  return std::nullopt;
}

bool is_view_or_generator(const Sequence& sequence) {
  return sequence.kind == SequenceKind::generator || sequence.kind == SequenceKind::dict_values;
}

bool sequences_equal(Heap& heap, const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  if (a.kind != b.kind || is_view_or_generator(a) || a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equals(heap, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool mappings_equal(Heap& heap, const Mapping& a, const Mapping& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* const other = find_entry(heap, b, key);
    if (other == nullptr || !equals(heap, value, *other)) return false;
  }
  return true;
}

std::partial_ordering compare_sequences(Heap& heap, const Sequence& a, const Sequence& b) {
  const std::size_t common = std::min(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (!equals(heap, a.items[i], b.items[i])) return compare(heap, a.items[i], b.items[i]);
  }
  return a.items.size() <=> b.items.size();
}

std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error("division by zero");
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) refuse_overflow();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) throw Error("division by zero");
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  if (b == 0) throw Error("division by zero");
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  std::int64_t result = 1;
  for (; exponent > 0; --exponent) {  // ends within 64 rounds: the result leaves 64 bits
    if (__builtin_mul_overflow(result, base, &result)) refuse_overflow();
  }
  return result;
}

Value power_of_doubles(double base, double exponent) {
  if (base == 0 && exponent < 0) throw Error("zero to a negative power");
  if (base < 0 && std::trunc(exponent) != exponent)
    throw Error("a broken power of a negative number");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    throw Error("a power is out of range");
  return Value(result);
}

Value calculate_integers(Operator operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case Operator::add:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::subtract:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::multiply:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::divide:
      if (b == 0) throw Error("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_divide:
      return Value(floor_divided(a, b));
    case Operator::modulo:
      return Value(modulo(a, b));
    case Operator::power:
      if (b < 0) return power_of_doubles(static_cast<double>(a), static_cast<double>(b));
      return Value(power(a, b));
  }
  if (overflows) refuse_overflow();
  return Value(result);
}

Value calculate_doubles(Operator operation, double a, double b) {
  switch (operation) {
    case Operator::add:
      return Value(a + b);
    case Operator::subtract:
      return Value(a - b);
    case Operator::multiply:
      return Value(a * b);
    case Operator::divide:
      if (b == 0) throw Error("division by zero");
      return Value(a / b);
    case Operator::floor_divide:
      if (b == 0) throw Error("division by zero");
      return Value(std::floor((a - modulo(a, b)) / b + 0.5));  // whole but for rounding
    case Operator::modulo:
      return Value(modulo(a, b));
    case Operator::power:
      return power_of_doubles(a, b);
  }
  return Value();
}

/// A text or a list several times.
Value repeated(Heap& heap, const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(0, count));
  const std::size_t size =
      value.text() != nullptr ? value.text()->size() : value.sequence()->items.size();
  std::size_t total = 0;
  if (__builtin_mul_overflow(times, size, &total) ||
      __builtin_mul_overflow(total, sizeof(Value), &total))
    total = std::numeric_limits<std::size_t>::max();
  heap.require_room(total);
  if (const std::string* const text = value.text()) {
    std::string result;
    for (std::size_t i = 0; i < times && size > 0; ++i) result += *text;
    return value.is_markup() ? heap.markup(std::move(result)) : heap.text(std::move(result));
  }
  const Sequence& sequence = *value.sequence();
  std::vector<Value> items;
  for (std::size_t i = 0; i < times && size > 0; ++i)
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return heap.sequence(sequence.kind, std::move(items));
}

bool is_repeatable(const Value& value) {
  const Sequence* const sequence = value.sequence();
  return value.text() != nullptr ||
         (sequence != nullptr &&
          (sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple));
}

Value added_texts(Heap& heap, const Value& a, const Value& b) {
  const std::string& left = *a.text();
  const std::string& right = *b.text();
  heap.require_room(left.size() + right.size());
  if (!a.is_markup() && !b.is_markup()) return heap.text(left + right);
  return heap.markup((a.is_markup() ? left : escaped_html(left)) +
                     (b.is_markup() ? right : escaped_html(right)));
}

Value added(Heap& heap, const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) return added_texts(heap, a, b);
  const Sequence* const left = a.sequence();
  const Sequence* const right = b.sequence();
  const bool fits = left != nullptr && right != nullptr && left->kind == right->kind &&
                    is_repeatable(a) && is_repeatable(b);
  if (!fits) refuse_operands(Operator::add, a, b);
  std::vector<Value> items = left->items;
  items.insert(items.end(), right->items.begin(), right->items.end());
  return heap.sequence(left->kind, std::move(items));
}

}  // namespace

void require_defined(const Value& value) {
  const auto* const undefined = value.as<Undefined>();
  if (undefined == nullptr) return;
  throw Error("{}", undefined->reason ? *undefined->reason : "a value is undefined");
}

bool truth(const Value& value) {
  if (const auto* const boolean = value.as<bool>()) return *boolean;
  if (const auto* const integer = value.as<std::int64_t>()) return *integer != 0;
  if (const auto* const real = value.as<double>()) return *real != 0;
  if (const auto* const text = value.text()) return !text->empty();
  if (const auto* const mapping = value.mapping()) return !mapping->entries.empty();
  if (const auto* const sequence = value.sequence())
    return sequence->kind == SequenceKind::generator || !sequence->items.empty();
  return !value.is<Undefined>() && !value.is<None>();
}

bool equals(Heap& heap, const Value& a, const Value& b) {
  const Heap::Level level(heap);
  heap.step();
  const auto left = as_number(a);
  const auto right = as_number(b);
  if (left && right) return *left == *right;
  if (a.data().index() != b.data().index()) return false;
  if (const auto* const text = a.text()) return *text == *b.text();
  if (const auto* const sequence = a.sequence())
    return sequences_equal(heap, *sequence, *b.sequence());
  if (const auto* const mapping = a.mapping()) return mappings_equal(heap, *mapping, *b.mapping());
  if (a.is<Namespace*>()) return *a.as<Namespace*>() == *b.as<Namespace*>();
  if (a.is<Loop*>()) return *a.as<Loop*>() == *b.as<Loop*>();
  if (a.is<std::shared_ptr<Callable>>())
    return *a.as<std::shared_ptr<Callable>>() == *b.as<std::shared_ptr<Callable>>();
  return true;  // both None, or both undefined
}

std::partial_ordering compare(Heap& heap, const Value& a, const Value& b) {
  const Heap::Level level(heap);
  heap.step();
  const auto left = as_number(a);
  const auto right = as_number(b);
  if (left && right) return *left <=> *right;
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() <=> *b.text();
  require_defined(a);
  require_defined(b);
  if (a.sequence() != nullptr && b.sequence() != nullptr && is_repeatable(a) &&
      a.sequence()->kind == b.sequence()->kind)
    return compare_sequences(heap, *a.sequence(), *b.sequence());
  throw Error("there is no order between {} and {}", type_name(a), type_name(b));
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (const auto* const text = container.text()) {
    if (item.text() == nullptr)
      throw Error("'in' a text needs a text in front, not {}", type_name(item));
    heap.step_search(text->size(), item.text()->size());
    return text->find(*item.text()) != std::string::npos;
  }
  if (const auto* const mapping = container.mapping())
    return find_entry(heap, *mapping, item) != nullptr;
  const std::vector<Value> items = items_of(heap, container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& other) { return equals(heap, other, item); });
}

Value calculate(Heap& heap, Operator operation, const Value& a, const Value& b) {
  require_defined(a);
  if (operation == Operator::modulo && a.text() != nullptr)
    return heap.text(format_percent(heap, *a.text(), b));
  require_defined(b);
  const auto left = as_integer(a);
  const auto right = as_integer(b);
  if (left && right) return calculate_integers(operation, *left, *right);
  const auto x = as_double(a);
  const auto y = as_double(b);
  if (x && y) return calculate_doubles(operation, *x, *y);
  if (operation == Operator::add) return added(heap, a, b);
  if (operation == Operator::multiply && is_repeatable(a) && right)
    return repeated(heap, a, *right);
  if (operation == Operator::multiply && is_repeatable(b) && left) return repeated(heap, b, *left);
  refuse_operands(operation, a, b);
}

Value negated(const Value& value) {
  require_defined(value);
  if (const auto* const real = value.as<double>()) return Value(-*real);
  const auto integer = as_integer(value);
  if (!integer) throw Error("'-' has no meaning for {}", type_name(value));
  return calculate_integers(Operator::subtract, 0, *integer);
}

Value plus(const Value& value) {
  require_defined(value);
  if (value.is<double>()) return value;
  const auto integer = as_integer(value);
  if (!integer) throw Error("'+' has no meaning for {}", type_name(value));
  return Value(*integer);
}

}  // namespace sluice::jinja
