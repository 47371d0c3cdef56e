#include "base/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::SmallDisk;
using test::TemporaryFolder;
using testing::expect_error;

std::size_t num_entries(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                                std::filesystem::directory_iterator()));
}

class WriteFileTest : public ::testing::Test {
 protected:
  TemporaryFolder folder;
  const std::string path = folder.file("stats.json");
};

TEST_F(WriteFileTest, WritesAndReplaces) {
  write_file(path, "one, and longer");
  write_file(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(num_entries(folder), 1U);
}

TEST_F(WriteFileTest, FullDiskLeavesWhatWasThere) {
  write_file(path, "old");
  {
    const SmallDisk disk(10);
    expect_error([&] { write_file(path, std::string(100, 'x')); }, {"cannot write", path});
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(num_entries(folder), 1U);
}

TEST_F(WriteFileTest, FolderIsRefused) {
  expect_error([&] { write_file(folder.path().string(), "x"); }, {"cannot write"});
  expect_error([&] { write_file(folder.file("none/x"), "x"); }, {"cannot write", "No such file"});
}

TEST_F(WriteFileTest, DeviceIsWrittenToAndNotReplaced) {
  std::filesystem::create_symlink("/dev/null", folder.file("null"));
  write_file(folder.file("null"), "x");
  EXPECT_TRUE(std::filesystem::is_character_file(folder.file("null")));
  std::filesystem::create_symlink("/dev/full", folder.file("full"));
  expect_error([&] { write_file(folder.file("full"), "x"); }, {"cannot write", "No space left"});
  EXPECT_TRUE(std::filesystem::is_character_file(folder.file("full")));
  EXPECT_EQ(num_entries(folder), 2U);
}

}  // namespace
}  // namespace sluice
