#include "tests/support/golden.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice::test {

std::vector<std::string> golden_cases() {
  std::ifstream file(std::string(SLUICE_TEST_DATA_DIR) + "/golden/models/cases.json");
  return nlohmann::json::parse(file).get<std::vector<std::string>>();
}

std::string golden_folder(const std::string& name) {
  return std::string(SLUICE_TEST_DATA_DIR) + "/golden/models/" + name;
}

GoldenFile::GoldenFile(const std::string& folder, const std::string& file)
    : file_(ModelFiles::open(folder).map(file).value()), tensors_(Safetensors::parse(file_)) {}

}  // namespace sluice::test
