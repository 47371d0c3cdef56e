// Files that become shorter while they are mapped.
#include "base/watched_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr std::size_t size_bytes = 1 << 16;

/// A file of zeros, mapped.
class Mapped {
 public:
  explicit Mapped(const std::string& path) : path_(path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(ftruncate(file, size_bytes), 0);
    address_ = mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file, 0);
    EXPECT_NE(address_, MAP_FAILED);
    close(file);
  }
  ~Mapped() { munmap(address_, size_bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const void* begin() const { return address_; }
  void cut() const { EXPECT_EQ(truncate(path_.c_str(), 100), 0); }
  int read_at(std::size_t offset) const {
    return static_cast<const volatile unsigned char*>(address_)[offset];
  }

 private:
  std::string path_;
  void* address_ = nullptr;
};

class WatchedFileDeathTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
};

TEST_F(WatchedFileDeathTest, ReadingBehindTheNewEndNamesTheFile) {
  const Mapped other(folder_.file("other"));
  const Mapped mapped(folder_.file("cut"));
  const WatchedFile watched_other(other.begin(), size_bytes, folder_.file("other"));
  const WatchedFile watched(mapped.begin(), size_bytes, folder_.file("cut"));
  EXPECT_EQ(mapped.read_at(size_bytes - 1), 0);
  mapped.cut();
  EXPECT_EQ(mapped.read_at(50), 0) << "what is left can be read";
  EXPECT_EXIT(mapped.read_at(size_bytes - 1), ::testing::ExitedWithCode(1),
              "^sluice: [^\n]*/cut: it became shorter while it was read[^\n]*\n$");
}

TEST_F(WatchedFileDeathTest, OtherMemoryEndsTheProcessAsEver) {
  const Mapped mapped(folder_.file("cut"));
  { const WatchedFile over(mapped.begin(), size_bytes, folder_.file("cut")); }
  mapped.cut();
  EXPECT_EXIT(mapped.read_at(size_bytes - 1), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST_F(WatchedFileDeathTest, WhatTheDynamicLinkerReadsIsTheFileThatItLoads) {
  const Mapped mapped(folder_.file("policy.so"));
  mapped.cut();
  EXPECT_EXIT(
      {
        const LoadedFileScope loading("dir/policy.so");
        mapped.read_at(size_bytes - 1);
      },
      ::testing::ExitedWithCode(1), "^sluice: dir/policy.so: it became shorter");
}

TEST_F(WatchedFileDeathTest, SlotsAreUsedAgain) {
  const Mapped mapped(folder_.file("cut"));
  for (int i = 0; i < 20'000; ++i)
    const WatchedFile brief(mapped.begin(), size_bytes, folder_.file("cut"));
  const WatchedFile watched(mapped.begin(), size_bytes, folder_.file("cut"));
  mapped.cut();
  EXPECT_EXIT(mapped.read_at(size_bytes - 1), ::testing::ExitedWithCode(1), "/cut: it became");
}

}  // namespace
}  // namespace sluice
