#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// The keys that clients may show as "Authorization: Bearer KEY".
class ApiKeys {
 public:
  /// Every client is let in.
  ApiKeys() = default;
  /// A key a line; empty lines, and those that begin with #, are none. Throws Error: no key in the
  /// file, or one with blanks or control characters.
  static ApiKeys read(const std::string& path);

  /// The time does not depend on where a wrong key differs.
  bool lets_in(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace sluice
