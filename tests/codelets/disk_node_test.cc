// A file as StarPU's memory node: data is read ahead of use into a limited main memory, given up
// without being written back, and a read that fails poisons the run.
#include "codelets/runtime/disk_node.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <vector>

#include "codelets/runtime/failure.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::size_t weight_bytes = 4 * mebibyte + 100;  // its end is no whole block
constexpr std::uint64_t weight_stride = weight_bytes / 4096 * 4096 + 4096;
constexpr int num_weights = 24;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint64_t word(int weight, std::uint64_t index) {
  return (static_cast<std::uint64_t>(weight) << 48) ^ (index * 0x9E3779B97F4A7C15ULL);
}

/// Sum of a weight's words.
std::uint64_t expected_sum(int weight) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < weight_bytes / 8; ++i) sum += word(weight, i);
  return sum;
}

void write_weights(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  std::vector<std::uint64_t> words(weight_stride / 8);
  for (int weight = 0; weight < num_weights; ++weight) {
    for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = word(weight, i);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(weight_stride));
  }
}

void sum_words(void** buffers, void* to) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(STARPU_VECTOR_GET_PTR(buffers[0]));
  *static_cast<std::uint64_t*>(to) =
      std::accumulate(words, words + weight_bytes / 8, std::uint64_t{0});
}

starpu_codelet& sum_codelet() {
  static starpu_codelet codelet = [] {
    starpu_codelet made;
    starpu_codelet_init(&made);
    made.name = "sum_words";
    made.cpu_funcs[0] = sum_words;
    made.nbuffers = 1;
    made.modes[0] = STARPU_R;
    return made;
  }();
  return codelet;
}

class DiskNodeTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t staging_bytes = 20 * mebibyte;

  DiskNodeTest() {
    write_weights(path);
    disk = std::make_unique<DiskNode>(staging_bytes);
    runtime = std::make_unique<Runtime>(RuntimeOptions{.cores = {0}});
    disk->attach();
    file = DirectFile(path);
    for (int i = 0; i < num_weights; ++i)
      weights.push_back(
          disk->data(file, static_cast<std::uint64_t>(i) * weight_stride, weight_bytes));
  }
  ~DiskNodeTest() override {
    weights.clear();
    runtime.reset();
    disk.reset();
    run_failure().clear();
  }

  /// All weights in turn, `ahead` of them on their way.
  std::vector<std::uint64_t> sums(int ahead) {
    std::vector<std::uint64_t> result(num_weights);
    for (int i = 0; i < num_weights; ++i) {
      for (int next = i == 0 ? 0 : i + ahead; next <= i + ahead && next < num_weights; ++next)
        starpu_data_prefetch_on_node(at(next), STARPU_MAIN_RAM, 1);
      starpu_task* task = starpu_task_create();
      task->cl = &sum_codelet();
      task->handles[0] = at(i);
      task->cl_arg = &result[static_cast<std::size_t>(i)];
      task->synchronous = 1;
      EXPECT_EQ(starpu_task_submit(task), 0);
      EXPECT_EQ(starpu_data_evict_from_node(at(i), STARPU_MAIN_RAM), 0) << "weight " << i;
    }
    return result;
  }
  starpu_data_handle_t at(int weight) { return weights[static_cast<std::size_t>(weight)].get(); }

  const test::TemporaryFolder folder;
  std::string path = folder.file("weights");
  DirectFile file;
  std::unique_ptr<DiskNode> disk;
  std::unique_ptr<Runtime> runtime;
  std::vector<DataHandle> weights;
};

TEST_F(DiskNodeTest, StreamsMoreThanMainMemoryMayHold) {
  const std::string before = content_of(path);
  [[maybe_unused]] const std::uint64_t resident_bytes = anonymous_resident_bytes();
  for (int pass = 0; pass < 2; ++pass) {
    const std::vector<std::uint64_t> result = sums(2);
    for (int i = 0; i < num_weights; ++i)
      ASSERT_EQ(result[static_cast<std::size_t>(i)], expected_sum(i)) << "weight " << i;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take memory themselves
    EXPECT_LT(anonymous_resident_bytes(), resident_bytes + staging_bytes + 4 * mebibyte);
#endif
  }
  EXPECT_LE(disk->memory().num_blocks_made(), staging_bytes / weight_bytes) << "for 48 reads";
  EXPECT_LE(disk->memory().held_bytes(), staging_bytes);
  EXPECT_LE(disk->use().peak_staged_bytes, staging_bytes);
  EXPECT_GT(disk->use().peak_staged_bytes, 2 * weight_bytes) << "nothing came ahead of its use";
  EXPECT_EQ(disk->use().read_bytes, 2 * num_weights * weight_bytes);
  EXPECT_GT(disk->use().read_s, 0);
  EXPECT_TRUE(before == content_of(path)) << "the file was written to";
}

TEST_F(DiskNodeTest, DrainsAndSaysWhyWhenTheFileIsCutShort) {
  ASSERT_EQ(truncate(path.c_str(), 10 * static_cast<off_t>(weight_stride)), 0);
  const std::vector<std::uint64_t> result = sums(2);
  EXPECT_EQ(result[9], expected_sum(9));
  try {
    run_failure().rethrow();
    FAIL() << "the run goes on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cut short"), std::string::npos) << error.what();
  }
}

TEST_F(DiskNodeTest, ReadsOnFromAFileThatWasRemoved) {
  ASSERT_EQ(unlink(path.c_str()), 0);
  const std::vector<std::uint64_t> result = sums(1);
  EXPECT_EQ(result[num_weights - 1], expected_sum(num_weights - 1));
  EXPECT_FALSE(run_failure().happened());
}

TEST(StagingMemoryTest, KeepsLargeBlocksForTheirSizeWithinItsLimit) {
  constexpr std::size_t odd_bytes = 5 * mebibyte + 1;
  StagingMemory memory(16 * mebibyte);
  void* first = memory.take(odd_bytes, false);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % DirectFile::alignment, 0U);
  std::memset(first, 1, odd_bytes);
  memory.give_back(first, odd_bytes);
  EXPECT_EQ(memory.take(odd_bytes, false), first);
  EXPECT_EQ(memory.num_blocks_made(), 1);
  void* second = memory.take(8 * mebibyte, false);
  EXPECT_NE(second, first);
  EXPECT_EQ(memory.held_bytes(), DirectFile::aligned(odd_bytes) + 8 * mebibyte);
  memory.give_back(first, odd_bytes);
  memory.give_back(second, 8 * mebibyte);
  EXPECT_EQ(memory.held_bytes(), DirectFile::aligned(odd_bytes) + 8 * mebibyte);

  void* large = memory.take(10 * mebibyte, false);
  EXPECT_EQ(memory.held_bytes(), 10 * mebibyte) << "10 MiB fit beside neither";
  void* beyond = memory.take(12 * mebibyte, false);
  EXPECT_EQ(memory.held_bytes(), 22 * mebibyte) << "what is in use stays";
  memory.give_back(beyond, 12 * mebibyte);
  EXPECT_EQ(memory.held_bytes(), 10 * mebibyte);
  memory.give_back(large, 10 * mebibyte);

  void* small = memory.take(100, false);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % DirectFile::alignment, 0U);
  EXPECT_EQ(memory.held_bytes(), 10 * mebibyte);
  EXPECT_EQ(memory.num_blocks_made(), 4);
  memory.give_back(small, 100);

  EXPECT_THROW(memory.take(std::size_t{1} << 60, false), std::exception);
  EXPECT_EQ(memory.held_bytes(), 0U) << "what was free went, and what could not be had is not held";
}

}  // namespace
}  // namespace sluice
