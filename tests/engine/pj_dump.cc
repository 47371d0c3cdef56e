#include "tests/engine/pj_dump.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/engine/cli_process.h"

namespace sluice::testing {

std::vector<std::vector<std::string>> pj_dump(const std::string& path) {
  CliProcess process("/usr/bin/env", {"pj_dump", "--user-defined", path});
  const CliResult result = process.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line : lines_of(result.out)) {
    std::vector<std::string>& fields = lines.emplace_back();
    std::istringstream parts(line);
    for (std::string field; std::getline(parts, field, ',');)
      fields.push_back(field.substr(std::min(field.size(), field.find_first_not_of(' '))));
  }
  return lines;
}

bool has_pj_dump() {
  CliProcess process("/usr/bin/env", {"sh", "-c", "command -v pj_dump"});
  return process.wait().exit_code == 0;
}

std::vector<std::vector<std::string>> of_type(const std::vector<std::vector<std::string>>& lines,
                                              const std::string& kind, const std::string& type) {
  std::vector<std::vector<std::string>> chosen;
  for (const auto& line : lines) {
    if (line.size() > 2 && line[0] == kind && line[2] == type) chosen.push_back(line);
  }
  return chosen;
}

}  // namespace sluice::testing
