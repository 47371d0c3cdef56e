#include "tests/support/golden.h"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sluice::test {

std::string data_folder() {
  const char* elsewhere = std::getenv("SLUICE_TEST_DATA");  // NOLINT(concurrency-mt-unsafe)
  return elsewhere == nullptr ? SLUICE_TEST_DATA_DIR : elsewhere;
}

std::vector<std::string> golden_cases(const std::string& kind) {
  std::ifstream file(golden_folder("cases.json", kind));
  return nlohmann::json::parse(file).get<std::vector<std::string>>();
}

std::string golden_folder(const std::string& name, const std::string& kind) {
  return data_folder() + "/golden/" + kind + "/" + name;
}

GoldenFile::GoldenFile(const std::string& folder, const std::string& file)
    : file_(ModelFiles::open(folder).map(file).value()), tensors_(Safetensors::parse(file_)) {}

}  // namespace sluice::test
