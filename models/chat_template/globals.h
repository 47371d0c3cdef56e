#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "models/chat_template/value.h"

namespace sluice::jinja {

/// The functions that every template has.
std::vector<std::pair<std::string, Value>> global_functions(Heap& heap, const std::tm& now);

/// Throws Error for a name that begins with '_', which Transformers refuses.
void set_namespace_attribute(Heap& heap, Namespace& space, const std::string& name,
                             const Value& value);

}  // namespace sluice::jinja
