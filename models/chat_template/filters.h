#pragma once

#include <string>

#include "models/chat_template/value.h"

namespace sluice::jinja {

/// `value|name(arguments)`. Throws Error for an unknown filter.
Value apply_filter(Heap& heap, const std::string& name, const Value& value,
                   const Arguments& arguments);

/// `value is name(arguments)`. Throws Error for an unknown test.
bool apply_test(Heap& heap, const std::string& name, const Value& value,
                const Arguments& arguments);

}  // namespace sluice::jinja
