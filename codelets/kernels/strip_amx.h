#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/memory.h"
#include "codelets/kernels/strip_kernels.h"
#include "codelets/kernels/strip_tiles.h"

/// strip_gemm() by tiles of AMX, whose layout of B strips have as they are (Intel's Architecture
/// Instruction Set Extensions, chapter 3). `Unit` executes its instructions: the CPU, or an
/// emulation of it.
namespace sluice::strip {

/// A tile: up to 16 rows of 64 bytes.
constexpr std::int64_t amx_tile_rows = 16;
constexpr std::int64_t amx_tile_bytes = 64;
static_assert(amx_step_pairs == amx_tile_rows);

/// What LDTILECFG reads.
struct alignas(64) AmxConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> row_bytes{};
  std::array<std::uint8_t, 16> rows{};
};
static_assert(sizeof(AmxConfiguration) == 64);

/// This thread's tiles in use, by one kind of kernel.
template <class Unit>
class AmxTiles {
 public:
  AmxTiles() { configured_rows = 0; }
  ~AmxTiles() { Unit::release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  /// Unless they are: `configuration(num_rows)` says how.
  template <class Configuration>
  static void configure_for(std::int64_t num_rows, Configuration&& configuration) {
    if (configured_rows != num_rows) Unit::configure(configuration(num_rows));
    configured_rows = num_rows;
  }

 private:
  static inline thread_local std::int64_t configured_rows = 0;
};

/// Products of `High` groups of up to 16 rows by `Wide` groups of 16 columns.
template <class Unit, int High, int Wide>
struct AmxKernel {
  struct Operands {
    const std::uint16_t* a;
    std::int64_t a_stride;
    float* c;
    std::int64_t c_stride;
  };
  static constexpr bool has_tiles_by_lines = false;
  static constexpr std::int64_t streams = 1;
  static constexpr std::int64_t pair_bytes = 4 * strip_columns;
  static constexpr std::int64_t columns = amx_tile_rows * Wide;
  static constexpr std::int64_t max_rows = amx_tile_rows * High;

  /// Rows as they lie; a copy, if the last step goes beyond their end, of which it is zeros.
  static Operands operands(const StripGemm& call, const Block& block) {
    const std::uint16_t* from = call.a + 2 * block.first;
    if (block.turns % amx_step_pairs == 0) return {from, call.a_stride, call.c, call.c_stride};
    thread_local Workspace scratch;
    const std::int64_t count = 2 * block.turns;
    const std::int64_t stride =
        2 * ((block.turns + amx_step_pairs - 1) / amx_step_pairs * amx_step_pairs);
    auto* copy = reinterpret_cast<std::uint16_t*>(
        scratch.reserve(static_cast<std::size_t>(call.rows * stride) * sizeof(std::uint16_t)));
    for (std::int64_t row = 0; row < call.rows; ++row) {
      std::uint16_t* to = copy + row * stride;
      std::fill(std::copy_n(from + row * call.a_stride, count, to), to + stride, 0);
    }
    return {copy, stride, call.c, call.c_stride};
  }

  template <int Rows, int Lines, bool Near>
  static void tile(const Operands& rows, const std::byte* strip, const Depth& depth) {
    AmxTiles<Unit>::configure_for(Rows, configuration);
    if constexpr (Rows > amx_tile_rows) {
      multiply<2, Near>(rows, strip, depth);
    } else {
      multiply<1, Near>(rows, strip, depth);
    }
  }

 private:
  // The unit's eight tiles: sums, then rows of A, then B.
  template <int Up, int Left>
  static constexpr int sum = Up* Wide + Left;
  template <int Up>
  static constexpr int of_a = High* Wide + Up;
  static constexpr int num_of_b = 8 - High * Wide - High;
  template <int Left>
  static constexpr int of_b = High* Wide + High + Left % num_of_b;

  static AmxConfiguration configuration(std::int64_t num_rows) {
    AmxConfiguration wanted;
    const auto set = [&](int tile, std::int64_t of) {
      wanted.rows.at(static_cast<std::size_t>(tile)) = static_cast<std::uint8_t>(of);
      wanted.row_bytes.at(static_cast<std::size_t>(tile)) = of > 0 ? amx_tile_bytes : 0;
    };
    for (int up = 0; up < High; ++up) {
      const std::int64_t of =
          std::clamp<std::int64_t>(num_rows - up * amx_tile_rows, 0, amx_tile_rows);
      for (int left = 0; left < Wide; ++left) set(up * Wide + left, of);
      set(High * Wide + up, of);
    }
    for (int b = 0; b < num_of_b; ++b) set(High * Wide + High + b, amx_tile_rows);
    return wanted;
  }

  /// `Groups` of rows of A.
  template <int Groups, bool Near>
  static void multiply(const Operands& rows, const std::byte* strip, const Depth& depth) {
    const std::int64_t c_bytes = rows.c_stride * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t a_bytes = rows.a_stride * static_cast<std::int64_t>(sizeof(std::uint16_t));
    const auto each_sum = [&]<class Work>(Work&& work) {
      for_each<Groups>([&]<int Up>() {
        for_each<Wide>([&]<int Left>() {
          work.template operator()<sum<Up, Left>>(rows.c + Up * amx_tile_rows * rows.c_stride +
                                                  Left * amx_tile_rows);
        });
      });
    };
    each_sum([&]<int Tile>(const float* c) {
      depth.accumulate ? Unit::template load<Tile>(c, c_bytes) : Unit::template zero<Tile>();
    });
    for (std::int64_t pair = 0; pair < depth.turns; pair += amx_step_pairs) {
      const std::byte* b = strip + pair * pair_bytes;
      for (std::int64_t line = 0; line < depth.lines * amx_step_pairs; ++line) {
        __builtin_prefetch(depth.ahead + 64 * (depth.lines * pair + line), 0, 2);
      }
      if constexpr (Near) {
        for (std::int64_t row = 0; row < amx_step_pairs; ++row) {
          for (int left = 0; left < Wide; ++left) {
            __builtin_prefetch(b + row * pair_bytes + near_bytes + left * amx_tile_bytes, 0, 3);
          }
        }
      }
      for_each<Groups>([&]<int Up>() {
        Unit::template load<of_a<Up>>(rows.a + Up * amx_tile_rows * rows.a_stride + 2 * pair,
                                      a_bytes);
      });
      for_each<Wide>([&]<int Left>() {
        Unit::template load<of_b<Left>>(b + Left * amx_tile_bytes, pair_bytes);
        for_each<Groups>(
            [&]<int Up>() { Unit::template multiply<sum<Up, Left>, of_a<Up>, of_b<Left>>(); });
      });
    }
    each_sum([&]<int Tile>(float* c) { Unit::template store<Tile>(c, c_bytes); });
  }

  /// work.operator()<0>() and so on.
  template <int Count, class Work>
  static void for_each(Work&& work) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (work.template operator()<I>(), ...); }
    (std::make_integer_sequence<int, Count>());
  }
};

/// Of the two kernels below.
constexpr StripTile amx_low_tile = {amx_tile_rows, 4 * amx_tile_rows};
constexpr StripTile amx_square_tile = {2 * amx_tile_rows, 2 * amx_tile_rows};

/// Pairs of depth a block. Half a strip is 32 KiB in the square one's; blocks half as deep are 6 %
/// slower (docs/records/performance.md).
constexpr std::int64_t amx_low_pairs = 1024;
constexpr std::int64_t amx_square_pairs = 256;

/// A row's sums are over 32 elements of depth at a time, whatever the other rows: products of even
/// and of odd elements apart, both in order, then both sums together, then to what was before.
template <class Unit>
void gemm_by_amx(const StripGemm& call) {
  // Few rows: all columns at once, so that B is read in order.
  using Low = AmxKernel<Unit, 1, 4>;
  using Square = AmxKernel<Unit, 2, 2>;
  static_assert(tile_shape<Low> == amx_low_tile && tile_shape<Square> == amx_square_tile);
  const StripTile& tile = call.schedule.tile;
  const bool is_low = tile ? tile == amx_low_tile : call.rows <= Low::max_rows;
  const std::int64_t pairs =
      pairs_of_a_block(call, amx_low_pairs, is_low ? amx_low_pairs : amx_square_pairs);
  const AmxTiles<Unit> tiles;
  is_low ? Multiplication<Low>(call, pairs).run() : Multiplication<Square>(call, pairs).run();
}

}  // namespace sluice::strip
