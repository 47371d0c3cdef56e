// What limits of memory and processors leave, from files as Linux writes them.
#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "base/memory.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

class CgroupTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((root.path() / name).parent_path());
    root.write(name, content);
  }
  std::uint64_t available() const { return cgroup_available_bytes(root.path()); }
  int cores() const { return cgroup_quota_cores(root.path()); }

  test::TemporaryFolder root;
};

TEST_F(CgroupTest, IsUnlimitedWithoutGroups) {
  EXPECT_EQ(available(), unlimited);
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available(), unlimited);
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(available(), unlimited);
}

TEST_F(CgroupTest, KnowsTheLimitOfItsOwnGroup) {
  write("proc/self/cgroup", "0::/user.slice/job\n");
  write("sys/fs/cgroup/user.slice/job/memory.max", "1000000\n");
  write("sys/fs/cgroup/user.slice/job/memory.current", "300000\n");
  EXPECT_EQ(available(), 700000U);
}

TEST_F(CgroupTest, TakesFilesThatNobodyReadsForLeft) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "1000000\n");
  write("sys/fs/cgroup/job/memory.current", "900000\n");
  write("sys/fs/cgroup/job/memory.stat", "anon 100000\nactive_file 50000\ninactive_file 750000\n");
  EXPECT_EQ(available(), 850000U);
}

TEST_F(CgroupTest, TheTightestOfTheGroupsAroundItCounts) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  write("sys/fs/cgroup/a/memory.max", "500\n");
  write("sys/fs/cgroup/a/memory.current", "400\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "400\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "1000\n");
  write("sys/fs/cgroup/a/b/c/memory.current", "400\n");
  EXPECT_EQ(available(), 100U);
  write("sys/fs/cgroup/a/memory.current", "600\n");  // a limit that was lowered below what is used
  EXPECT_EQ(available(), 0U);
}

TEST_F(CgroupTest, KnowsVersionOne) {
  write("proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,cpuacct:/other\n4:hugetlb,memory:/jobs/7\n0::/\n");
  write("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "4096000\n");
  write("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "4000000\n");
  write("sys/fs/cgroup/memory/jobs/7/memory.stat",
        "cache 7\ninactive_file 1\ntotal_inactive_file 1000000\n");
  EXPECT_EQ(available(), 1096000U);
}

// A container's name for its group is from outside, where it sees only the group itself.
TEST_F(CgroupTest, ReadsTheTopWhereItsOwnGroupIsNotToBeSeen) {
  write("proc/self/cgroup", "4:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n");
  EXPECT_EQ(available(), 1500U);
}

TEST_F(CgroupTest, QuotaIsRoundedDownAndAtLeastOne) {
  EXPECT_EQ(cores(), 0);
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(cores(), 0);
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0);
  write("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  EXPECT_EQ(cores(), 2);
  write("sys/fs/cgroup/job/cpu.max", "199999 100000\n");
  EXPECT_EQ(cores(), 1);
  write("sys/fs/cgroup/job/cpu.max", "5000 100000\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(CgroupTest, TheTightestQuotaOfTheGroupsAroundItCounts) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  write("sys/fs/cgroup/a/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "100000 50000\n");
  write("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 2);
  write("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(CgroupTest, KnowsQuotasOfVersionOne) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/jobs/7\n4:memory:/other\n0::/\n");
  write("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 0);
  write("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "350000\n");
  write("sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 3);
}

TEST_F(CgroupTest, FindsVersionOneUnderTheNamesOfAllItsControllers) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/0123\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(CgroupTest, BoundsWhatIsAvailable) {
  EXPECT_LE(available_memory_bytes(), cgroup_available_bytes());
}

}  // namespace
}  // namespace sluice
