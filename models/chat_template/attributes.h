#pragma once

#include <string>
#include <string_view>

#include "models/chat_template/value.h"

namespace sluice::jinja {

/// `value.name`: an attribute or method, else an item of that name, else undefined. Methods that
/// would change a list or a dict are undefined, as in Jinja's immutable sandbox.
Value get_attribute(Heap& heap, const Value& value, const std::string& name);

/// The same without items.
Value get_own_attribute(Heap& heap, const Value& value, const std::string& name);

/// What stands for an attribute that is not there.
Value missing_attribute(Heap& heap, const Value& value, std::string_view name);

/// "dict object", for messages.
std::string object_name(const Value& value);

/// A method of a text; undefined where str has none of that name.
Value text_method(Heap& heap, const Value& text, const std::string& name);

/// str.replace(), refused where the result would be too large.
std::string replaced_within(Heap& heap, std::string_view text, std::string_view from,
                            std::string_view to, std::size_t most);

}  // namespace sluice::jinja
