#pragma once

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <cstdint>

#include "codelets/kernels/quantized/avx512.h"
#include "codelets/kernels/quantized/gemm.h"
#include "codelets/kernels/strip_amx.h"

/// gemm() by tiles of AMX-INT8, whose layout of B the lines of codes have once they are bytes
/// (Intel's Architecture Instruction Set Extensions, chapter 3). `Unit` executes its instructions:
/// the CPU, or an emulation of it.
namespace sluice::quantized {

/// Products of up to 16 rows by a strip, block after block.
///
///   for strip
///     for block of depth        its codes become bytes in the first-level cache
///       for 16 rows
///         for 32 columns        4 tiles: upper and lower digits by 2 x 16 columns
template <class Unit>
class AmxMultiplication {
 public:
  explicit AmxMultiplication(const Gemm& call)
      : call_(call),
        digits_(call.format, call.in, DigitOrder::bytes),
        layout_(digits_.strip()),
        tile_rows_(std::min<std::int64_t>(call.rows, strip::amx_tile_rows)),
        inputs_(layout_.block() % 64 == 0 && layout_.depth() % 64 == 0 ? 64 : 32) {}

  void run() const {
    Unit::configure(configuration());
    for (std::int64_t strip = 0; strip < call_.strips; ++strip) {
      for (std::int64_t block = 0; block < layout_.num_blocks(); ++block) run_block(strip, block);
    }
    Unit::release();
  }

 private:
  using Codes = WeightFormat::Codes;

  // The unit's eight tiles.
  template <int Digit, int Wide>
  static constexpr int sum = 2 * Digit + Wide;
  template <int Digit>
  static constexpr int of_a = 4 + Digit;
  template <int Wide>
  static constexpr int of_b = 6 + Wide;

  /// A block of the strip's codes as bytes [depth / 4][64][4], and what results are made with.
  struct Block {
    alignas(64) std::uint8_t codes[max_block * strip_columns];
    alignas(64) std::int32_t sums[4][strip::amx_tile_rows][16];
    const std::uint8_t* b;  ///< codes, or the strip's own
    const std::byte* scales;
    const std::byte* zeros;
    std::int64_t index, first, depth;
  };

  strip::AmxConfiguration configuration() const {
    strip::AmxConfiguration wanted;
    for (std::size_t tile = 0; tile < 8; ++tile) {
      wanted.rows.at(tile) = static_cast<std::uint8_t>(tile < 6 ? tile_rows_ : inputs_ / 4);
      wanted.row_bytes.at(tile) = static_cast<std::uint16_t>(tile == 4 || tile == 5 ? inputs_ : 64);
    }
    return wanted;
  }

  void run_block(std::int64_t strip, std::int64_t index) const {
    Block block;
    block.index = index;
    block.first = index * layout_.block();
    block.depth = std::min(layout_.block(), layout_.depth() - block.first);
    const std::byte* w = call_.w + strip * layout_.size_bytes();
    const std::int64_t group = block.first / layout_.group();
    const std::byte* from = w + group * layout_.group_bytes() +
                            layout_.code_bytes(block.first - group * layout_.group());
    block.scales = w + layout_.scales_offset(group);
    block.zeros = call_.format.has_zero_points ? w + layout_.zero_points_offset(group) : nullptr;
    block.b = block.codes;
    if (call_.format.codes == Codes::int8) {
      block.b = reinterpret_cast<const std::uint8_t*>(from);
    } else if (call_.format.codes == Codes::int4) {
      unpack<Codes::int4>(from, block);
    } else {
      unpack<Codes::fp4>(from, block);
    }
    // What is read next is fetched meanwhile, a share by each 16 rows.
    const std::byte* ahead = from + layout_.code_bytes(block.depth);
    const std::int64_t groups = (call_.rows + tile_rows_ - 1) / tile_rows_;
    const std::int64_t share = (layout_.code_bytes(block.depth) / 64 + groups - 1) / groups * 64;
    for (std::int64_t row = 0; row < call_.rows; row += tile_rows_) {
      if (call_.source == StripSource::memory) {
        for (std::int64_t i = 0; i < share; i += 64) __builtin_prefetch(ahead + i, 0, 2);
        ahead += share;
      }
      // The last ones begin with rows that are done, so that tiles keep their size.
      const std::int64_t first = std::min(row, call_.rows - tile_rows_);
      for (int half = 0; half < 2; ++half) {
        multiply(block, first, half);
        finish(block, first, row - first, half, call_.c + strip * strip_columns);
      }
    }
  }

  template <Codes codes>
  [[SLUICE_VNNI_TARGET]] static void unpack(const std::byte* from, Block& block) {
    std::uint8_t* to = block.codes;
    for (std::int64_t i = 0; i < block.depth; i += 8, from += line, to += 2 * line) {
      for (int j = 0; j < 4; ++j) {
        const __m512i word = _mm512_load_si512(from + 64 * j);
        _mm512_store_si512(to + 64 * j, byte_codes<codes>(word, 0));
        _mm512_store_si512(to + line + 64 * j, byte_codes<codes>(word, 1));
      }
    }
  }

  /// 16 rows from `first` on by 32 columns.
  void multiply(Block& block, std::int64_t first, int half) const {
    Unit::template zero<sum<0, 0>>();
    Unit::template zero<sum<0, 1>>();
    Unit::template zero<sum<1, 0>>();
    Unit::template zero<sum<1, 1>>();
    const std::byte* a = call_.digits + first * digits_.row_bytes() + 2 * block.first;
    const std::uint8_t* b = block.b + half * std::int64_t{128};
    for (std::int64_t i = 0; i < block.depth; i += inputs_) {
      Unit::template load<of_a<0>>(a + i, digits_.row_bytes());
      Unit::template load<of_a<1>>(a + block.depth + i, digits_.row_bytes());
      Unit::template load<of_b<0>>(b + i / 4 * line, line);
      Unit::template load<of_b<1>>(b + i / 4 * line + 64, line);
      Unit::template multiply_bytes<sum<0, 0>, of_a<0>, of_b<0>>();
      Unit::template multiply_bytes<sum<1, 0>, of_a<1>, of_b<0>>();
      Unit::template multiply_bytes<sum<0, 1>, of_a<0>, of_b<1>>();
      Unit::template multiply_bytes<sum<1, 1>, of_a<1>, of_b<1>>();
    }
    Unit::template store<sum<0, 0>>(block.sums[0], 64);
    Unit::template store<sum<0, 1>>(block.sums[1], 64);
    Unit::template store<sum<1, 0>>(block.sums[2], 64);
    Unit::template store<sum<1, 1>>(block.sums[3], 64);
  }

  /// Adds the sums of rows from `skipped` on to C.
  [[SLUICE_VNNI_TARGET]] void finish(const Block& block, std::int64_t first, std::int64_t skipped,
                                     int half, float* c) const {
    const bool accumulate = call_.accumulate || block.index > 0;
    for (int wide = 0; wide < 2; ++wide) {
      const int j = 2 * half + wide;
      const __m512 scale = load_scales(call_.format.scales, block.scales, j);
      const __m512i zero =
          block.zeros != nullptr ? load_zero_points(block.zeros, j) : _mm512_setzero_si512();
      for (std::int64_t row = skipped; row < tile_rows_; ++row) {
        const std::byte* digits = call_.digits + (first + row) * digits_.row_bytes();
        const __m512i start = _mm512_set1_epi32(
            reinterpret_cast<const std::int32_t*>(digits + digits_.starts_offset())[block.index]);
        const __m512i upper = _mm512_load_si512(block.sums[wide][row]);
        const __m512i lower = _mm512_load_si512(block.sums[2 + wide][row]);
        __m512i total = _mm512_add_epi32(_mm512_maskz_slli_epi32(all_lanes, upper, 8), lower);
        total = block.zeros != nullptr ? _mm512_sub_epi32(total, _mm512_mullo_epi32(zero, start))
                                       : _mm512_add_epi32(total, start);
        const __m512 product =
            _mm512_mul_ps(scale, _mm512_set1_ps(reinterpret_cast<const float*>(
                                     digits + digits_.scales_offset())[block.index]));
        float* to = c + (first + row) * call_.c_stride + std::int64_t{16} * j;
        const __m512 before = accumulate ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
        _mm512_storeu_ps(
            to, _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(all_lanes, total), product, before));
      }
    }
  }

  const Gemm& call_;
  DigitLayout digits_;
  const StripLayout& layout_;
  std::int64_t tile_rows_;
  std::int64_t inputs_;  ///< that one instruction multiplies
};

}  // namespace sluice::quantized

#endif
