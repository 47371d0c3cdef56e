#include "codelets/kernels/bf16_strip.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codelets/kernels/prefetch.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice {
namespace {

#define SLUICE_BF16_TARGET gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")

/// Rows that share the loads of B: as many as their 4 accumulators each fit into registers.
constexpr std::int64_t tile_rows = 6;
constexpr std::int64_t pair_elements = 2 * strip_columns;
constexpr std::int64_t pair_bytes = pair_elements * 2;
constexpr std::int64_t lines_per_pair = pair_bytes / 64;

/// Two neighbouring elements of a row of A in all lanes.
[[SLUICE_BF16_TARGET]] inline __m512bh broadcast_pair(const std::uint16_t* a) {
  int pair = 0;
  std::memcpy(&pair, a, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

/// `Rows` rows of C over `pairs` pairs of depth. Fetches `Lines` lines a pair from `ahead` on into
/// the second-level cache meanwhile.
template <int Rows, int Lines>
[[SLUICE_BF16_TARGET, gnu::always_inline]] inline void tile(const StripGemm& call,
                                                            const std::uint16_t* a,
                                                            const std::uint16_t* b, float* c,
                                                            std::int64_t pairs, bool accumulate,
                                                            const char* ahead) {
  __m512 sum[Rows][4];
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < 4; ++j) {
      sum[r][j] =
          accumulate ? _mm512_loadu_ps(c + r * call.c_stride + 16 * j) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < pairs; ++k) {
    for (int line = 0; line < Lines; ++line) {
      _mm_prefetch(ahead + 64 * (Lines * k + line), _MM_HINT_T1);
    }
    __m512bh column[4];
    for (int j = 0; j < 4; ++j) {
      column[j] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + k * pair_elements + 32 * j));
    }
    for (int r = 0; r < Rows; ++r) {
      const __m512bh row = broadcast_pair(a + r * call.a_stride + 2 * k);
      for (int j = 0; j < 4; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], row, column[j]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(c + r * call.c_stride + 16 * j, sum[r][j]);
  }
}

template <int Lines>
[[SLUICE_BF16_TARGET]] void tile_of(std::int64_t rows, const StripGemm& call,
                                    const std::uint16_t* a, const std::uint16_t* b, float* c,
                                    std::int64_t pairs, bool accumulate, const char* ahead) {
  switch (rows) {
    case 1:
      return tile<1, Lines>(call, a, b, c, pairs, accumulate, ahead);
    case 2:
      return tile<2, Lines>(call, a, b, c, pairs, accumulate, ahead);
    case 3:
      return tile<3, Lines>(call, a, b, c, pairs, accumulate, ahead);
    case 4:
      return tile<4, Lines>(call, a, b, c, pairs, accumulate, ahead);
    case 5:
      return tile<5, Lines>(call, a, b, c, pairs, accumulate, ahead);
    default:
      return tile<6, Lines>(call, a, b, c, pairs, accumulate, ahead);
  }
}

/// How far ahead of itself a tile that reads B once, from memory, fetches it; 0: not at all.
std::int64_t fetch_distance_bytes() { return core_prefetches_enough() ? 0 : 8192; }

/// Pairs of depth that stay in the second-level cache while all rows pass over them.
std::int64_t block_pairs(std::int64_t rows) { return rows <= 16 ? 256 : 1024; }

}  // namespace

bool has_bf16_strips() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bf16");
  return has;
}

[[SLUICE_BF16_TARGET]] void strip_gemm(const StripGemm& call) {
  const std::int64_t num_tiles = (call.rows + tile_rows - 1) / tile_rows;
  const std::int64_t all_pairs = call.depth / 2;
  // One tile reads B once. Several leave the memory idle while they compute from cache, so they
  // fetch the block that comes next.
  const std::int64_t distance = num_tiles == 1 ? fetch_distance_bytes() : 0;
  const std::int64_t lines = call.source == StripSource::cache ? 0
                             : num_tiles == 1                  ? (distance > 0 ? lines_per_pair : 0)
                             : num_tiles >= lines_per_pair     ? 1
                                                               : 2;
  for (std::int64_t first = 0; first < all_pairs; first += block_pairs(call.rows)) {
    const std::int64_t pairs = std::min(block_pairs(call.rows), all_pairs - first);
    const std::uint16_t* b = call.b + first * pair_elements;
    const char* next = reinterpret_cast<const char*>(b + pairs * pair_elements);
    const bool accumulate = call.accumulate || first > 0;
    std::int64_t row = 0;
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      const std::int64_t rows = (call.rows - row + num_tiles - t - 1) / (num_tiles - t);
      const std::uint16_t* a = call.a + row * call.a_stride + 2 * first;
      float* c = call.c + row * call.c_stride;
      const char* ahead = num_tiles == 1 ? reinterpret_cast<const char*>(b) + distance
                                         : next + t * lines * pairs * 64;
      const bool fetches = (t + 1) * lines <= lines_per_pair;
      if (lines == lines_per_pair) {
        tile_of<lines_per_pair>(rows, call, a, b, c, pairs, accumulate, ahead);
      } else if (lines == 2 && fetches) {
        tile_of<2>(rows, call, a, b, c, pairs, accumulate, ahead);
      } else if (lines == 1 && fetches) {
        tile_of<1>(rows, call, a, b, c, pairs, accumulate, ahead);
      } else {
        tile_of<0>(rows, call, a, b, c, pairs, accumulate, nullptr);
      }
      row += rows;
    }
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

#undef SLUICE_BF16_TARGET

}  // namespace sluice

#else

namespace sluice {

bool has_bf16_strips() { return false; }
void strip_gemm(const StripGemm& /*call*/) { throw Error("no AVX512_BF16 on this CPU"); }
StripValues pack_strip(const std::uint16_t* /*rows*/, std::int64_t /*columns*/,
                       std::int64_t /*depth*/, std::uint16_t* /*strip*/) {
  throw Error("no AVX512_BF16 on this CPU");
}

}  // namespace sluice

#endif
