#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace sluice {

/// What went wrong, in one line: what was found, what was expected, and what the user can do.
/// Thrown by set-up, loading and submission; the command line prints it and exits with 1.
class Error : public std::runtime_error {
 public:
  template <typename... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A wrong command line; the command line prints it and exits with 2.
class UsageError : public Error {
  using Error::Error;
};

}  // namespace sluice
