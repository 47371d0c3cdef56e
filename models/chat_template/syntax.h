#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/chat_template/operators.h"
#include "models/chat_template/value.h"

// A parsed template.
namespace sluice::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  ///< *value; may be null
  ExpressionPtr more_named;       ///< **value; may be null
};

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct AttributeOf {
  ExpressionPtr value;
  std::string name;
};
struct ItemOf {
  ExpressionPtr value;
  ExpressionPtr key;
};
/// Bounds that are not given are null.
struct SliceOf {
  ExpressionPtr value;
  ExpressionPtr begin;
  ExpressionPtr end;
  ExpressionPtr step;
};
struct CallOf {
  ExpressionPtr function;
  CallArguments arguments;
};
struct FilterOf {
  ExpressionPtr value;  ///< null: the text of a block
  std::string name;
  CallArguments arguments;
};
struct TestOf {
  ExpressionPtr value;
  std::string name;
  CallArguments arguments;
};
struct Not {
  ExpressionPtr value;
};
struct Signed {
  ExpressionPtr value;
  bool is_negative = false;
};
struct Binary {
  Operator operation;
  ExpressionPtr left;
  ExpressionPtr right;
};
/// `and` or `or`.
struct Logical {
  bool is_and = false;
  ExpressionPtr left;
  ExpressionPtr right;
};
enum class Relation : std::uint8_t { equal, unequal, less, at_most, greater, at_least, in, not_in };
/// a < b <= c
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> others;
};
struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
/// `a if condition else b`; b may be null.
struct Conditional {
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;
};

struct Expression {
  int line = 0;
  std::variant<Literal, Name, ListLiteral, DictLiteral, AttributeOf, ItemOf, SliceOf, CallOf,
               FilterOf, TestOf, Not, Signed, Binary, Logical, Comparison, Concatenation,
               Conditional>
      node;
};

struct Statement;
using Block = std::vector<Statement>;

/// What is assigned to: a name, a namespace's attribute, or several targets.
struct Target {
  std::string name;
  std::string attribute;      ///< empty: the name itself
  std::vector<Target> parts;  ///< not empty: a tuple of targets
};

struct Data {
  std::string text;
};
struct Print {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  ///< may be null
  Block body;
  Block otherwise;
  bool is_recursive = false;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  ///< may be null
  Block body;
};
struct Parameter {
  std::string name;
  ExpressionPtr fallback;  ///< may be null
};
/// Also the body of a call block, which has no name.
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};
struct CallBlock {
  ExpressionPtr call;
  MacroDefinition caller;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
/// What the assistant wrote, for training: rendered as it is, with names of its own.
struct Generation {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line = 0;
  std::variant<Data, Print, If, For, Set, SetBlock, MacroDefinition, CallBlock, FilterBlock, With,
               Generation, Break, Continue>
      node;
};

}  // namespace sluice::jinja
