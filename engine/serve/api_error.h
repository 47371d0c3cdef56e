#pragma once

#include <string>

#include "base/error.h"

namespace sluice {

/// An answer that says what is wrong, in OpenAI's form.
class ApiError : public Error {
 public:
  struct Details {
    int status = 400;
    std::string param;         ///< the field at fault; empty: null
    std::string code;          ///< empty: null
    int retry_after_s = 0;     ///< 0: no such header
    std::string type = {};     ///< empty: what the status goes with
    std::string allowed = {};  ///< methods, for 405
  };

  ApiError(Details details, const std::string& message)
      : Error("{}", message), details_(std::move(details)) {}

  const Details& details() const { return details_; }
  /// {"error": {"message", "type", "param", "code"}}, one line of valid UTF-8.
  std::string body() const;

 private:
  Details details_;
};

/// 400 that names a field.
template <typename... Args>
ApiError bad_field(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  return {{.status = 400, .param = param, .code = {}},
          fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace sluice
