#include "base/direct_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

TEST(DirectFileTest, ReadsAnyMemoryAndSize) {
  const test::TemporaryFolder folder;
  std::string content(5 * DirectFile::alignment, ' ');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i % 251);
  std::ofstream(folder.file("weights"), std::ios::binary) << content;
  const DirectFile file(folder.file("weights"));
  std::vector<std::byte> memory(3 * DirectFile::alignment + 300);
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}, std::size_t{8191}}) {
    for (const std::size_t shift : {0, 1, 64}) {
      auto start = reinterpret_cast<std::uintptr_t>(memory.data());
      start = (start + 4095) / 4096 * 4096 - reinterpret_cast<std::uintptr_t>(memory.data());
      if (start + shift + size > memory.size()) continue;
      file.read(8192, size, memory.data() + start + shift);
      EXPECT_EQ(std::memcmp(memory.data() + start + shift, content.data() + 8192, size), 0)
          << size << " bytes, " << shift;
    }
  }
}

TEST(DirectFileTest, ATemporaryFileHasItsRoomAndNoName) {
  const test::TemporaryFolder folder;
  const std::uint64_t size = 5 * DirectFile::alignment;
  const DirectFile file = DirectFile::temporary(folder.path(), size);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto start = [](std::vector<std::byte>& memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + ((at + 4095) / 4096 * 4096 - at);
  };
  std::vector<std::byte> written(size + 2 * DirectFile::alignment);
  std::vector<std::byte> found(size + 2 * DirectFile::alignment, std::byte{1});
  file.read(0, size, start(found));
  EXPECT_EQ(std::count(start(found), start(found) + size, std::byte{0}),
            static_cast<std::ptrdiff_t>(size));
  for (std::size_t i = 0; i < size; ++i) start(written)[i] = static_cast<std::byte>(i % 251);
  // Whole blocks past the page cache, and pieces of blocks through it, which lie side by side.
  file.write(0, 2 * 4096, start(written));
  file.write(2 * 4096, 1000, start(written) + 2 * 4096);
  file.write(2 * 4096 + 1000, size - 2 * 4096 - 1000, start(written) + 2 * 4096 + 1000);
  for (const std::size_t at : {0, 4096, 4097, 2 * 4096 + 999}) {
    file.read(at, size - at, start(found) + at);
    EXPECT_EQ(std::memcmp(start(found) + at, start(written) + at, size - at), 0) << at;
  }
}

TEST(DirectFileTest, ATemporaryFileNeedsAFolder) {
  try {
    DirectFile::temporary("/nonexistent/folder", 1);
    FAIL() << "there is a file";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "/nonexistent/folder: no file can be made there: No such file or directory");
  }
}

TEST(DirectFileTest, NamesAFileThatIsNotThere) {
  EXPECT_THROW(DirectFile("/nonexistent/weights"), Error);
}

}  // namespace
}  // namespace sluice
