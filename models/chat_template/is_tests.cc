// What may stand behind `is`.

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/filters.h"
#include "models/chat_template/operators.h"
#include "models/chat_template/text.h"

namespace sluice::jinja {
namespace {

/// A test of a value, with up to one argument.
struct Call {
  Heap& heap;
  const Value& value;
  const Arguments& arguments;
  std::string_view name;

  void no_argument() const { Parameters(name, arguments, {}); }
  Value argument() const { return Parameters(name, arguments, {"other"}).at(0); }
  std::partial_ordering order() const { return compare(heap, value, argument()); }
};

bool is_sequence(const Value& value) {
  const Sequence* const sequence = value.sequence();
  if (sequence == nullptr)
    return value.text() != nullptr || value.mapping() != nullptr || value.is<Undefined>();
  return sequence->kind == SequenceKind::list || sequence->kind == SequenceKind::tuple ||
         sequence->kind == SequenceKind::range;
}

bool is_iterable(const Value& value) {
  return value.text() != nullptr || value.mapping() != nullptr || value.sequence() != nullptr ||
         value.is<Undefined>() || value.is<Loop*>();
}

bool is_divisible(const Call& call) {
  const Value rest = calculate(call.heap, Operator::modulo, call.value, call.argument());
  return equals(call.heap, rest, Value(std::int64_t{0}));
}

bool is_same(const Call& call) {
  const Value other = call.argument();
  return call.value.data().index() == other.data().index() && equals(call.heap, call.value, other);
}

template <typename T>
bool is_of(const Call& call) {
  call.no_argument();
  return call.value.is<T>();
}

bool equals_argument(const Call& call) { return equals(call.heap, call.value, call.argument()); }
bool differs(const Call& call) { return !equals_argument(call); }
bool is_less(const Call& call) { return std::is_lt(call.order()); }
bool is_at_most(const Call& call) { return std::is_lteq(call.order()); }
bool is_greater(const Call& call) { return std::is_gt(call.order()); }
bool is_at_least(const Call& call) { return std::is_gteq(call.order()); }

struct Test {
  std::string_view name;
  bool (*run)(const Call&);
};

constexpr Test tests[] = {
    {"!=", differs},
    {"<", is_less},
    {"<=", is_at_most},
    {"==", equals_argument},
    {">", is_greater},
    {">=", is_at_least},
    {"boolean", is_of<bool>},
    {"callable",
     [](const Call& call) {
       return call.value.is<std::shared_ptr<Callable>>() || call.value.is<Loop*>();
     }},
    {"defined", [](const Call& call) { return !is_of<Undefined>(call); }},
    {"divisibleby", is_divisible},
    {"eq", equals_argument},
    {"equalto", equals_argument},
    {"escaped", [](const Call& call) { return call.value.is_markup(); }},
    {"even",
     [](const Call& call) {
       const Value rest =
           calculate(call.heap, Operator::modulo, call.value, Value(std::int64_t{2}));
       return !truth(rest);
     }},
    {"false", [](const Call& call) { return is_of<bool>(call) && !truth(call.value); }},
    {"float", is_of<double>},
    {"ge", is_at_least},
    {"greaterthan", is_greater},
    {"gt", is_greater},
    {"in", [](const Call& call) { return contains(call.heap, call.argument(), call.value); }},
    {"integer", is_of<std::int64_t>},
    {"iterable", [](const Call& call) { return is_iterable(call.value); }},
    {"le", is_at_most},
    {"lessthan", is_less},
    {"lower", [](const Call& call) { return is_lower_text(to_text(call.heap, call.value)); }},
    {"lt", is_less},
    {"mapping", is_of<Mapping*>},
    {"ne", differs},
    {"none", is_of<None>},
    {"number",
     [](const Call& call) {
       return call.value.is<double>() || as_integer(call.value).has_value();
     }},
    {"odd",
     [](const Call& call) {
       const Value rest =
           calculate(call.heap, Operator::modulo, call.value, Value(std::int64_t{2}));
       return equals(call.heap, rest, Value(std::int64_t{1}));
     }},
    {"sameas", is_same},
    {"sequence", [](const Call& call) { return is_sequence(call.value); }},
    {"string", is_of<Text>},
    {"true", [](const Call& call) { return is_of<bool>(call) && truth(call.value); }},
    {"undefined", is_of<Undefined>},
    {"upper", [](const Call& call) { return is_upper_text(to_text(call.heap, call.value)); }},
};

}  // namespace

bool apply_test(Heap& heap, const std::string& name, const Value& value,
                const Arguments& arguments) {
  heap.step();
  const auto* const found = std::find_if(std::begin(tests), std::end(tests),
                                         [&](const Test& test) { return test.name == name; });
  if (found == std::end(tests)) throw Error("unknown test {}", quote(name));
  return found->run(Call{heap, value, arguments, name});
}

}  // namespace sluice::jinja
