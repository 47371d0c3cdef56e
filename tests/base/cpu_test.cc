#include "base/cpu.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

std::uint64_t beyond(std::uint64_t cache_bytes) {
  CpuTopology topology;
  topology.last_level_cache_bytes = cache_bytes;
  return bytes_beyond_caches(topology);
}

TEST(CpuTest, BytesBeyondCachesAreFourToEightTimesAsMany) {
  EXPECT_EQ(beyond(32 * mebibyte), 256 * mebibyte) << "eight times";
  EXPECT_EQ(beyond(128 * mebibyte), 1024 * mebibyte);
  EXPECT_EQ(beyond(200 * mebibyte), 1024 * mebibyte) << "1 GiB is enough";
  EXPECT_EQ(beyond(260 * mebibyte), 1040 * mebibyte) << "four times";
  EXPECT_EQ(beyond(0), 0U) << "no cache is known";
}

}  // namespace
}  // namespace sluice
