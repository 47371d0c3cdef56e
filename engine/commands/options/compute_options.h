#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "engine/commands/options/command_line.h"

namespace sluice {

/// The value of `name`. Throws UsageError when it is outside of [low, high].
template <typename T>
T in_range(const CommandLine& line, const std::string& name, T low, T high) {
  const T value = line.get<T>(name);
  if (!(value >= low && value <= high)) {
    throw UsageError("--{} {}: expected a value from {} to {}", name, value, low, high);
  }
  return value;
}

/// --dtype, --threads and --domains.
void declare_compute_options(CommandLine& line);

/// --dtype, if it was given. Throws UsageError.
std::optional<DType> read_dtype(const CommandLine& line);
/// --threads, if it was given. Throws UsageError.
std::optional<int> read_threads(const CommandLine& line);

}  // namespace sluice
