#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

using Ids = std::vector<std::int32_t>;

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Reads ids.bin: for each line a count and as many ids, all of them varints.
class IdsReader {
 public:
  explicit IdsReader(std::string bytes) : bytes_(std::move(bytes)) {}

  Ids next_line() {
    Ids ids(number());
    for (auto& id : ids) id = static_cast<std::int32_t>(number());
    return ids;
  }

 private:
  std::uint32_t number() {
    std::uint32_t value = 0;
    for (unsigned shift = 0; pos_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(bytes_[pos_++]);
      value |= (byte & 0x7FU) << shift;
      if (byte < 0x80) break;
    }
    return value;
  }

  std::string bytes_;
  std::size_t pos_ = 0;
};

}  // namespace sluice::test
