#include "tests/engine/pj_dump.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/support/cli_process.h"

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

void expect_pajeng_agrees(const std::string& folder, const nlohmann::json& report) {
  if (!has_pj_dump()) GTEST_SKIP() << "pajeng is not installed: nothing has read " << folder;
  const auto lines = pj_dump(folder + "/paje.trace");
  std::map<std::string, double> busy_ms;
  std::map<std::string, double> sublayer_ms;
  for (const auto& line : of_type(lines, "State", "Sublayer")) {
    busy_ms[line.at(1)] += std::stod(line.at(5));
    sublayer_ms[line.at(7)] += std::stod(line.at(5));
  }
  // pajeng prints times in millionths of a ms
  const double rounding_ms = 2e-6 * report.at("tasks").get<double>() * 6;
  std::map<std::string, double> ours_ms;
  for (const nlohmann::json& worker : report.at("workers")) {
    EXPECT_NEAR(busy_ms[worker.at("name")], worker.at("busy_ns").get<double>() * 1e-6, rounding_ms);
    for (const auto& [name, ns] : worker.at("sublayer_ns").items())
      ours_ms[name] += ns.get<double>() * 1e-6;
  }
  ASSERT_EQ(ours_ms.size(), sublayer_ms.size());
  for (const auto& [name, ms] : ours_ms) EXPECT_NEAR(sublayer_ms[name], ms, rounding_ms) << name;
  EXPECT_EQ(of_type(lines, "State", "Task").size(), report.at("tasks"));
}

}  // namespace sluice::testing
