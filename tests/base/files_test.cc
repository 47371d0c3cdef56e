#include "base/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

TEST(ReadFileTest, ReadsThatFailHalfwayAreErrors) {
  try {
    read_file("/proc/self/mem");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("cannot read /proc/self/mem: "), 0U) << error.what();
  }
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

/// In a folder that others may write to, somebody can foresee the temporary's name.
TEST_F(WriteFileTest, ALinkAtTheTemporarysNameIsNotFollowed) {
  const std::string other = folder.file("other");
  folder.write("other", "somebody's");
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::filesystem::create_symlink(other, temporary);
  check_writable(path);
  std::filesystem::create_symlink(other, temporary);
  write_file(path, "ours");
  EXPECT_EQ(read_file(other), "somebody's");
  EXPECT_EQ(read_file(path), "ours");
}

class PrivateFoldersTest : public ::testing::Test {
 protected:
  PrivateFoldersTest() : umask_(umask(0)) {}
  ~PrivateFoldersTest() override { umask(umask_); }
  static unsigned mode_of(const std::filesystem::path& path) {
    return static_cast<unsigned>(std::filesystem::status(path).permissions());
  }

  TemporaryFolder folder;

 private:
  mode_t umask_;
};

TEST_F(PrivateFoldersTest, AreForTheUserAlone) {
  const std::filesystem::path path = folder.path() / "a" / "b" / "c";
  EXPECT_FALSE(make_private_folders(path / ""));
  for (const std::filesystem::path& made : {path, path.parent_path(), folder.path() / "a"})
    EXPECT_EQ(mode_of(made), 0700U) << made;
  EXPECT_FALSE(make_private_folders(path));
}

TEST_F(PrivateFoldersTest, LeaveWhatIsThereAsItIs) {
  const std::filesystem::path there = folder.path() / "there";
  ASSERT_EQ(mkdir(there.c_str(), 0755), 0);
  EXPECT_FALSE(make_private_folders(there / "new"));
  EXPECT_EQ(mode_of(there), 0755U);
  EXPECT_EQ(mode_of(there / "new"), 0700U);
}

TEST_F(PrivateFoldersTest, SayWhyNot) {
  folder.write("file", "");
  EXPECT_EQ(make_private_folders(folder.path() / "file"), std::errc::file_exists);
  EXPECT_EQ(make_private_folders(folder.path() / "file" / "x"), std::errc::file_exists);
}

}  // namespace
}  // namespace sluice
