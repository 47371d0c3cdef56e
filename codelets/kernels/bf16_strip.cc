#include "codelets/kernels/bf16_strip.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "codelets/kernels/bf16_avx512.h"
#include "codelets/kernels/prefetch.h"

#if defined(__x86_64__)

namespace sluice {
namespace {

constexpr std::int64_t pair_elements = 2 * strip_columns;
constexpr std::int64_t pair_bytes = pair_elements * 2;
constexpr std::int64_t lines_per_pair = pair_bytes / 64;
constexpr int strip_vectors = strip_columns / 16;

/// Rows of A, and of C: where they begin, and elements between them.
template <class Arithmetic>
struct Operands;
template <>
struct Operands<DotProducts> {
  const std::uint16_t* a;
  std::int64_t a_stride;
  float* c;
  std::int64_t c_stride;
};
/// Of A a block that was widened: rows at fixed offsets need one register for all of them.
template <>
struct Operands<MultiplyAdd> {
  static constexpr std::int64_t max_pairs = 128;
  static constexpr std::int64_t a_stride = 2 * max_pairs + 16;  // rows in different cache sets
  const float* a;
  float* c;
  std::int64_t c_stride;
};

/// How far ahead of itself what reads B first takes it from the second-level cache.
constexpr std::int64_t near_elements = 2048;

/// A tile's depth in pairs.
struct Depth {
  std::int64_t pairs;
  bool accumulate;    ///< continues a sum
  const char* ahead;  ///< memory to fetch meanwhile
};

/// `Rows` rows of 16 `Vectors` columns of C. Meanwhile fetches `Lines` lines a pair from `ahead` on
/// into the second-level cache, and, if `Near`, what it reads next on into the first-level cache.
template <class Arithmetic, int Rows, int Vectors, int Lines, bool Near>
[[SLUICE_BF16_TARGET]] void tile(const Operands<Arithmetic>& rows, const std::uint16_t* b,
                                 const Depth& depth) {
  // The pragmas keep the sums in registers.
  __m512 sum[Rows][Vectors];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      sum[r][j] = depth.accumulate ? _mm512_loadu_ps(rows.c + r * rows.c_stride + 16 * j)
                                   : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < depth.pairs; ++k) {
    for (int line = 0; line < Lines; ++line) {
      _mm_prefetch(depth.ahead + 64 * (Lines * k + line), _MM_HINT_T1);
    }
    if constexpr (Near) {
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) {
        const std::uint16_t* near = b + k * pair_elements + near_elements + 32 * j;
        _mm_prefetch(reinterpret_cast<const char*>(near), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 2
    for (int part = 0; part < Arithmetic::parts; ++part) {
      typename Arithmetic::Vector column[Vectors];
#pragma GCC unroll 12
      for (int j = 0; j < Vectors; ++j) {
        column[j] = Arithmetic::column(b + k * pair_elements + 32 * j, part);
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const auto row = Arithmetic::row(rows.a + r * rows.a_stride + 2 * k, part);
#pragma GCC unroll 12
        for (int j = 0; j < Vectors; ++j) sum[r][j] = Arithmetic::add(sum[r][j], row, column[j]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      _mm512_storeu_ps(rows.c + r * rows.c_stride + 16 * j, sum[r][j]);
    }
  }
}

template <class Arithmetic>
using Tile = void (*)(const Operands<Arithmetic>&, const std::uint16_t*, const Depth&);

/// Rows of a tile so many vectors wide: as many as their sums fit into registers.
constexpr std::int64_t max_rows(int vectors) { return 24 / vectors; }

/// The tile of `num_rows` <= max_rows(Vectors).
template <class Arithmetic, int Vectors, int Lines, bool Near>
Tile<Arithmetic> tile_of(std::int64_t num_rows) {
  constexpr auto tiles = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<Tile<Arithmetic>, sizeof...(I)>{
        tile<Arithmetic, static_cast<int>(I) + 1, Vectors, Lines, Near>...};
  }
  (std::make_index_sequence<static_cast<std::size_t>(max_rows(Vectors))>());
  return tiles[static_cast<std::size_t>(num_rows - 1)];
}
template <class Arithmetic, int Vectors, bool Near>
Tile<Arithmetic> tile_of(std::int64_t num_rows, std::int64_t lines) {
  switch (lines) {
    case 0:
      return tile_of<Arithmetic, Vectors, 0, Near>(num_rows);
    case 1:
      return tile_of<Arithmetic, Vectors, 1, Near>(num_rows);
    case 2:
      return tile_of<Arithmetic, Vectors, 2, Near>(num_rows);
    default:
      return tile_of<Arithmetic, Vectors, lines_per_pair, Near>(num_rows);
  }
}

/// How far ahead of itself what reads B once, from memory, fetches it; 0: not at all.
std::int64_t fetch_distance_bytes() { return core_prefetches_enough() ? 0 : 8192; }

/// Elements [first, first + 2 pairs) of the rows of A, as the arithmetic takes them.
Operands<DotProducts> operands(DotProducts /*arithmetic*/, const StripGemm& call,
                               std::int64_t first, std::int64_t /*pairs*/) {
  return {call.a + first, call.a_stride, call.c, call.c_stride};
}
/// In scratch memory of this thread until the next call.
[[SLUICE_BF16_TARGET]] Operands<MultiplyAdd> operands(MultiplyAdd /*arithmetic*/,
                                                      const StripGemm& call, std::int64_t first,
                                                      std::int64_t pairs) {
  constexpr std::int64_t lanes = 16;
  constexpr std::int64_t stride = Operands<MultiplyAdd>::a_stride;
  const std::int64_t count = 2 * pairs;
  thread_local Workspace scratch;
  auto* wide = reinterpret_cast<float*>(
      scratch.reserve(static_cast<std::size_t>(call.rows * stride) * sizeof(float)));
  for (std::int64_t r = 0; r < call.rows; ++r) {
    if (call.wide_a != nullptr) {
      const float* from = call.wide_a + r * call.a_stride + first;
      std::copy_n(from, count, wide + r * stride);
      continue;
    }
    const std::uint16_t* from = call.a + r * call.a_stride + first;
    for (std::int64_t i = 0; i < count; i += lanes) {
      const auto exists = static_cast<__mmask16>((1U << std::min(count - i, lanes)) - 1);
      _mm512_store_ps(wide + r * stride + i, widen(exists, from + i));
    }
  }
  return {wide, call.c, call.c_stride};
}

/// Multiplies in tiles `Vectors` vectors wide, a block of depth after the other: `block_pairs` stay
/// in a cache while all rows pass over them.
template <class Arithmetic, int Vectors>
void multiply(const StripGemm& call, std::int64_t block_pairs) {
  constexpr std::int64_t tiles_wide = strip_vectors / Vectors;
  const std::int64_t tiles_high = (call.rows + max_rows(Vectors) - 1) / max_rows(Vectors);
  const std::int64_t num_tiles = tiles_high * tiles_wide;
  const std::int64_t all_pairs = call.depth / 2;
  // One tile reads B once. Several leave the memory idle while they compute from cache, so they
  // fetch the block that comes next.
  const std::int64_t distance = num_tiles == 1 ? fetch_distance_bytes() : 0;
  const std::int64_t lines = call.source == StripSource::cache ? 0
                             : num_tiles == 1                  ? (distance > 0 ? lines_per_pair : 0)
                             : num_tiles >= lines_per_pair     ? 1
                                                               : 2;
  const bool fetches_near = call.source == StripSource::memory && !core_prefetches_enough();
  for (std::int64_t first = 0; first < all_pairs; first += block_pairs) {
    const std::int64_t pairs = std::min(block_pairs, all_pairs - first);
    const std::uint16_t* b = call.b + first * pair_elements;
    const auto* next = reinterpret_cast<const char*>(b + pairs * pair_elements);
    Depth depth{pairs, call.accumulate || first > 0, reinterpret_cast<const char*>(b) + distance};
    Operands<Arithmetic> rows = operands(Arithmetic(), call, 2 * first, pairs);
    std::int64_t left = call.rows;
    for (std::int64_t high = 0; high < tiles_high; ++high) {
      const std::int64_t num_rows = (left + tiles_high - high - 1) / (tiles_high - high);
      for (std::int64_t wide = 0; wide < tiles_wide; ++wide) {
        const std::int64_t before = high * tiles_wide + wide;
        if (num_tiles > 1) depth.ahead = next + before * lines * pairs * 64;
        const std::int64_t ahead = (before + 1) * lines <= lines_per_pair ? lines : 0;
        Operands<Arithmetic> part = rows;
        part.c += wide * Vectors * 16;
        const Tile<Arithmetic> tile = fetches_near && high == 0
                                          ? tile_of<Arithmetic, Vectors, true>(num_rows, ahead)
                                          : tile_of<Arithmetic, Vectors, false>(num_rows, ahead);
        tile(part, b + wide * Vectors * 32, depth);
      }
      left -= num_rows;
      rows.a += num_rows * rows.a_stride;
      rows.c += num_rows * rows.c_stride;
    }
  }
}

}  // namespace

bool has_bf16_strips() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

void strip_gemm(const StripGemm& call) {
  if (call.arithmetic == Bf16Arithmetic::dot_products) {
    multiply<DotProducts, strip_vectors>(call, call.rows <= 16 ? 256 : 1024);
    return;
  }
  const FlushSubnormals flush;
  constexpr std::int64_t block_pairs = Operands<MultiplyAdd>::max_pairs;
  if (call.rows <= max_rows(strip_vectors)) {
    multiply<MultiplyAdd, strip_vectors>(call, block_pairs);
  } else {  // narrow tiles widen half as many columns for each row
    multiply<MultiplyAdd, strip_vectors / 2>(call, block_pairs);
  }
}

namespace {

/// Rows become columns, words of 32 bits: result[j] holds word j of every row.
[[SLUICE_BF16_TARGET, gnu::always_inline]] inline void transpose(__m512i (&row)[16]) {
  constexpr __mmask16 all = 0xffff;  // unmasked, these make GCC 12 warn of its own header
  __m512i pair[16];
  for (int i = 0; i < 16; i += 2) {
    pair[i] = _mm512_maskz_unpacklo_epi32(all, row[i], row[i + 1]);
    pair[i + 1] = _mm512_maskz_unpackhi_epi32(all, row[i], row[i + 1]);
  }
  __m512i quad[16];
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      quad[i + 2 * half] = _mm512_maskz_unpacklo_epi64(0xff, pair[i + half], pair[i + half + 2]);
      quad[i + 2 * half + 1] =
          _mm512_maskz_unpackhi_epi64(0xff, pair[i + half], pair[i + half + 2]);
    }
  }
  // quad[4 g + w] holds, in its quarter q, word 4 q + w of rows 4 g to 4 g + 3.
  for (int w = 0; w < 4; ++w) {
    const __m512i low_even = _mm512_maskz_shuffle_i32x4(all, quad[w], quad[4 + w], 0x88);
    const __m512i low_odd = _mm512_maskz_shuffle_i32x4(all, quad[w], quad[4 + w], 0xdd);
    const __m512i high_even = _mm512_maskz_shuffle_i32x4(all, quad[8 + w], quad[12 + w], 0x88);
    const __m512i high_odd = _mm512_maskz_shuffle_i32x4(all, quad[8 + w], quad[12 + w], 0xdd);
    row[w] = _mm512_maskz_shuffle_i32x4(all, low_even, high_even, 0x88);
    row[8 + w] = _mm512_maskz_shuffle_i32x4(all, low_even, high_even, 0xdd);
    row[4 + w] = _mm512_maskz_shuffle_i32x4(all, low_odd, high_odd, 0x88);
    row[12 + w] = _mm512_maskz_shuffle_i32x4(all, low_odd, high_odd, 0xdd);
  }
}

}  // namespace

[[SLUICE_BF16_TARGET]] StripValues pack_strip(const std::uint16_t* rows, std::int64_t columns,
                                              std::int64_t depth, std::uint16_t* strip) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 not_finite = 0;
  for (std::int64_t pair = 0; pair < strip_elements(depth) / pair_elements; pair += 16) {
    const std::int64_t left = std::clamp<std::int64_t>(depth / 2 - pair, 0, 16);
    const auto words = static_cast<__mmask16>((1U << left) - 1);
    for (std::int64_t column = 0; column < strip_columns; column += 16) {
      __m512i row[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const bool exists = column + i < columns && left > 0;
        row[i] = exists ? _mm512_maskz_loadu_epi32(words, rows + (column + i) * depth + 2 * pair)
                        : _mm512_setzero_si512();
        not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(row[i], exponent), exponent);
      }
      transpose(row);
      for (std::int64_t i = 0; i < 16; ++i) {
        _mm512_store_si512(strip + (pair + i) * pair_elements + 2 * column, row[i]);
      }
    }
  }
  return not_finite == 0 ? StripValues::finite : StripValues::not_finite;
}

}  // namespace sluice

#else

namespace sluice {

bool has_bf16_strips() { return false; }
void strip_gemm(const StripGemm& /*call*/) { throw Error("no AVX-512 on this CPU"); }
StripValues pack_strip(const std::uint16_t* /*rows*/, std::int64_t /*columns*/,
                       std::int64_t /*depth*/, std::uint16_t* /*strip*/) {
  throw Error("no AVX-512 on this CPU");
}

}  // namespace sluice

#endif
