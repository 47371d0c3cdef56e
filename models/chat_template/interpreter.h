#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "models/chat_template/syntax.h"
#include "models/chat_template/value.h"

namespace sluice::jinja {

/// Renders a parsed template with these variables and the globals that Transformers gives: range,
/// dict, namespace, joiner, raise_exception and strftime_now (of `now`, a local time). Values
/// belong to `heap`. Throws Error, which begins with "line N: ", where the template fails, raises
/// an exception itself, or reaches a limit of the heap.
std::string render(const Block& block, std::vector<std::pair<std::string, Value>> variables,
                   const std::tm& now, Heap& heap);

}  // namespace sluice::jinja
