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

/// What of a strip a tile multiplies: of each of `streams` parts of B as many pairs of rows, one of
/// each part in turn.
struct Depth {
  std::int64_t turns;         ///< pairs of each part
  std::int64_t streams;       ///< 1, or Kernel::streams
  std::int64_t stream_bytes;  ///< between the parts' beginnings
  bool accumulate;            ///< continues a sum
  const std::byte* ahead;  ///< memory to fetch meanwhile, behind the first part; likewise the rest
  std::int64_t lines;      ///< of it, a pair
};

/// Rows of B, two a pair, and elements of A: of `streams` parts `stream_pairs` apart `turns` pairs
/// each, in the first part from pair `first` on.
struct Block {
  std::int64_t first, turns, streams, stream_pairs;
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

template <class Kernel>
constexpr StripTile tile_shape = {Kernel::max_rows, Kernel::columns};

/// Whose blocks have at most so many pairs of depth.
template <class Kernel>
constexpr StripKernel kernel_of(std::int64_t most_pairs) {
  return {.tile = tile_shape<Kernel>, .most_depth = 2 * most_pairs};
}

/// Pairs of depth a block: a schedule's as far as the kernel holds them, or `own`, by default as
/// many as it holds.
inline std::int64_t pairs_of_a_block(const StripGemm& call, std::int64_t most,
                                     std::int64_t own = 0) {
  const std::int64_t asked = call.schedule.block_depth / 2;
  if (asked > 0) return std::min(asked, most);
  return own > 0 ? own : most;
}

/// Multiplies in tiles of Kernel::max_rows by Kernel::columns, one block of depth after the other.
///
///   for block of `block_pairs` pairs of depth   B's part stays in a cache
///     for strip                                 the rows' part stays in a cache
///       for tile of rows and columns            Kernel::tile<Rows, Lines, Near>()
///
/// A tile fetches `Lines` lines a pair from depth.ahead on into the second-level cache (a tile for
/// each number of them where Kernel::has_tiles_by_lines), and if `Near` what it reads next into the
/// first-level one. B from memory is read as Kernel::streams equal parts side by side, then the
/// rest; a pair of its rows is Kernel::pair_bytes, a column 4 bytes. Kernel::operands(call, block)
/// say where rows of A and C begin (a, c) and how far apart they lie (a_stride, c_stride).
template <class Kernel>
class Multiplication {
 public:
  Multiplication(const StripGemm& call, std::int64_t block_pairs)
      : call_(call), block_pairs_(block_pairs) {}

  void run() const {
    const std::int64_t all_pairs = (call_.depth + 1) / 2;
    const std::int64_t streams = call_.source == StripSource::memory ? Kernel::streams : 1;
    const std::int64_t stream_pairs = all_pairs / streams;
    const std::int64_t done = streams * stream_pairs;
    for (std::int64_t first = 0; first < stream_pairs; first += block_pairs_ / streams) {
      const std::int64_t turns = std::min(block_pairs_ / streams, stream_pairs - first);
      const bool last = first + turns == stream_pairs;
      run_block({first, turns, streams, stream_pairs}, last ? all_pairs : first + turns);
    }
    if (done < all_pairs) run_block({done, all_pairs - done, 1, 0}, all_pairs);
  }

 private:
  static constexpr std::int64_t tiles_wide = strip_columns / Kernel::columns;
  static constexpr std::int64_t all_lines = lines_per_pair<Kernel>;

  std::int64_t tiles_high() const { return (call_.rows + Kernel::max_rows - 1) / Kernel::max_rows; }

  /// Of all strips, whose next block begins at pair `then`.
  void run_block(const Block& block, std::int64_t then) const {
    const auto bytes_per_strip = static_cast<std::int64_t>(strip_bytes(call_.depth, call_.dtype));
    const bool ends = then == (call_.depth + 1) / 2;
    typename Kernel::Operands rows = Kernel::operands(call_, block);
    for (std::int64_t strip = 0; strip < call_.strips; ++strip) {
      const std::byte* b = call_.b + strip * bytes_per_strip + block.first * Kernel::pair_bytes;
      const std::byte* next = strip + 1 < call_.strips ? b + bytes_per_strip
                              : ends                   ? call_.b + call_.strips * bytes_per_strip
                                                       : call_.b + then * Kernel::pair_bytes;
      run_tiles(block, rows, b, next);
      rows.c += strip_columns;
    }
  }

  /// A block of one strip; `next` is read after it.
  void run_tiles(const Block& block, typename Kernel::Operands rows, const std::byte* b,
                 const std::byte* next) const {
    const bool from_memory = call_.source == StripSource::memory;
    const std::int64_t num_tiles = tiles_high() * tiles_wide;
    // One tile reads B once. Several leave the memory idle while they compute from cache, so they
    // fetch the block that comes next, each its share of it.
    const bool fetches_next = from_memory && num_tiles > 1;
    const std::int64_t fetch = call_.schedule.fetch_bytes.value_or(fetch_distance_bytes());
    const std::int64_t distance = from_memory && num_tiles == 1 ? fetch : 0;
    const auto lines_before = [num_tiles](std::int64_t tile) {
      return (all_lines * tile + num_tiles - 1) / num_tiles;
    };
    const bool fetches_near = from_memory && fetch > 0;
    Depth depth{.turns = block.turns,
                .streams = block.streams,
                .stream_bytes = block.stream_pairs * Kernel::pair_bytes,
                .accumulate = call_.accumulate || block.first > 0,
                .ahead = b + distance,
                .lines = distance > 0 ? all_lines : 0};
    std::int64_t left = call_.rows;
    for (std::int64_t high = 0; high < tiles_high(); ++high) {
      const std::int64_t num_rows = (left + tiles_high() - high - 1) / (tiles_high() - high);
      for (std::int64_t wide = 0; wide < tiles_wide; ++wide) {
        const std::int64_t before = high * tiles_wide + wide;
        if (fetches_next) {
          depth.ahead = next + lines_before(before) * block.turns * 64;
          depth.lines = lines_before(before + 1) - lines_before(before);
        }
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

  const StripGemm& call_;
  std::int64_t block_pairs_;
};

}  // namespace sluice::strip
