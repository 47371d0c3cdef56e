#include "codelets/kernels/strip_kernels.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>

#include "base/memory.h"
#include "codelets/kernels/bf16_avx512.h"
#include "codelets/kernels/flush_subnormals.h"
#include "codelets/kernels/strip_amx.h"
#include "codelets/kernels/strip_tiles.h"

namespace sluice::strip {
namespace {

constexpr int strip_vectors = strip_columns / 16;
constexpr std::int64_t pair_elements = 2 * strip_columns;
constexpr std::int64_t step_elements = 2 * amx_step_pairs;

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

/// A block of the rows of A, of one stream, as the arithmetic takes it.
Operands<DotProducts> operands(DotProducts /*arithmetic*/, const StripGemm& call,
                               const Block& block) {
  return {call.a + 2 * block.first, call.a_stride, call.c, call.c_stride};
}
/// In scratch memory of this thread until the next call; in bf16 with zeros up to a step of AMX.
[[SLUICE_BF16_TARGET]] Operands<MultiplyAdd> operands(MultiplyAdd /*arithmetic*/,
                                                      const StripGemm& call, const Block& block) {
  constexpr std::int64_t lanes = 16;
  constexpr std::int64_t stride = Operands<MultiplyAdd>::a_stride;
  const std::int64_t first = 2 * block.first;
  const std::int64_t count = 2 * block.turns;
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
    for (std::int64_t i = 0; i < (count + step_elements - 1) / step_elements * step_elements;
         i += lanes) {
      const std::int64_t left = std::clamp<std::int64_t>(count - i, 0, lanes);
      const auto exists = static_cast<__mmask16>((1U << left) - 1);
      _mm512_store_ps(wide + r * stride + i, widen(exists, from + i));
    }
  }
  return {wide, call.c, call.c_stride};
}

/// A tile's sums, of C or new ones. The pragmas keep them in registers.
template <int Rows, int Vectors>
[[SLUICE_BF16_INLINE]] inline void begin_sums(const float* c, std::int64_t c_stride,
                                              bool accumulate, __m512 (&sum)[Rows][Vectors]) {
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      sum[r][j] = accumulate ? _mm512_loadu_ps(c + r * c_stride + 16 * j) : _mm512_setzero_ps();
    }
  }
}
template <int Rows, int Vectors>
[[SLUICE_BF16_INLINE]] inline void store_sums(const __m512 (&sum)[Rows][Vectors], float* c,
                                              std::int64_t c_stride) {
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) _mm512_storeu_ps(c + r * c_stride + 16 * j, sum[r][j]);
  }
}

/// What a tile `Vectors` wide fetches while it multiplies pair `k`.
template <int Vectors, int Lines, bool Near>
[[SLUICE_BF16_INLINE]] inline void fetch(const std::byte* strip, const Depth& depth,
                                         std::int64_t k) {
  for (int line = 0; line < Lines; ++line) {
    _mm_prefetch(depth.ahead + 64 * (Lines * k + line), _MM_HINT_T1);
  }
  if constexpr (Near) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      const std::byte* near = strip + k * 2 * pair_elements + near_bytes + 64 * j;
      _mm_prefetch(near, _MM_HINT_T0);
    }
  }
}

/// Tiles `Vectors` vectors wide, of as many rows as their sums fit into registers.
template <class Arithmetic, int Vectors>
struct Avx512Kernel {
  using Operands = strip::Operands<Arithmetic>;
  static constexpr bool has_tiles_by_lines = true;
  static constexpr std::int64_t streams = 1;
  static constexpr std::int64_t pair_bytes = 2 * pair_elements;
  static constexpr std::int64_t columns = std::int64_t{16} * Vectors;
  static constexpr std::int64_t max_rows = 24 / Vectors;

  static Operands operands(const StripGemm& call, const Block& block) {
    return strip::operands(Arithmetic(), call, block);
  }
  template <int Rows, int Lines, bool Near>
  [[SLUICE_BF16_TARGET]] static void tile(const Operands& rows, const std::byte* strip,
                                          const Depth& depth) {
    const auto* b = reinterpret_cast<const std::uint16_t*>(strip);
    __m512 sum[Rows][Vectors];
    begin_sums(rows.c, rows.c_stride, depth.accumulate, sum);
    for (std::int64_t k = 0; k < depth.turns; ++k) {
      fetch<Vectors, Lines, Near>(strip, depth, k);
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
    store_sums(sum, rows.c, rows.c_stride);
  }
};

/// The same with sums in the order of AMX: three registers each.
template <int Vectors>
struct AmxOrderKernel : Avx512Kernel<MultiplyAdd, Vectors> {
  using Operands = strip::Operands<MultiplyAdd>;
  static constexpr std::int64_t max_rows = 8 / Vectors;

  template <int Rows, int Lines, bool Near>
  [[SLUICE_BF16_TARGET]] static void tile(const Operands& rows, const std::byte* strip,
                                          const Depth& depth) {
    const auto* b = reinterpret_cast<const std::uint16_t*>(strip);
    __m512 sum[Rows][Vectors];
    begin_sums(rows.c, rows.c_stride, depth.accumulate, sum);
    for (std::int64_t first = 0; first < depth.turns; first += amx_step_pairs) {
      __m512 even[Rows][Vectors];
      __m512 odd[Rows][Vectors];
      begin_sums(rows.c, rows.c_stride, false, even);
      begin_sums(rows.c, rows.c_stride, false, odd);
      for (std::int64_t k = first; k < first + amx_step_pairs; ++k) {
        fetch<Vectors, Lines, Near>(strip, depth, k);
        add_products<0>(rows, b, k, even);
        add_products<1>(rows, b, k, odd);
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
        for (int j = 0; j < Vectors; ++j) {
          sum[r][j] = _mm512_add_ps(sum[r][j], _mm512_add_ps(even[r][j], odd[r][j]));
        }
      }
    }
    store_sums(sum, rows.c, rows.c_stride);
  }

 private:
  /// Of the even or the odd element of pair `k`.
  template <int Part, int Rows>
  [[SLUICE_BF16_INLINE]] static inline void add_products(const Operands& rows,
                                                         const std::uint16_t* b, std::int64_t k,
                                                         __m512 (&sum)[Rows][Vectors]) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      const __m512 column = MultiplyAdd::column(b + k * pair_elements + 32 * j, Part);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const __m512 row = MultiplyAdd::row(rows.a + r * rows.a_stride + 2 * k, Part);
        sum[r][j] = MultiplyAdd::add(sum[r][j], row, column);
      }
    }
  }
};

using WideDots = Avx512Kernel<DotProducts, strip_vectors>;
using NarrowDots = Avx512Kernel<DotProducts, strip_vectors / 2>;
using WideWidened = Avx512Kernel<MultiplyAdd, strip_vectors>;
// Narrow tiles widen half as many columns for each row.
using NarrowWidened = Avx512Kernel<MultiplyAdd, strip_vectors / 2>;
using WideInAmxOrder = AmxOrderKernel<strip_vectors>;
using NarrowInAmxOrder = AmxOrderKernel<strip_vectors / 2>;

constexpr std::int64_t widened_pairs = Operands<MultiplyAdd>::max_pairs;

/// The wide one as long as one of its tiles has all rows.
template <class Wide, class Narrow>
StripSchedule own_of_widened(std::int64_t rows) {
  return {.tile = rows <= Wide::max_rows ? tile_shape<Wide> : tile_shape<Narrow>,
          .block_depth = 2 * widened_pairs};
}

template <class Wide, class Narrow>
void multiply_widened(const StripGemm& call) {
  const FlushSubnormals flush;
  const std::int64_t pairs = pairs_of_a_block(call, widened_pairs);
  const StripTile tile =
      call.schedule.tile ? call.schedule.tile : own_of_widened<Wide, Narrow>(call.rows).tile;
  tile == tile_shape<Wide> ? Multiplication<Wide>(call, pairs).run()
                           : Multiplication<Narrow>(call, pairs).run();
}

constexpr std::int64_t most_dot_pairs = 1024;
std::int64_t own_dot_pairs(std::int64_t rows) { return rows <= 16 ? 256 : most_dot_pairs; }

}  // namespace

std::span<const StripKernel> kernels_avx512(Bf16Arithmetic arithmetic) {
  static constexpr std::array dots = {kernel_of<WideDots>(most_dot_pairs),
                                      kernel_of<NarrowDots>(most_dot_pairs)};
  static constexpr std::array widened = {kernel_of<WideWidened>(widened_pairs),
                                         kernel_of<NarrowWidened>(widened_pairs)};
  return arithmetic == Bf16Arithmetic::dot_products ? dots : widened;
}

std::span<const StripKernel> kernels_amx() {
  static constexpr std::array all = {
      kernel_of<WideInAmxOrder>(widened_pairs), kernel_of<NarrowInAmxOrder>(widened_pairs),
      StripKernel{.tile = amx_low_tile, .most_depth = 2 * amx_low_pairs},
      StripKernel{.tile = amx_square_tile, .most_depth = 2 * amx_low_pairs}};
  return all;
}

StripSchedule own_avx512(std::int64_t rows, Bf16Arithmetic arithmetic) {
  if (arithmetic == Bf16Arithmetic::dot_products)
    return {.tile = tile_shape<WideDots>, .block_depth = 2 * own_dot_pairs(rows)};
  return own_of_widened<WideWidened, NarrowWidened>(rows);
}

StripSchedule own_amx(std::int64_t rows) {
  if (rows <= most_rows_in_amx_order) return own_of_widened<WideInAmxOrder, NarrowInAmxOrder>(rows);
  if (rows <= amx_low_tile.rows) return {.tile = amx_low_tile, .block_depth = 2 * amx_low_pairs};
  return {.tile = amx_square_tile, .block_depth = 2 * amx_square_pairs};
}

void gemm_avx512(const StripGemm& call) {
  if (call.arithmetic != Bf16Arithmetic::dot_products)
    return multiply_widened<WideWidened, NarrowWidened>(call);
  const std::int64_t pairs = pairs_of_a_block(call, most_dot_pairs, own_dot_pairs(call.rows));
  call.schedule.tile == tile_shape<NarrowDots> ? Multiplication<NarrowDots>(call, pairs).run()
                                               : Multiplication<WideDots>(call, pairs).run();
}

void gemm_in_amx_order(const StripGemm& call) {
  multiply_widened<WideInAmxOrder, NarrowInAmxOrder>(call);
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

[[SLUICE_BF16_TARGET]] StripValues pack_avx512(const StripRows& from, std::byte* strip) {
  const auto* rows = static_cast<const std::uint16_t*>(from.rows);
  auto* to = reinterpret_cast<std::uint16_t*>(strip);
  const std::int64_t depth = from.depth;
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 not_finite = 0;
  for (std::int64_t pair = 0; pair < (depth + 31) / 32 * 16; pair += 16) {
    const std::int64_t left = std::clamp<std::int64_t>(depth / 2 - pair, 0, 16);
    const auto words = static_cast<__mmask16>((1U << left) - 1);
    for (std::int64_t column = 0; column < strip_columns; column += 16) {
      __m512i row[16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const bool exists = column + i < from.columns && left > 0;
        row[i] = exists ? _mm512_maskz_loadu_epi32(words, rows + (column + i) * depth + 2 * pair)
                        : _mm512_setzero_si512();
        not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(row[i], exponent), exponent);
      }
      transpose(row);
      for (std::int64_t i = 0; i < 16; ++i) {
        _mm512_store_si512(to + (pair + i) * pair_elements + 2 * column, row[i]);
      }
    }
  }
  return not_finite == 0 ? StripValues::finite : StripValues::not_finite;
}

}  // namespace sluice::strip

#else

#include "base/error.h"

namespace sluice::strip {

std::span<const StripKernel> kernels_avx512(Bf16Arithmetic /*arithmetic*/) { return {}; }
std::span<const StripKernel> kernels_amx() { return {}; }
StripSchedule own_avx512(std::int64_t /*rows*/, Bf16Arithmetic /*arithmetic*/) {
  throw Error("no AVX-512 on this CPU");
}
StripSchedule own_amx(std::int64_t /*rows*/) { throw Error("no AMX on this CPU"); }
void gemm_avx512(const StripGemm& /*call*/) { throw Error("no AVX-512 on this CPU"); }
void gemm_in_amx_order(const StripGemm& /*call*/) { throw Error("no AVX-512 on this CPU"); }
StripValues pack_avx512(const StripRows& /*from*/, std::byte* /*strip*/) {
  throw Error("no AVX-512 on this CPU");
}

}  // namespace sluice::strip

#endif
