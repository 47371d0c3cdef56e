#include "codelets/cuda/emulation/emulation.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "codelets/cuda/device.h"

namespace sluice::cuda {
namespace {

/// Sums of blocks of `values`, by shuffles within warps and shared memory between them.
__global__ void sum_blocks(const int* values, int count, int* sums) {
  __shared__ int of_warps[32];
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  int sum = i < count ? values[i] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sums[blockIdx.x] += of_warps[warp];
}

TEST(CudaEmulationTest, SumsThroughShufflesAndSharedMemory) {
  std::vector<int> values(1000);
  std::iota(values.begin(), values.end(), 1);
  std::vector<int> sums(8);
  launch("sum_blocks", sum_blocks, {.blocks = dim3(8), .threads = dim3(128)}, nullptr,
         values.data(), 1000, sums.data());
  EXPECT_EQ(sums.front(), 128 * 129 / 2);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0), 1000 * 1001 / 2);
}

/// Every second lane shuffles among its like; some threads leave before the barrier.
__global__ void split_warps(int* result) {
  int* shared = dynamic_shared<int>();
  const int i = static_cast<int>(threadIdx.x);
  const unsigned mask = i % 2 == 0 ? 0x55555555U : 0xaaaaaaaaU;
  int value = i;
  for (int step = 2; step < 32; step *= 2) value += __shfl_xor_sync(mask, value, step);
  if (i >= 48) return;
  shared[i] = value;
  __syncthreads();
  result[i] = shared[47 - i];
}

TEST(CudaEmulationTest, MasksAndThreadsThatEndDoNotHoldTheOthers) {
  std::vector<int> result(48);
  launch("split_warps", split_warps,
         {.blocks = dim3(1), .threads = dim3(64), .dynamic_bytes = 48 * sizeof(int)}, nullptr,
         result.data());
  const auto expected = [](int i) { return i % 2 + i / 32 * 32; };  // smallest lane of its kind
  for (int i = 0; i < 48; ++i) {
    const int first = expected(47 - i);
    int sum = 0;
    for (int lane = first; lane < first / 32 * 32 + 32; lane += 2) sum += lane;
    EXPECT_EQ(result[static_cast<std::size_t>(i)], sum) << i;
  }
}

__global__ void wait_apart() {
  if (threadIdx.x < 16) __syncwarp(0x0001ffffU);
  if (threadIdx.x == 16) __syncthreads();
}

TEST(CudaEmulationDeathTest, ThreadsThatWaitInVainAreNamed) {
  EXPECT_DEATH(launch("wait_apart", wait_apart, {.blocks = dim3(1), .threads = dim3(32)}, nullptr),
               "kernel wait_apart: its threads wait for each other in vain");
}

/// The last thread of a block forgets what all have to do.
__global__ void wait_for_last_but_one(int* result) {
  let_next_start();
  if (threadIdx.x + 1 < blockDim.x) wait_for_last();
  result[threadIdx.x] = 1;
}

TEST(CudaEmulationDeathTest, AThreadThatStartsEarlyAndDoesNotWaitIsNamed) {
  std::vector<int> result(32);
  const auto run = [&](bool early) {
    launch("wait_for_last_but_one", wait_for_last_but_one,
           {.blocks = dim3(1), .threads = dim3(32), .early = early}, nullptr, result.data());
  };
  run(false);
  EXPECT_EQ(result.back(), 1);
  EXPECT_DEATH(run(true), "kernel wait_for_last_but_one: it is launched early");
}

__global__ void read_unwritten(float* result) { *result = *dynamic_shared<float>(); }

TEST(CudaEmulationTest, MemoryThatNobodyWroteIsNotANumber) {
  float result = 0;
  launch("read_unwritten", read_unwritten, {.dynamic_bytes = 16}, nullptr, &result);
  EXPECT_NE(result, result);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(&result, memory, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_NE(result, result);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(CudaEmulationTest, FreedMemoryIsGivenAgain) {
  std::size_t before_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&before_bytes, &total_bytes), cudaSuccess);
  std::array<void*, 4> memory{};
  // Freed in an order in which blocks merge on either side.
  for (int round = 0; round < 3; ++round) {
    for (void*& block : memory) ASSERT_EQ(cudaMalloc(&block, total_bytes / 64), cudaSuccess);
    void* too_much = nullptr;
    EXPECT_EQ(cudaMalloc(&too_much, total_bytes), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    for (const std::size_t i : {1U, 3U, 2U, 0U}) EXPECT_EQ(cudaFree(memory.at(i)), cudaSuccess);
    std::size_t after_bytes = 0;
    ASSERT_EQ(cudaMemGetInfo(&after_bytes, &total_bytes), cudaSuccess);
    EXPECT_EQ(after_bytes, before_bytes);
  }
}

TEST(CudaEmulationDeathTest, TheHostDoesNotReadDeviceMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  EXPECT_DEATH(*static_cast<volatile int*>(memory) = 1, "");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(CudaEmulationDeathTest, CopiesSayTheirSides) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  std::array<int, 2> host{};
  EXPECT_DEATH(cudaMemcpy(host.data(), memory, 4, cudaMemcpyHostToDevice), "device side");
  EXPECT_DEATH(cudaMemcpy(memory, host.data(), 8, cudaMemcpyHostToDevice), "device side");
  EXPECT_DEATH(cudaMemcpy(memory, memory, 4, cudaMemcpyDeviceToHost), "host side");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace sluice::cuda
