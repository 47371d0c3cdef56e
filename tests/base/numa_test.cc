// Where memory really lies, as the system says.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "base/cpu.h"
#include "base/error.h"

namespace sluice {
namespace {

int some_node() { return read_cpu_topology().numa_nodes.front().os_index; }

TEST(NumaTest, PagesLieWhereTheyWereBoundAndTouchedOnly) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const Buffer buffer(5000 * page_bytes);
  std::map<int, std::uint64_t> before;
  try {
    interleave(buffer, {some_node()});
    before = pages_by_node(buffer);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // a container may forbid it
  }
  EXPECT_TRUE(before.empty());
  std::memset(buffer.data(), 1, buffer.size());
  EXPECT_EQ(pages_by_node(buffer), (std::map<int, std::uint64_t>{{some_node(), 5000}}));
}

TEST(NumaTest, RefusesANodeThatIsNotThere) {
  const Buffer buffer(1 << 20);
  EXPECT_THROW(interleave(buffer, {1000}), Error);
  EXPECT_THROW(interleave(buffer, {5000}), Error);
}

TEST(NumaTest, KnowsWhatANodeHasFree) {
  const std::uint64_t free_bytes = free_node_bytes(some_node());
  EXPECT_GT(free_bytes, std::uint64_t{1} << 20);
  EXPECT_LT(free_bytes, total_memory_bytes());
  EXPECT_EQ(free_node_bytes(1000), 0U);
}

}  // namespace
}  // namespace sluice
