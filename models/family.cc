#include "models/family.h"

#include <array>

namespace sluice {

// models/families.inc is made by models/CMakeLists.txt: one SLUICE_FAMILY(name) a line.
#define SLUICE_FAMILY(name) extern const Family name##_family;
#include "models/families.inc"
#undef SLUICE_FAMILY

std::span<const Family* const> families() {
  static constexpr std::array all = {
#define SLUICE_FAMILY(name) &name##_family,
#include "models/families.inc"
#undef SLUICE_FAMILY
  };
  return all;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : families()) {
    if (family->name == name) return family;
  }
  return nullptr;
}

}  // namespace sluice
