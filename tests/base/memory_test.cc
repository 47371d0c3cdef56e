#include "base/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

TEST(BufferTest, IsZeroedAndPageAligned) {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{63}, std::size_t{4097}, 5 * mebibyte}) {
    const Buffer buffer(size);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(address(buffer.data()) % 4096, 0U);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + size,
                            [](std::byte byte) { return byte == std::byte{0}; }));
    buffer.data()[size - 1] = std::byte{1};
  }
}

TEST(BufferTest, OfNothingIsEmpty) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).size(), 0U);
}

TEST(BufferTest, MovesItsMemory) {
  Buffer first(100);
  first.as<int>()[3] = 42;
  const std::byte* memory = first.data();
  Buffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.size(), 100U);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): moved from means empty
  EXPECT_EQ(first.size(), 0U);

  Buffer third(10);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.as<int>()[3], 42);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move)

  Buffer& same = third;
  third = std::move(same);  // onto itself
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.size(), 100U);
}

TEST(BufferTest, SaysHowMuchCouldNotBeHad) {
  const std::size_t impossible = std::numeric_limits<std::size_t>::max() / 2;
  try {
    const Buffer buffer(impossible);
    FAIL() << "half of the address space was given";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(impossible)), std::string::npos)
        << error.what();
  }
}

TEST(BufferTest, TakesMemoryOnFirstTouchOnly) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer keeps shadow memory of its own for what is touched";
#endif
  const std::uint64_t before = anonymous_resident_bytes();
  const Buffer buffer(2048 * mebibyte);
  EXPECT_LT(anonymous_resident_bytes(), before + 64 * mebibyte);
  std::memset(buffer.data() + 512 * mebibyte, 1, 128 * mebibyte);
  EXPECT_GE(anonymous_resident_bytes(), before + 120 * mebibyte);
  EXPECT_LT(anonymous_resident_bytes(), before + 256 * mebibyte);
  EXPECT_GE(peak_resident_bytes(), before + 120 * mebibyte);
}

TEST(BufferTest, TakesAllItsMemoryWhenAsked) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer keeps shadow memory of its own for what is touched";
#endif
  const std::uint64_t before = anonymous_resident_bytes();
  const Buffer buffer(64 * mebibyte);
  if (madvise(buffer.data(), 4096, MADV_POPULATE_WRITE) != 0)
    GTEST_SKIP() << "this kernel (before Linux 5.14) gives memory on first touch only";
  buffer.commit();
  EXPECT_GE(anonymous_resident_bytes(), before + 63 * mebibyte);
  EXPECT_EQ(buffer.data()[buffer.size() - 1], std::byte{0});
  Buffer().commit();
}

/// Where two, three or four nodes take huge pages in turn, as the kernel does by address.
TEST(BufferTest, LargeOnesGoOnWithTheTurnOfTheLastOne) {
  const auto page_of = [](const Buffer& buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer.data()) / huge_page_bytes;
  };
  const Buffer first(3 * huge_page_bytes + 4097);
  const Buffer small(mebibyte);
  const Buffer second(5 * huge_page_bytes);
  const Buffer third(huge_page_bytes);
  for (const std::uintptr_t num_nodes : {2, 3, 4}) {
    EXPECT_EQ(page_of(second) % num_nodes, (page_of(first) + 3) % num_nodes);
    EXPECT_EQ(page_of(third) % num_nodes, (page_of(first) + 3 + 5) % num_nodes);
  }
}

TEST(BufferTest, LargeOnesStartWithAHugePage) {
  // Sizes that are no whole pages leave the next one anywhere.
  for (const std::size_t size : {huge_page_bytes, huge_page_bytes + 1, 5 * mebibyte + 4097}) {
    const Buffer first(size);
    const Buffer second(size);
    for (const Buffer* buffer : {&first, &second}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % huge_page_bytes, 0U) << size;
      EXPECT_EQ(buffer->size(), size);
      buffer->data()[0] = buffer->data()[size - 1] = std::byte{1};
    }
  }
}

TEST(BufferTest, GivesItsMemoryBack) {
  const std::uint64_t before = anonymous_resident_bytes();
  {
    const Buffer buffer(128 * mebibyte);
    std::memset(buffer.data(), 1, buffer.size());
  }
  EXPECT_LT(anonymous_resident_bytes(), before + 64 * mebibyte);
}

TEST(WorkspaceTest, KeepsTheLargestSizeAskedFor) {
  Workspace workspace;
  std::byte* small = workspace.reserve(1000);
  ASSERT_NE(small, nullptr);
  small[999] = std::byte{7};
  EXPECT_EQ(workspace.reserve(10), small);
  EXPECT_EQ(workspace.reserve(1000), small);
  EXPECT_EQ(small[999], std::byte{7});

  std::byte* large = workspace.reserve(mebibyte);
  EXPECT_EQ(address(large) % 64, 0U);
  large[mebibyte - 1] = std::byte{9};
  EXPECT_EQ(workspace.reserve(1000), large);
}

TEST(MemoryFiguresTest, AreThere) {
  EXPECT_GT(available_memory_bytes(), mebibyte);
  EXPECT_GT(anonymous_resident_bytes(), 0U);
  EXPECT_GE(peak_resident_bytes(), anonymous_resident_bytes());
}

}  // namespace
}  // namespace sluice
