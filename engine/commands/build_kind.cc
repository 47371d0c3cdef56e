#include "engine/commands/build_kind.h"

#include <fmt/format.h>

#include "codelets/runtime/trace_recorder.h"
#include "engine/trace/fxt.h"

namespace sluice {

bool is_linked_with_fxt() { return is_starpu_built_with_fxt() || has_fxt(); }

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
