#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "codelets/kernels/prefetch.h"
#include "codelets/kernels/quantized/gemm.h"

/// How gemm() is cut into tiles, whatever instructions compute one.
namespace sluice::quantized {

/// Some rows by some columns of a strip, over some blocks of depth.
struct Tile {
  const std::byte* digits;  ///< of the first row, from its first block on
  std::int64_t row_bytes;   ///< from one row's digits to the next one's, likewise scales and starts
  const float* scales;      ///< of the first row, of the first block to be multiplied
  const std::int32_t* starts;
  const std::byte* codes;       ///< of the strip, of the first block to be multiplied
  std::int64_t block_bytes;     ///< from one block's codes to the next one's
  std::int64_t step_bytes;      ///< of a step's codes
  const std::byte* row_scales;  ///< those of W that all blocks share; null: each has its own
  std::int64_t first_step;      ///< of depth, of depth_step inputs each
  std::int64_t end_step;
  std::int64_t block_steps;  ///< of each block but the last
  WeightFormat::Scales scale_type;
  bool has_zero_points;
  bool accumulate;            ///< continues the sums in C
  bool exponents_add;         ///< of scales' products, as Kernel::exponents_add() says
  std::int64_t first_column;  ///< in the strip
  float* c;                   ///< of the strip's first column
  std::int64_t c_stride;
  const std::byte* ahead;  ///< memory to fetch meanwhile
  std::int64_t lines;      ///< of it, a step
};

/// Multiplies strip after strip in tiles of up to Kernel::max_rows rows.
///
///   for strip
///     for chunk of depth       stays in the first-level cache, where there are several tiles
///       for tile of rows       Kernel::tile<codes, rows, Fetch>()
///
/// Kernel::exponents_add() looks at what several tiles multiply sums with, once for all of them.
/// A tile is Kernel::columns wide. A single one reads W once; several fetch what lies behind the
/// chunk, each its share. With Fetch a tile fetches what it reads itself ahead of time.
template <class Kernel>
class Multiplication {
 public:
  explicit Multiplication(const Gemm& call)
      : call_(call),
        digits_(call.format, call.in, digit_order(call.arithmetic)),
        layout_(digits_.strip()) {
    if (tiles_high() > 1) look_at_scales();
  }

  void run() const {
    for (std::int64_t strip = 0; strip < call_.strips; ++strip) {
      const std::byte* w = call_.w + strip * layout_.size_bytes();
      for (std::int64_t step = 0; step < num_steps(); step += chunk_steps()) {
        run_chunk(w, step, std::min(step + chunk_steps(), num_steps()),
                  call_.c + strip * strip_columns);
      }
    }
  }

 private:
  std::int64_t num_steps() const { return layout_.depth() / depth_step; }
  std::int64_t block_steps() const { return layout_.block() / depth_step; }
  static constexpr std::int64_t tiles_wide = strip_columns / Kernel::columns;
  std::int64_t tiles_high() const { return (call_.rows + Kernel::max_rows - 1) / Kernel::max_rows; }
  std::int64_t num_tiles() const { return tiles_high() * tiles_wide; }
  /// Whole blocks.
  std::int64_t chunk_steps() const { return num_tiles() == 1 ? num_steps() : Kernel::chunk_steps; }
  bool shares_scales() const { return layout_.num_groups() == 1; }
  std::int64_t block_bytes() const {
    return shares_scales() ? layout_.code_bytes(layout_.block()) : layout_.group_bytes();
  }

  void run_chunk(const std::byte* w, std::int64_t first, std::int64_t end, float* c) const {
    const std::int64_t block = first / block_steps();
    Tile tile{.digits = call_.digits,
              .row_bytes = digits_.row_bytes(),
              .scales = nullptr,
              .starts = nullptr,
              .codes = w + block * block_bytes(),
              .block_bytes = block_bytes(),
              .step_bytes = layout_.code_bytes(depth_step),
              .row_scales = shares_scales() ? w + layout_.scales_offset(0) : nullptr,
              .first_step = first,
              .end_step = end,
              .block_steps = block_steps(),
              .scale_type = call_.format.scales,
              .has_zero_points = call_.format.has_zero_points,
              .accumulate = call_.accumulate || first > 0,
              .exponents_add = false,
              .first_column = 0,
              .c = c,
              .c_stride = call_.c_stride,
              .ahead = tile_end(w, end),
              .lines = 0};
    const bool from_memory = call_.source == StripSource::memory;
    if (from_memory && num_tiles() > 1) {
      const std::int64_t step_lines = (block_bytes() / block_steps() + 63) / 64;
      tile.lines = (step_lines + num_tiles() - 1) / num_tiles();
    }
    if (powers_of_two_) tile.exponents_add = Kernel::exponents_add(tile, least_scale_, most_scale_);
    const bool fetches = from_memory && !core_prefetches_enough();
    std::int64_t left = call_.rows;
    for (std::int64_t high = 0; high < tiles_high(); ++high) {
      const std::int64_t rows = (left + tiles_high() - high - 1) / (tiles_high() - high);
      tile.scales = reinterpret_cast<const float*>(tile.digits + digits_.scales_offset()) + block;
      tile.starts =
          reinterpret_cast<const std::int32_t*>(tile.digits + digits_.starts_offset()) + block;
      for (std::int64_t wide = 0; wide < tiles_wide; ++wide) {
        tile.first_column = wide * Kernel::columns;
        run_tile(tile, rows, fetches && high == 0);
        tile.ahead += tile.lines * (end - first) * 64;
      }
      tile.digits += rows * tile.row_bytes;
      tile.c += rows * tile.c_stride;
      left -= rows;
    }
  }

  /// Where what is read after a chunk begins.
  const std::byte* tile_end(const std::byte* w, std::int64_t end) const {
    return end == num_steps() ? w + layout_.size_bytes() : w + end / block_steps() * block_bytes();
  }

  using Codes = WeightFormat::Codes;
  using Function = void (*)(const Tile&);
  template <Codes codes, bool Fetch>
  static Function function_of(std::int64_t rows) {
    constexpr auto functions = []<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<Function, sizeof...(I)>{
          &Kernel::template tile<codes, static_cast<int>(I) + 1, Fetch>...};
    }
    (std::make_index_sequence<static_cast<std::size_t>(Kernel::max_rows)>());
    return functions[static_cast<std::size_t>(rows - 1)];
  }
  template <bool Fetch>
  static Function function_of(Codes codes, std::int64_t rows) {
    switch (codes) {
      case Codes::int4:
        return function_of<Codes::int4, Fetch>(rows);
      case Codes::int8:
        return function_of<Codes::int8, Fetch>(rows);
      default:
        return function_of<Codes::fp4, Fetch>(rows);
    }
  }
  void run_tile(const Tile& tile, std::int64_t rows, bool fetches) const {
    const Function function = fetches ? function_of<true>(call_.format.codes, rows)
                                      : function_of<false>(call_.format.codes, rows);
    function(tile);
  }

  /// The least and the largest of all scales of x; no powers of two if one is NaN.
  void look_at_scales() {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    std::int32_t most = 0;
    for (std::int64_t row = 0; row < call_.rows; ++row) {
      const auto* bits = reinterpret_cast<const std::int32_t*>(
          call_.digits + row * digits_.row_bytes() + digits_.scales_offset());
      for (std::int64_t block = 0; block < layout_.num_blocks(); ++block) {
        least = std::min(least, bits[block]);
        most = std::max(most, bits[block]);
      }
    }
    least_scale_ = std::bit_cast<float>(least);
    most_scale_ = std::bit_cast<float>(most);
    powers_of_two_ = !std::isnan(most_scale_);
  }

  const Gemm& call_;
  DigitLayout digits_;
  const StripLayout& layout_;
  float least_scale_ = 1;
  float most_scale_ = 1;
  bool powers_of_two_ = false;
};

}  // namespace sluice::quantized
