#pragma once

#include <string_view>

#include "models/chat_template/syntax.h"

namespace sluice::jinja {

/// Parses a template. Throws Error, which begins with "line N: ", for what is no Jinja, is not
/// supported, or nests too deep.
Block parse(std::string_view source);

}  // namespace sluice::jinja
