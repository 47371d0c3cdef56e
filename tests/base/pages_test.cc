// Samples of where memory lies, and huge pages, as the system says.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "base/cpu.h"
#include "base/error.h"
#include "base/numa.h"

namespace sluice {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::uint64_t sum_of(const std::map<int, std::uint64_t>& pages) {
  std::uint64_t sum = 0;
  for (const auto& [node, count] : pages) sum += count;
  return sum;
}

TEST(PagesTest, ASampleIsOfEverySoManyth) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const Buffer buffer(10000 * page_bytes + 1);
  EXPECT_EQ(num_pages(buffer), 10001U);
  madvise(buffer.data(), buffer.size(), MADV_NOHUGEPAGE);
  // Of these, every third is looked at: 0, 3, ..., 9999.
  for (std::size_t page = 0; page < 10001; page += 3)
    buffer.data()[page * page_bytes] = std::byte{1};
  try {
    EXPECT_EQ(sum_of(pages_by_node(buffer)), 3334U);
    EXPECT_EQ(sum_of(pages_by_node(buffer, 3)), 3334U);
    EXPECT_EQ(sum_of(pages_by_node(buffer, 9)), 1112U);
    EXPECT_EQ(sum_of(pages_by_node(buffer, 2)), 1667U);  // every sixth
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // a container may forbid it
  }
}

TEST(PagesTest, CountsHugePages) {
  const Buffer small(64 * mebibyte);
  madvise(small.data(), small.size(), MADV_NOHUGEPAGE);
  std::memset(small.data(), 1, small.size());
  const auto none = huge_page_bytes_of(small);
  if (!none) GTEST_SKIP() << "the system does not list a process's memory";
  EXPECT_EQ(*none, 0U);

  const Buffer large(64 * mebibyte);
  EXPECT_EQ(huge_page_bytes_of(large), 0U);  // nothing has touched it
  std::memset(large.data(), 1, large.size());
  const std::uint64_t huge = huge_page_bytes_of(large).value();
  if (huge == 0) GTEST_SKIP() << "the system gives no huge pages";
  EXPECT_EQ(huge % (2 * mebibyte), 0U);
  EXPECT_LE(huge, large.size());
}

}  // namespace
}  // namespace sluice
