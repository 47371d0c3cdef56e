#include "engine/build_kind.h"

#include <fmt/format.h>
#include <starpu_config.h>

#include "engine/trace/fxt.h"

namespace sluice {

bool is_linked_with_fxt() {
#ifdef STARPU_USE_FXT
  return true;
#else
  return has_fxt();
#endif
}

std::string fxt_text() {
  const char* terms = is_linked_with_fxt()
                          ? "pass it on under the GPL, and not with CUDA's libraries"
                          : "it may be passed on with CUDA's libraries";
  const char* records = has_fxt()              ? "yes, --trace records"
                        : is_linked_with_fxt() ? "in StarPU only, --trace is off"
                                               : "no, --trace is off";
  return fmt::format("{}; {}", records, terms);
}

std::string version_number() { return SLUICE_VERSION; }

std::string version_text() {
  return fmt::format("sluice {} (FxT: {})\n", SLUICE_VERSION, fxt_text());
}

}  // namespace sluice
