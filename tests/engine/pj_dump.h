#pragma once

#include <nlohmann/json.hpp>
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

/// The figures of `sluice trace DIR --json` are those that pajeng computes from paje.trace. Skips
/// the test, visibly, where pajeng is not installed.
void expect_pajeng_agrees(const std::string& folder, const nlohmann::json& report);

}  // namespace sluice::testing
