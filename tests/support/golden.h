#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/files.h"
#include "models/safetensors.h"

namespace sluice::test {

/// Where the tests' data are: this source tree's folder, or what SLUICE_TEST_DATA says.
std::string data_folder();
/// The names of the model folders under tests/golden/models, or another folder there.
std::vector<std::string> golden_cases(const std::string& kind = "models");
/// One as part of a test's name, for INSTANTIATE_TEST_SUITE_P.
template <typename TestParamInfo>
std::string golden_test_name(const TestParamInfo& of) {
  std::string name = of.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
/// Folder of one case.
std::string golden_folder(const std::string& name, const std::string& kind = "models");

/// A safetensors file of expected values, of any element type.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& folder, const std::string& file);
  bool contains(const std::string& tensor) const { return tensors_.tensors().contains(tensor); }
  std::vector<float> floats(const std::string& tensor) const { return read<float>(tensor, "F32"); }
  std::vector<double> doubles(const std::string& tensor) const {
    return read<double>(tensor, "F64");
  }
  std::vector<std::int32_t> ints(const std::string& tensor) const {
    return read<std::int32_t>(tensor, "I32");
  }

 private:
  template <typename T>
  std::vector<T> read(const std::string& tensor, const std::string& dtype) const {
    const Safetensors::Tensor& entry = tensors_.tensors().at(tensor);
    if (entry.dtype != dtype) throw Error("{} is {}, not {}", tensor, entry.dtype, dtype);
    std::vector<T> values((entry.end - entry.begin) / sizeof(T));
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file_.bytes().data(), sizeof(header_bytes));
    std::memcpy(values.data(), file_.bytes().data() + 8 + header_bytes + entry.begin,
                entry.end - entry.begin);
    return values;
  }

  FileBytes file_;
  Safetensors tensors_;
};

}  // namespace sluice::test
