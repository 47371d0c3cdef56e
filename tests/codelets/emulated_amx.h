#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codelets/kernels/flush_subnormals.h"
#include "codelets/kernels/strip_amx.h"

namespace sluice::test {

/// AMX as Intel's manual describes it (Architecture Instruction Set Extensions, chapter 3).
class EmulatedAmx {
 public:
  static void configure(const strip::AmxConfiguration& wanted) {
    ASSERT_EQ(wanted.palette, 1);
    configuration = wanted;
    for (auto& tile : tiles) tile = {};
    in_use = true;
  }
  static void release() { in_use = false; }

  template <int Tile>
  static void zero() {
    ASSERT_TRUE(exists(Tile));
    tiles[Tile] = {};
  }
  template <int Tile>
  static void load(const void* from, std::int64_t stride_bytes) {
    ASSERT_TRUE(exists(Tile));
    tiles[Tile] = {};
    for (std::int64_t row = 0; row < rows(Tile); ++row) {
      std::memcpy(tiles[Tile].at(static_cast<std::size_t>(row)).data(),
                  static_cast<const std::byte*>(from) + row * stride_bytes, row_bytes(Tile));
    }
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride_bytes) {
    ASSERT_TRUE(exists(Tile));
    for (std::int64_t row = 0; row < rows(Tile); ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride_bytes,
                  tiles[Tile].at(static_cast<std::size_t>(row)).data(), row_bytes(Tile));
    }
  }
  /// TDPBF16PS
  template <int Sum, int A, int B>
  static void multiply() {
    ASSERT_TRUE(exists(Sum) && exists(A) && exists(B));
    ASSERT_EQ(rows(Sum), rows(A));
    ASSERT_EQ(row_bytes(Sum), row_bytes(B));
    ASSERT_EQ(row_bytes(A), 4U * static_cast<std::size_t>(rows(B)));
    [[maybe_unused]] const FlushSubnormals flush;
    for (std::size_t m = 0; m < static_cast<std::size_t>(rows(A)); ++m) {
      for (std::size_t n = 0; n < row_bytes(B) / 4; ++n) {
        float even = 0;
        float odd = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(rows(B)); ++k) {
          const std::uint32_t a = word(A, m, k);
          const std::uint32_t b = word(B, k, n);
          even = std::fma(lower(a), lower(b), even);
          odd = std::fma(upper(a), upper(b), odd);
        }
        volatile const float both = even + odd;  // not one of the sums further on
        float sum = 0;
        std::memcpy(&sum, &tiles[Sum][m][4 * n], sizeof(sum));
        sum += both;
        std::memcpy(&tiles[Sum][m][4 * n], &sum, sizeof(sum));
      }
    }
  }

  /// TDPBSUD
  template <int Sum, int A, int B>
  static void multiply_bytes() {
    ASSERT_TRUE(exists(Sum) && exists(A) && exists(B));
    ASSERT_EQ(rows(Sum), rows(A));
    ASSERT_EQ(row_bytes(Sum), row_bytes(B));
    ASSERT_EQ(row_bytes(A), 4U * static_cast<std::size_t>(rows(B)));
    for (std::size_t m = 0; m < static_cast<std::size_t>(rows(A)); ++m) {
      for (std::size_t n = 0; n < row_bytes(B) / 4; ++n) {
        std::int32_t sum = 0;
        std::memcpy(&sum, &tiles[Sum][m][4 * n], sizeof(sum));
        for (std::size_t k = 0; k < row_bytes(A); ++k) {
          sum += static_cast<std::int8_t>(tiles[A][m][k]) *
                 static_cast<std::int32_t>(tiles[B][k / 4][4 * n + k % 4]);
        }
        std::memcpy(&tiles[Sum][m][4 * n], &sum, sizeof(sum));
      }
    }
  }
  static bool is_released() { return !in_use; }

 private:
  using Tile = std::array<std::array<std::byte, 64>, 16>;

  static std::int64_t rows(int tile) {
    return configuration.rows.at(static_cast<std::size_t>(tile));
  }
  static std::size_t row_bytes(int tile) {
    return configuration.row_bytes.at(static_cast<std::size_t>(tile));
  }
  static bool exists(int tile) {
    return in_use && tile < 8 && rows(tile) > 0 && row_bytes(tile) > 0;
  }
  static std::uint32_t word(int tile, std::size_t row, std::size_t at) {
    std::uint32_t result = 0;
    std::memcpy(&result, &tiles[static_cast<std::size_t>(tile)][row][4 * at], sizeof(result));
    return result;
  }
  static float lower(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float upper(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); }

  static inline strip::AmxConfiguration configuration;
  static inline std::array<Tile, 8> tiles;
  static inline bool in_use = false;
};

}  // namespace sluice::test
