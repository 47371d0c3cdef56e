#pragma once

#include <span>
#include <string_view>

#include "models/config_reader.h"

namespace sluice {

/// A field of config.json that would change the result and that is not done. It may be missing,
/// null, or say what does nothing.
struct UnsupportedField {
  std::string_view name;
  std::string_view neutral;  ///< as JSON; empty: only missing or null
};

/// Fields of related families and of Transformers' base class, which published files sometimes
/// carry over.
std::span<const UnsupportedField> unsupported_fields();
/// Those that say how many experts there are, which some families can have.
std::span<const UnsupportedField> fields_of_experts();

/// Throws Error that names the first one of `table` that is set, but for those of `except`.
void refuse_fields(const ConfigReader& fields, std::span<const UnsupportedField> table,
                   std::span<const std::string_view> except = {});

}  // namespace sluice
