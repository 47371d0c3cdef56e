// Where memory really lies, as the system says.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "base/cpu.h"
#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::TemporaryFolder;

void write_node_file(const TemporaryFolder& root, const std::string& name,
                     const std::string& content) {
  const std::string file = "sys/devices/system/node/" + name;
  std::filesystem::create_directories((root.path() / file).parent_path());
  root.write(file, content);
}

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

TEST(NumaTest, OfSeveralNodesEachGetsTwoHugePagesOrSmallOnes) {
  const std::vector<int> two = {some_node(), some_node()};  // in turn, as two are
  const Buffer few(4 * huge_page_bytes - 1);
  const Buffer enough(4 * huge_page_bytes);
  const Buffer of_one_node(huge_page_bytes);
  try {
    interleave(few, two);
    interleave(enough, two);
    interleave(of_one_node, {some_node()});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // a container may forbid it
  }
  for (const Buffer* buffer : {&few, &enough, &of_one_node})
    std::memset(buffer->data(), 1, buffer->size());
  const auto huge = huge_page_bytes_of(enough);
  if (huge.value_or(0) == 0) GTEST_SKIP() << "the system gives no huge pages, or does not say";
  EXPECT_EQ(huge_page_bytes_of(few), 0U);
  EXPECT_GT(huge_page_bytes_of(of_one_node).value(), 0U);
}

TEST(NumaTest, PartsBeginAtWholePages) {
  const std::vector<NodeShare> thirds = {{0, 1.0 / 3}, {1, 1.0 / 3}, {2, 1.0 / 3}};
  EXPECT_EQ(first_pages(9, thirds), (std::vector<std::uint64_t>{0, 3, 6, 9}));
  EXPECT_EQ(first_pages(10, thirds), (std::vector<std::uint64_t>{0, 3, 7, 10}));
  EXPECT_EQ(first_pages(1, thirds), (std::vector<std::uint64_t>{0, 0, 1, 1}));
  EXPECT_EQ(first_pages(0, thirds), (std::vector<std::uint64_t>{0, 0, 0, 0}));
  EXPECT_EQ(first_pages(100, {{0, 0.25}, {1, 0.75}}), (std::vector<std::uint64_t>{0, 25, 100}));
}

TEST(NumaTest, EachPartLiesOnItsNode) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const int node = some_node();
  const Buffer buffer(1000 * page_bytes);
  try {
    bind_parts(buffer, {{node, 0.25}, {node, 0.75}});
    std::memset(buffer.data(), 1, buffer.size());
    EXPECT_EQ(pages_by_node(buffer, 1, 0, 250), (std::map<int, std::uint64_t>{{node, 250}}));
    EXPECT_EQ(pages_by_node(buffer, 10, 250, 1000), (std::map<int, std::uint64_t>{{node, 75}}));
    EXPECT_TRUE(pages_by_node(buffer, 1, 250, 250).empty());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // a container may forbid it
  }
  EXPECT_THROW(bind_parts(buffer, {{node, 0.5}, {1000, 0.5}}), Error);
  EXPECT_THROW(bind_parts(buffer, {{node, 0.5}, {1000, 0.5}}, TouchedPages::move), Error);
}

TEST(NumaTest, RefusesANodeThatIsNotThere) {
  const Buffer buffer(1 << 20);
  EXPECT_THROW(interleave(buffer, {1000}), Error);
  EXPECT_THROW(interleave(buffer, {5000}), Error);
}

TEST(NumaTest, KnowsANodeWithoutProcessors) {
  const TemporaryFolder root;
  write_node_file(root, "node0/cpulist", "0-1\n");
  write_node_file(root, "node1/cpulist", "\n");
  EXPECT_TRUE(has_processors(0, root.path()));
  EXPECT_FALSE(has_processors(1, root.path()));
  EXPECT_TRUE(has_processors(2, root.path()));  // it does not say
}

// As Linux 6.1 writes them.
TEST(NumaTest, TakesWhatTheSystemKeepsBackForUsed) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const TemporaryFolder root;
  write_node_file(root, "node2/meminfo",
                  "Node 2 MemTotal:         127676 kB\nNode 2 MemFree:          11372 kB\n"
                  "Node 2 FilePages:          3000 kB\nNode 2 Shmem:             2000 kB\n");
  EXPECT_EQ(free_node_bytes(2, root.path()), 12372U * 1024);
  std::filesystem::create_directories(root.path() / "proc");
  root.write("proc/zoneinfo",
             "Node 1, zone    DMA32\n  pages free     250000\n        high     13428\n"
             "Node 2, zone      DMA\n  pages free     0\n        high     1\n"
             "Node 2, zone    DMA32\n  pages free     2843\n        min      514\n"
             "        low      642\n        high     770\n  pagesets\n    cpu: 0\n"
             "              count: 12\n              high:  321\n              batch: 63\n"
             "Node 2, zone   Normal\n  pages free     0\n        high     0\n"
             "Node 12, zone  Normal\n        high     9\n");
  EXPECT_EQ(free_node_bytes(2, root.path()), 12372U * 1024 - 771 * page_bytes);
}

TEST(NumaTest, KnowsWhatANodeHasFree) {
  const std::uint64_t free_bytes = free_node_bytes(some_node());
  EXPECT_GT(free_bytes, std::uint64_t{1} << 20);
  EXPECT_LT(free_bytes, total_memory_bytes());
  EXPECT_EQ(free_node_bytes(1000), 0U);
}

}  // namespace
}  // namespace sluice
