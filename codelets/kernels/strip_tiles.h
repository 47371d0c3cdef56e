#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "codelets/kernels/prefetch.h"
#include "codelets/kernels/strip_gemm.h"

/// How strip_gemm() is cut into tiles, whatever instructions compute one.
namespace sluice::strip {

/// How far ahead of itself what reads B first takes it from the second-level cache.
constexpr std::int64_t near_bytes = 4096;

/// A tile's depth in pairs.
struct Depth {
  std::int64_t pairs;
  bool accumulate;         ///< continues a sum
  const std::byte* ahead;  ///< memory to fetch meanwhile
  std::int64_t lines;      ///< of it, a pair
};

/// In place of a tile's number of lines: Depth has it.
constexpr int any_lines = -1;

/// How far ahead of itself what reads B once, from memory, fetches it; 0: not at all.
inline std::int64_t fetch_distance_bytes() { return core_prefetches_enough() ? 0 : 8192; }

/// Cache lines of two neighbouring rows of B.
template <class Kernel>
constexpr std::int64_t lines_per_pair = Kernel::pair_bytes / 64;

template <class Kernel>
using Tile = void (*)(const typename Kernel::Operands&, const std::byte*, const Depth&);

/// The tile of `num_rows` <= Kernel::max_rows.
template <class Kernel, int Lines, bool Near>
Tile<Kernel> tile_of(std::int64_t num_rows) {
  constexpr auto tiles = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<Tile<Kernel>, sizeof...(I)>{
        &Kernel::template tile<static_cast<int>(I) + 1, Lines, Near>...};
  }
  (std::make_index_sequence<static_cast<std::size_t>(Kernel::max_rows)>());
  return tiles[static_cast<std::size_t>(num_rows - 1)];
}
template <class Kernel, bool Near>
Tile<Kernel> tile_of(std::int64_t num_rows, std::int64_t lines) {
  if constexpr (!Kernel::has_tiles_by_lines) {
    return tile_of<Kernel, any_lines, Near>(num_rows);
  } else {
    switch (lines) {
      case 0:
        return tile_of<Kernel, 0, Near>(num_rows);
      case 1:
        return tile_of<Kernel, 1, Near>(num_rows);
      case 2:
        return tile_of<Kernel, 2, Near>(num_rows);
      default:
        return tile_of<Kernel, lines_per_pair<Kernel>, Near>(num_rows);
    }
  }
}

/// Multiplies in tiles of Kernel::max_rows by Kernel::columns, a block of depth after the other:
/// `block_pairs` stay in a cache while all rows pass over them. In B a tile's columns begin 4 bytes
/// a column behind the strip's, in either type.
///
/// Two neighbouring rows of B are Kernel::pair_bytes. Kernel::Operands say where rows of A and C
/// begin (a, c) and how far apart they lie (a_stride, c_stride); `Kernel::operands(call, first,
/// pairs)` gives them for elements [first, first + 2 pairs) of A. `Kernel::tile<Rows, Lines,
/// Near>(operands, b, depth)` computes a tile of C; meanwhile fetches `Lines` lines a pair from
/// depth.ahead on into the second-level cache, and, if `Near`, what it reads next on into the
/// first-level cache. Where Kernel::has_tiles_by_lines, each number of lines has a tile of its own.
template <class Kernel>
void multiply(const StripGemm& call, std::int64_t block_pairs) {
  constexpr std::int64_t tiles_wide = strip_columns / Kernel::columns;
  const std::int64_t tiles_high = (call.rows + Kernel::max_rows - 1) / Kernel::max_rows;
  const std::int64_t num_tiles = tiles_high * tiles_wide;
  constexpr std::int64_t all_lines = lines_per_pair<Kernel>;
  const std::int64_t all_pairs = (call.depth + 1) / 2;
  // One tile reads B once. Several leave the memory idle while they compute from cache, so they
  // fetch the block that comes next.
  const std::int64_t distance = num_tiles == 1 ? fetch_distance_bytes() : 0;
  const std::int64_t lines = call.source == StripSource::cache ? 0
                             : num_tiles == 1                  ? (distance > 0 ? all_lines : 0)
                             : num_tiles >= all_lines          ? 1
                                                               : 2;
  const bool fetches_near = call.source == StripSource::memory && !core_prefetches_enough();
  for (std::int64_t first = 0; first < all_pairs; first += block_pairs) {
    const std::int64_t pairs = std::min(block_pairs, all_pairs - first);
    const std::byte* b = call.b + first * Kernel::pair_bytes;
    const std::byte* next = b + pairs * Kernel::pair_bytes;
    Depth depth{pairs, call.accumulate || first > 0, b + distance, 0};
    typename Kernel::Operands rows = Kernel::operands(call, 2 * first, pairs);
    std::int64_t left = call.rows;
    for (std::int64_t high = 0; high < tiles_high; ++high) {
      const std::int64_t num_rows = (left + tiles_high - high - 1) / (tiles_high - high);
      for (std::int64_t wide = 0; wide < tiles_wide; ++wide) {
        const std::int64_t before = high * tiles_wide + wide;
        if (num_tiles > 1) depth.ahead = next + before * lines * pairs * 64;
        depth.lines = (before + 1) * lines <= all_lines ? lines : 0;
        typename Kernel::Operands part = rows;
        part.c += wide * Kernel::columns;
        const Tile<Kernel> tile = fetches_near && high == 0
                                      ? tile_of<Kernel, true>(num_rows, depth.lines)
                                      : tile_of<Kernel, false>(num_rows, depth.lines);
        tile(part, b + wide * Kernel::columns * 4, depth);
      }
      left -= num_rows;
      rows.a += num_rows * rows.a_stride;
      rows.c += num_rows * rows.c_stride;
    }
  }
}

}  // namespace sluice::strip
