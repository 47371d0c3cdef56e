#pragma once

namespace sluice {

/// Takes variables of libraries that we steer ourselves out of the environment: OpenMP's (OMP_,
/// GOMP_, KMP_) and hwloc's. libgomp reads its own, binds threads and prints what it thinks of them
/// before any constructor of ours; only what stands in .preinit_array runs earlier.
// Plain loops: neither a sanitizer nor a library has started.
__attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined"))) inline void
drop_foreign_variables(int /*argc*/, char** /*argv*/, char** variables) {
  constexpr const char* prefixes[] = {"OMP_", "GOMP_", "KMP_", "HWLOC_"};
  char** kept = variables;
  for (char** variable = variables; *variable != nullptr; ++variable) {
    bool is_foreign = false;
    for (const char* prefix : prefixes) {
      const char* name = *variable;
      const char* wanted = prefix;
      while (*wanted != '\0' && *name == *wanted) {
        ++name;
        ++wanted;
      }
      is_foreign = is_foreign || *wanted == '\0';
    }
    if (!is_foreign) *kept++ = *variable;
  }
  *kept = nullptr;
}

}  // namespace sluice

/// In the program alone: a shared object cannot have it.
__attribute__((section(".preinit_array"), used)) static void (*const sluice_drop_variables)(
    int, char**, char**) = &sluice::drop_foreign_variables;
