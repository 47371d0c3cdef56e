#pragma once

#include <string>
#include <vector>

namespace sluice::testing {

/// What Debian's pajeng says of a trace: its CSV lines, each cut into trimmed fields, those of a
/// state's own included. Fails the test when it prints an error or exits with another code than 0.
std::vector<std::vector<std::string>> pj_dump(const std::string& path);

/// Whether pajeng is installed.
bool has_pj_dump();

/// The lines of one kind ("State") and type ("Sublayer").
std::vector<std::vector<std::string>> of_type(const std::vector<std::vector<std::string>>& lines,
                                              const std::string& kind, const std::string& type);

}  // namespace sluice::testing
