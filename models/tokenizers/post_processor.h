#pragma once

#include <cstdint>
#include <vector>

#include "models/tokenizers/json_field.h"

namespace sluice::tokenizers {

/// Special tokens around the text.
struct Template {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
};

/// Reads tokenizer.json's "post_processor". Throws Error that names what is not supported.
Template make_template(const JsonField& field);

}  // namespace sluice::tokenizers
