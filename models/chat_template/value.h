#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/chat_template/limits.h"

namespace sluice::jinja {

using Limits = TemplateLimits;
class Heap;

/// A text that its Heap counts while it lives. Texts of a parsed template belong to no heap.
class CountedString {
 public:
  CountedString(std::string value, Heap* heap);
  ~CountedString();
  CountedString(const CountedString&) = delete;
  CountedString& operator=(const CountedString&) = delete;
  const std::string& get() const { return value_; }

 private:
  std::string value_;
  Heap* heap_;
};

/// What a name, attribute or item is that is not there. `reason` is the message of its use.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};
struct None {};
struct Text {
  std::shared_ptr<const CountedString> string;
  bool is_markup = false;  ///< the filters safe and escape: adding text to it escapes that
};
struct Sequence;
struct Mapping;
struct Namespace;
struct Loop;
class Callable;

/// A value of the template language, with the meaning that Python gives it. Cheap to copy: what is
/// not small belongs to the Heap of the rendering, which must outlive it.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, Text, Sequence*, Mapping*,
                            Namespace*, Loop*, std::shared_ptr<Callable>>;

  Value() = default;  ///< undefined
  template <typename T>
  explicit Value(T value) : data_(std::move(value)) {}
  /// A text that no heap counts: one of the template's own.
  static Value constant(std::string text);

  const Data& data() const { return data_; }
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  Sequence* sequence() const { return is<Sequence*>() ? std::get<Sequence*>(data_) : nullptr; }
  Mapping* mapping() const { return is<Mapping*>() ? std::get<Mapping*>(data_) : nullptr; }
  /// The text, or nothing where it is none.
  const std::string* text() const;
  bool is_markup() const { return is<Text>() && as<Text>()->is_markup; }

 private:
  Data data_;
};

/// What a Heap owns.
struct Object {
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
};

enum class SequenceKind : std::uint8_t {
  list,
  tuple,
  range,
  generator,  ///< what map, select and their like give: true even when empty, read only once
  dict_keys,
  dict_values,
  dict_items,
};

struct Sequence final : Object {
  Sequence(SequenceKind a_kind, std::vector<Value> some_items)
      : kind(a_kind), items(std::move(some_items)) {}
  SequenceKind kind;
  std::vector<Value> items;
  std::size_t num_taken = 0;  ///< of a generator
};

using Entry = std::pair<Value, Value>;

/// A dict: entries in the order in which they came.
struct Mapping final : Object {
  explicit Mapping(std::vector<Entry> some_entries) : entries(std::move(some_entries)) {}
  std::vector<Entry> entries;
};

struct Namespace final : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

/// What a call passes on.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Callable : public Object {
 public:
  virtual Value call(Heap& heap, Arguments arguments) = 0;
  /// An attribute; undefined where it has none of that name.
  virtual Value attribute(Heap& heap, std::string_view name) const;
  virtual std::string describe() const = 0;
};

class Function final : public Callable {
 public:
  using Body = std::function<Value(Heap&, Arguments&)>;
  Function(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}
  Value call(Heap& heap, Arguments arguments) override { return body_(heap, arguments); }
  std::string describe() const override { return "<function " + name_ + ">"; }

 private:
  std::string name_;
  Body body_;
};

/// The values of `loop` in one iteration, and what a recursive loop calls.
struct Loop final : Object {
  std::vector<Value> items;  ///< none when the loop has ended
  std::size_t length = 0;
  std::size_t index = 0;
  std::int64_t depth = 1;
  std::vector<Value> last_changed;
  bool has_changed_before = false;
  std::function<Value(Heap&, const Value&)> recurse;  ///< empty unless the loop is recursive
};

/// Owns the values of one rendering, counts what it does, and throws Error at a limit.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }

  Value text(std::string text);
  Value markup(std::string text);
  Value sequence(SequenceKind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(SequenceKind::list, std::move(items)); }
  Value tuple(std::vector<Value> items) { return sequence(SequenceKind::tuple, std::move(items)); }
  Value generator(std::vector<Value> items) {
    return sequence(SequenceKind::generator, std::move(items));
  }
  /// Of entries whose keys differ.
  Value mapping(std::vector<Entry> entries);
  Value function(std::string name, Function::Body body);
  Value undefined(std::string reason);
  Value from_json(const nlohmann::ordered_json& json);

  template <typename T, typename... Args>
  T* make(Args&&... args) {
    charge(sizeof(T));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* const made = object.get();
    objects_.push_back(std::move(object));
    return made;
  }

  void step(std::int64_t count = 1);
  /// Steps for work on a text.
  void step_bytes(std::size_t bytes) { step(1 + static_cast<std::int64_t>(bytes / 64)); }
  /// Steps for a search whose time may grow with both lengths.
  void step_search(std::size_t text_bytes, std::size_t part_bytes) {
    step_bytes(text_bytes + text_bytes / 64 * part_bytes);
  }
  /// Throws unless so much more would still fit: to be asked before a text is built.
  void require_room(std::size_t bytes) const;
  void charge(std::size_t bytes);
  void release(std::size_t bytes) { used_bytes_ -= static_cast<std::int64_t>(bytes); }

  /// One level deeper while it lives. Whatever calls itself makes one.
  class Level {
   public:
    explicit Level(Heap& heap);
    ~Level() { --heap_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Heap& heap_;
  };

 private:
  Limits limits_;
  std::int64_t steps_ = 0;
  std::int64_t used_bytes_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

/// A text that is being rendered: its heap counts it.
class Output {
 public:
  explicit Output(Heap& heap) : heap_(heap) {}
  ~Output() { heap_.release(text_.size()); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void append(std::string_view text);
  const std::string& text() const { return text_; }

 private:
  Heap& heap_;
  std::string text_;
};

/// The arguments of a function, by its parameters' names. Throws Error for an argument too many,
/// twice, or of an unknown name.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  bool has(std::size_t index) const { return values_[index].has_value(); }
  /// Nothing where it was not given.
  const Value* find(std::size_t index) const { return has(index) ? &*values_[index] : nullptr; }
  /// Throws Error where it was not given.
  const Value& at(std::size_t index) const;
  /// The same or a fallback; None counts as not given. Throw Error for another type.
  const std::string& text(std::size_t index) const;
  std::string text_or(std::size_t index, std::string_view fallback) const;
  std::int64_t integer_or(std::size_t index, std::int64_t fallback) const;
  bool flag_or(std::size_t index, bool fallback) const;
  bool is_given(std::size_t index) const { return has(index) && !values_[index]->is<None>(); }

 private:
  [[noreturn]] void wrong_type(std::size_t index, std::string_view expected) const;

  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

/// "str", "int", "dict": Python's name of the type.
std::string_view type_name(const Value& value);

/// A whole number, of true and false, too; nothing for anything else.
std::optional<std::int64_t> as_integer(const Value& value);

}  // namespace sluice::jinja
