#include "models/chat_template/interpreter.h"

#include <algorithm>
#include <compare>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/attributes.h"
#include "models/chat_template/filters.h"
#include "models/chat_template/globals.h"

namespace sluice::jinja {
namespace {

/// The names that a block can see. Macros keep the scope that they were made in.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [known, value] : scope->variables) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }

  void set(std::string_view name, Value value) {
    for (auto& [known, old] : variables) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
  }

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

/// How a block was left.
enum class Flow : std::uint8_t { onward, breaks, continues };

class Interpreter {
 public:
  Interpreter(Heap& heap, ScopePtr globals) : heap_(heap), scope_(std::move(globals)) {}

  std::string run(const Block& block) {
    try {
      Output out(heap_);
      execute(block, out);
      return out.text();
    } catch (const Error& error) {
      throw Error("line {}: {}", line_, error.what());
    }
  }

  Value call_macro(const MacroDefinition& macro, const ScopePtr& scope, Arguments arguments);

 private:
  /// Makes a scope the current one while it lives.
  class Inside {
   public:
    Inside(Interpreter& interpreter, ScopePtr scope)
        : interpreter_(interpreter), before_(std::exchange(interpreter.scope_, std::move(scope))) {}
    ~Inside() { interpreter_.scope_ = std::move(before_); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Interpreter& interpreter_;
    ScopePtr before_;
  };

  ScopePtr inner_scope() const { return std::make_shared<Scope>(scope_); }

  // Statements.

  Flow execute(const Block& block, Output& out) {
    const Heap::Level level(heap_);
    for (const Statement& statement : block) {
      heap_.step();
      line_ = statement.line;
      const Flow flow =
          std::visit([&](const auto& node) { return execute(node, out); }, statement.node);
      if (flow != Flow::onward) return flow;
    }
    return Flow::onward;
  }

  Flow execute(const Data& data, Output& out) {
    out.append(data.text);
    return Flow::onward;
  }

  Flow execute(const Print& print, Output& out) {
    const Value value = evaluate(*print.value);
    if (const std::string* const text = value.text()) {
      out.append(*text);
    } else {
      out.append(to_text(heap_, value));
    }
    return Flow::onward;
  }

  Flow execute(const If& statement, Output& out) {
    for (const auto& [condition, block] : statement.branches) {
      if (truth(evaluate(*condition))) return execute(block, out);
    }
    return execute(statement.otherwise, out);
  }

  Flow execute(const For& loop, Output& out) {
    const Value iterable = evaluate(*loop.items);
    return run_loop(loop, iterable, 1, ScopePtr(scope_), out);
  }

  /// The items that the loop's condition lets through.
  std::vector<Value> loop_items(const For& loop, const Value& iterable, const ScopePtr& outer) {
    std::vector<Value> items = items_of(heap_, iterable);
    if (loop.condition == nullptr) return items;
    std::vector<Value> kept;
    for (const Value& item : items) {
      const Inside inside(*this, std::make_shared<Scope>(outer));
      assign(loop.target, item);
      if (truth(evaluate(*loop.condition))) kept.push_back(item);
    }
    return kept;
  }

  Flow run_loop(const For& loop, const Value& iterable, std::int64_t depth, const ScopePtr& outer,
                Output& out) {
    const Heap::Level level(heap_);
    std::vector<Value> items = loop_items(loop, iterable, outer);
    if (items.empty()) {
      const Inside inside(*this, std::make_shared<Scope>(outer));
      return execute(loop.otherwise, out);
    }
    auto* const state = heap_.make<Loop>();
    state->items = std::move(items);
    state->length = state->items.size();
    state->depth = depth;
    if (loop.is_recursive) {
      state->recurse = [this, &loop, depth, outer](Heap& heap, const Value& inner) {
        Output text(heap);
        run_loop(loop, inner, depth + 1, outer, text);
        return heap.text(text.text());
      };
    }
    for (; state->index < state->length; ++state->index) {
      heap_.step();
      const Inside inside(*this, std::make_shared<Scope>(outer));
      assign(loop.target, state->items[state->index]);
      scope_->set("loop", Value(state));
      if (execute(loop.body, out) == Flow::breaks) break;
    }
    state->items.clear();
    return Flow::onward;
  }

  Flow execute(const Set& set, Output& /*out*/) {
    assign(set.target, evaluate(*set.value));
    return Flow::onward;
  }

  void assign(const Target& target, const Value& value) {
    if (!target.parts.empty()) return assign_parts(target, value);
    if (target.attribute.empty()) return scope_->set(target.name, value);
    const Value* const space = scope_->find(target.name);
    if (space == nullptr || !space->is<Namespace*>())
      throw Error("{} is no namespace: its attributes cannot be set", quote(target.name));
    set_namespace_attribute(heap_, **space->as<Namespace*>(), target.attribute, value);
  }

  void assign_parts(const Target& target, const Value& value) {
    require_defined(value);
    const std::vector<Value> items = items_of(heap_, value);
    if (items.size() != target.parts.size()) {
      throw Error("{} values for {} names", items.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
  }

  Flow execute(const SetBlock& set, Output& /*out*/) {
    Output text(heap_);
    {
      const Inside inside(*this, inner_scope());
      const Flow flow = execute(set.body, text);
      if (flow != Flow::onward) return flow;
    }
    Value value = heap_.text(text.text());
    if (set.filter != nullptr) value = evaluate_filtered(*set.filter, value);
    assign(set.target, value);
    return Flow::onward;
  }

  Flow execute(const MacroDefinition& macro, Output& /*out*/) {
    scope_->set(macro.name, make_macro(macro));
    return Flow::onward;
  }

  Flow execute(const CallBlock& block, Output& out) {
    const auto& call = std::get<CallOf>(block.call->node);
    const Value function = evaluate(*call.function);
    Arguments arguments = evaluate_arguments(call.arguments);
    arguments.named.emplace_back("caller", make_macro(block.caller));
    out.append(to_text(heap_, invoke(function, std::move(arguments))));
    return Flow::onward;
  }

  Flow execute(const FilterBlock& block, Output& out) {
    Output text(heap_);
    const Inside inside(*this, inner_scope());
    const Flow flow = execute(block.body, text);
    if (flow != Flow::onward) return flow;
    out.append(to_text(heap_, evaluate_filtered(*block.filter, heap_.text(text.text()))));
    return Flow::onward;
  }

  Flow execute(const With& with, Output& out) {
    const ScopePtr scope = inner_scope();
    std::vector<Value> values;
    for (const auto& entry : with.values) values.push_back(evaluate(*entry.second));
    const Inside inside(*this, scope);
    for (std::size_t i = 0; i < values.size(); ++i) assign(with.values[i].first, values[i]);
    return execute(with.body, out);
  }

  Flow execute(const Generation& generation, Output& out) {
    const Inside inside(*this, inner_scope());
    return execute(generation.body, out);
  }

  static Flow execute(const Break& /*node*/, Output& /*out*/) { return Flow::breaks; }
  static Flow execute(const Continue& /*node*/, Output& /*out*/) { return Flow::continues; }

  Value make_macro(const MacroDefinition& macro);

  /// The parameters of a macro as variables of the current scope.
  void bind(const MacroDefinition& macro, Arguments& arguments);
  void bind_rest(const MacroDefinition& macro, Arguments& arguments);

  // Expressions.

  Value evaluate(const Expression& expression) {
    const Heap::Level level(heap_);
    heap_.step();
    line_ = expression.line;
    return std::visit([&](const auto& node) { return evaluate(node, expression.line); },
                      expression.node);
  }

  static Value evaluate(const Literal& literal, int /*line*/) { return literal.value; }

  Value evaluate(const Name& name, int /*line*/) {
    const Value* const found = scope_->find(name.name);
    return found != nullptr ? *found : heap_.undefined(quote(name.name) + " is undefined");
  }

  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& expressions) {
    std::vector<Value> values;
    values.reserve(expressions.size());
    for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(*expression));
    return values;
  }

  Value evaluate(const ListLiteral& list, int /*line*/) {
    return heap_.sequence(list.is_tuple ? SequenceKind::tuple : SequenceKind::list,
                          evaluate_all(list.items));
  }

  Value evaluate(const DictLiteral& dict, int line) {
    std::vector<Entry> entries;
    for (const auto& [key, value] : dict.entries) {
      const Value name = evaluate(*key);
      const Value entry = evaluate(*value);
      line_ = line;
      set_entry(heap_, entries, name, entry);
    }
    return heap_.mapping(std::move(entries));
  }

  Value evaluate(const AttributeOf& node, int line) {
    const Value value = evaluate(*node.value);
    line_ = line;
    return get_attribute(heap_, value, node.name);
  }

  Value evaluate(const ItemOf& node, int line) {
    const Value value = evaluate(*node.value);
    const Value key = evaluate(*node.key);
    line_ = line;
    return get_item(heap_, value, key);
  }

  Value evaluate_or_none(const ExpressionPtr& expression) {
    return expression == nullptr ? Value(None{}) : evaluate(*expression);
  }

  Value evaluate(const SliceOf& node, int line) {
    const Value value = evaluate(*node.value);
    const Value begin = evaluate_or_none(node.begin);
    const Value end = evaluate_or_none(node.end);
    const Value step = evaluate_or_none(node.step);
    line_ = line;
    return get_slice(heap_, value, begin, end, step);
  }

  Arguments evaluate_arguments(const CallArguments& given) {
    Arguments arguments;
    arguments.positional = evaluate_all(given.positional);
    for (const auto& [name, value] : given.named)
      arguments.named.emplace_back(name, evaluate(*value));
    if (given.more_positional != nullptr) {
      for (Value& item : items_of(heap_, evaluate(*given.more_positional)))
        arguments.positional.push_back(std::move(item));
    }
    if (given.more_named != nullptr) {
      const Value names = evaluate(*given.more_named);
      if (names.mapping() == nullptr) throw Error("'**' needs a dict, not {}", object_name(names));
      for (const auto& [name, value] : names.mapping()->entries) {
        if (name.text() == nullptr) throw Error("'**': a name is no text");
        arguments.named.emplace_back(*name.text(), value);
      }
    }
    return arguments;
  }

  Value invoke(const Value& function, Arguments arguments) {
    require_defined(function);
    if (const auto* const callable = function.as<std::shared_ptr<Callable>>())
      return (*callable)->call(heap_, std::move(arguments));
    if (const auto* const loop = function.as<Loop*>(); loop != nullptr && (*loop)->recurse) {
      const Parameters given("loop", arguments, {"iterable"});
      return (*loop)->recurse(heap_, given.at(0));
    }
    throw Error("{} cannot be called", object_name(function));
  }

  Value evaluate(const CallOf& node, int line) {
    const Value function = evaluate(*node.function);
    Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return invoke(function, std::move(arguments));
  }

  /// Filters behind the text of a block.
  Value evaluate_filtered(const Expression& expression, const Value& text) {
    const auto& filter = std::get<FilterOf>(expression.node);
    const Value value = filter.value == nullptr ? text : evaluate_filtered(*filter.value, text);
    const Arguments arguments = evaluate_arguments(filter.arguments);
    line_ = expression.line;
    return apply_filter(heap_, filter.name, value, arguments);
  }

  Value evaluate(const FilterOf& node, int line) {
    const Value value = evaluate(*node.value);
    const Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return apply_filter(heap_, node.name, value, arguments);
  }

  Value evaluate(const TestOf& node, int line) {
    const Value value = evaluate(*node.value);
    const Arguments arguments = evaluate_arguments(node.arguments);
    line_ = line;
    return Value(apply_test(heap_, node.name, value, arguments));
  }

  Value evaluate(const Not& node, int /*line*/) { return Value(!truth(evaluate(*node.value))); }

  Value evaluate(const Signed& node, int line) {
    const Value value = evaluate(*node.value);
    line_ = line;
    return node.is_negative ? negated(value) : plus(value);
  }

  Value evaluate(const Binary& node, int line) {
    const Value left = evaluate(*node.left);
    const Value right = evaluate(*node.right);
    line_ = line;
    return calculate(heap_, node.operation, left, right);
  }

  Value evaluate(const Logical& node, int /*line*/) {
    Value left = evaluate(*node.left);
    return truth(left) == node.is_and ? evaluate(*node.right) : left;
  }

  bool holds(Relation relation, const Value& a, const Value& b) {
    switch (relation) {
      case Relation::equal:
        return equals(heap_, a, b);
      case Relation::unequal:
        return !equals(heap_, a, b);
      case Relation::less:
        return std::is_lt(compare(heap_, a, b));
      case Relation::at_most:
        return std::is_lteq(compare(heap_, a, b));
      case Relation::greater:
        return std::is_gt(compare(heap_, a, b));
      case Relation::at_least:
        return std::is_gteq(compare(heap_, a, b));
      case Relation::in:
        return contains(heap_, b, a);
      case Relation::not_in:
        return !contains(heap_, b, a);
    }
    return false;
  }

  Value evaluate(const Comparison& node, int line) {
    Value left = evaluate(*node.first);
    for (const auto& [relation, other] : node.others) {
      Value right = evaluate(*other);
      line_ = line;
      if (!holds(relation, left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  Value evaluate(const Concatenation& node, int line) {
    std::string text;
    for (const ExpressionPtr& part : node.parts) {
      const Value value = evaluate(*part);
      line_ = line;
      text += to_text(heap_, value);
      heap_.require_room(text.size());
    }
    return heap_.text(std::move(text));
  }

  Value evaluate(const Conditional& node, int /*line*/) {
    if (truth(evaluate(*node.condition))) return evaluate(*node.then);
    if (node.otherwise != nullptr) return evaluate(*node.otherwise);
    return heap_.undefined("an if without else has no value here");
  }

  Heap& heap_;
  ScopePtr scope_;
  int line_ = 1;  ///< of what is rendered, for messages
};

/// A macro, or the body of a call block. Belongs to the heap: a scope refers to it, and it owns
/// one.
class Macro final : public Callable {
 public:
  Macro(Interpreter& interpreter, const MacroDefinition& definition, ScopePtr scope)
      : interpreter_(interpreter), definition_(definition), scope_(std::move(scope)) {}

  Value call(Heap& heap, Arguments arguments) override {
    const Heap::Level level(heap);
    return interpreter_.call_macro(definition_, scope_, std::move(arguments));
  }

  Value attribute(Heap& heap, std::string_view name) const override {
    if (name == "name")
      return definition_.name.empty() ? Value(None{}) : heap.text(definition_.name);
    if (name == "catch_kwargs") return Value(definition_.uses_kwargs);
    if (name == "catch_varargs") return Value(definition_.uses_varargs);
    if (name == "caller") return Value(definition_.uses_caller);
    if (name != "arguments") return Callable::attribute(heap, name);
    std::vector<Value> names;
    for (const auto& parameter : definition_.parameters) names.push_back(heap.text(parameter.name));
    return heap.tuple(std::move(names));
  }

  std::string describe() const override {
    return definition_.name.empty() ? "<Macro anonymous>" : "<Macro '" + definition_.name + "'>";
  }

 private:
  Interpreter& interpreter_;
  const MacroDefinition& definition_;
  ScopePtr scope_;
};

Value Interpreter::make_macro(const MacroDefinition& macro) {
  Callable* const made = heap_.make<Macro>(*this, macro, scope_);
  return Value(std::shared_ptr<Callable>(std::shared_ptr<void>(), made));
}

Value Interpreter::call_macro(const MacroDefinition& macro, const ScopePtr& scope,
                              Arguments arguments) {
  const int line = line_;
  const Inside inside(*this, std::make_shared<Scope>(scope));
  bind(macro, arguments);
  Output out(heap_);
  execute(macro.body, out);
  line_ = line;
  return heap_.text(out.text());
}

void Interpreter::bind(const MacroDefinition& macro, Arguments& arguments) {
  auto& named = arguments.named;
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& parameter = macro.parameters[i];
    const auto found = std::find_if(named.begin(), named.end(), [&](const auto& argument) {
      return argument.first == parameter.name;
    });
    if (i < arguments.positional.size()) {
      if (found != named.end())
        throw Error("macro {} got {} twice", quote(macro.name), quote(parameter.name));
      scope_->set(parameter.name, arguments.positional[i]);
    } else if (found != named.end()) {
      scope_->set(parameter.name, found->second);
      named.erase(found);
    } else if (parameter.fallback != nullptr) {
      scope_->set(parameter.name, evaluate(*parameter.fallback));
    } else {
      scope_->set(parameter.name, heap_.undefined(fmt::format("parameter {} was not given",
                                                              quote(parameter.name))));
    }
  }
  bind_rest(macro, arguments);
}

void Interpreter::bind_rest(const MacroDefinition& macro, Arguments& arguments) {
  const std::size_t num_parameters = macro.parameters.size();
  const auto caller = std::find_if(arguments.named.begin(), arguments.named.end(),
                                   [](const auto& argument) { return argument.first == "caller"; });
  if (macro.uses_caller) {
    scope_->set("caller", caller != arguments.named.end()
                              ? caller->second
                              : heap_.undefined("there is no caller: the macro was not called by "
                                                "a call block"));
    if (caller != arguments.named.end()) arguments.named.erase(caller);
  }
  std::vector<Value> more(
      arguments.positional.begin() +
          static_cast<std::ptrdiff_t>(std::min(num_parameters, arguments.positional.size())),
      arguments.positional.end());
  if (!more.empty() && !macro.uses_varargs)
    throw Error("macro {} takes at most {} arguments, not {}", quote(macro.name), num_parameters,
                arguments.positional.size());
  if (!arguments.named.empty() && !macro.uses_kwargs)
    throw Error("macro {} has no parameter {}", quote(macro.name),
                quote(arguments.named.front().first));
  if (macro.uses_varargs) scope_->set("varargs", heap_.tuple(std::move(more)));
  if (!macro.uses_kwargs) return;
  std::vector<Entry> entries;
  for (const auto& [name, value] : arguments.named) entries.emplace_back(heap_.text(name), value);
  scope_->set("kwargs", heap_.mapping(std::move(entries)));
}

}  // namespace

std::string render(const Block& block, std::vector<std::pair<std::string, Value>> variables,
                   const std::tm& now, Heap& heap) {
  auto globals = std::make_shared<Scope>(nullptr);
  globals->variables = global_functions(heap, now);
  const auto own = std::make_shared<Scope>(std::move(globals));
  own->variables = std::move(variables);
  return Interpreter(heap, std::make_shared<Scope>(own)).run(block);
}

}  // namespace sluice::jinja
