#include "codelets/kernels/quantized/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "codelets/kernels/quantized/avx512.h"
#include "codelets/kernels/quantized/tiles.h"

namespace sluice::quantized {
namespace {

using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

constexpr int vectors = strip_columns / 16;
constexpr std::int32_t one_bits = 0x3f800000;  ///< of 1.0

[[SLUICE_VNNI_INLINE]] inline __m512i broadcast(const std::byte* digits) {
  int four = 0;
  std::memcpy(&four, digits, sizeof(four));
  return _mm512_set1_epi32(four);
}

/// A block's sums of `Rows` rows: of upper and of lower digits apart.
template <int Rows>
struct Sums {
  __m512i upper[Rows][vectors];
  __m512i lower[Rows][vectors];
};

/// By VPDPBUSD, of whose four bytes those of codes have no sign.
struct VnniKernel {
  static constexpr std::int64_t max_rows = 2;
  static constexpr std::int64_t columns = strip_columns;
  static constexpr std::int64_t chunk_steps = 8;

  /// Whether products of scales of W with those of x, which are powers of two from `least` to
  /// `most`, need but a sum of exponents, which keeps the units free that multiply: all that goes
  /// in and comes out are normal numbers.
  [[SLUICE_VNNI_TARGET]] static bool exponents_add(const Tile& t, float least, float most) {
    constexpr std::int32_t least_normal = 0x00800000;
    constexpr std::int32_t most_normal = 0x7f7fffff;
    const std::int32_t below = std::max(0, one_bits - std::bit_cast<std::int32_t>(least));
    const std::int32_t above = std::max(0, std::bit_cast<std::int32_t>(most) - one_bits);
    const __m512i lower = _mm512_set1_epi32(least_normal + below);
    const __m512i upper = _mm512_set1_epi32(most_normal - above);
    __mmask16 within = all_lanes;
    const std::byte* block = t.codes;
    for (std::int64_t step = t.first_step; step < t.end_step; step += t.block_steps) {
      const std::int64_t steps = std::min(t.block_steps, t.end_step - step);
      const std::byte* scales =
          t.row_scales != nullptr ? t.row_scales : block + steps * t.step_bytes;
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        const __m512i bits =
            _mm512_and_si512(_mm512_castps_si512(load_scales(t.scale_type, scales, j)),
                             _mm512_set1_epi32(0x7fffffff));
        within = _mm512_mask_cmple_epi32_mask(within, lower, bits);
        within = _mm512_mask_cmple_epi32_mask(within, bits, upper);
      }
      block += t.block_bytes;
    }
    return within == all_lanes;
  }

  template <Codes codes, int Rows, bool Fetch>
  [[SLUICE_VNNI_TARGET]] static void tile(const Tile& t) {
    constexpr bool holds = holds_results<Rows>;
    constexpr std::int64_t line_inputs = codes == Codes::int8 ? 4 : 8;
    __m512 result[Rows][vectors];
    if constexpr (holds) load_results(t, result);
    const std::byte* codes_at = t.codes;
    const std::byte* ahead = t.ahead;
    std::int64_t index = 0;
    for (std::int64_t step = t.first_step; step < t.end_step; ++index) {
      const std::int64_t steps = std::min(t.block_steps, t.end_step - step);
      Sums<Rows> sums;
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m512i start_of_row = _mm512_set1_epi32(t.has_zero_points ? 0 : start(t, r, index));
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) {
          sums.upper[r][j] = _mm512_setzero_si512();
          sums.lower[r][j] = start_of_row;
        }
      }
      const std::byte* from = codes_at;
      const std::byte* digits = t.digits + 2 * depth_step * step;
      for (std::int64_t s = 0; s < steps; ++s) {
        for (std::int64_t i = 0; i < t.lines; ++i, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int k = 0; k < step_lines<codes>; ++k) {
          __m512i word[vectors];
#pragma GCC unroll 4
          for (int j = 0; j < vectors; ++j) {
            if constexpr (Fetch) fetch(from + 64 * j, t.lines == 0);
            word[j] = _mm512_load_si512(from + 64 * j);
          }
          add_line<codes>(word, digits, t.row_bytes, steps * depth_step, sums);
          from += line;
          digits += line_inputs;
        }
      }
      const std::byte* scales_at = t.row_scales != nullptr ? t.row_scales : from;
      __m512 scale[vectors];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) scale[j] = load_scales(t.scale_type, scales_at, j);
      if (t.exponents_add) {
        finish<Product::by_exponents>(t, index, scales_at, scale, sums, result);
      } else {
        finish<Product::multiplied>(t, index, scales_at, scale, sums, result);
      }
      codes_at += t.block_bytes;
      step += steps;
    }
    if constexpr (holds) store_results(t, result);
  }

 private:
  /// Of few rows the results stay in registers, too.
  template <int Rows>
  static constexpr bool holds_results = 3 * Rows* vectors <= 24;

  /// The products of a line of codes, a word of each column, with as many inputs of each row. A
  /// row's upper digits of a block lie before its lower ones.
  template <Codes codes, int Rows>
  [[SLUICE_VNNI_INLINE]] static inline void add_line(const __m512i (&word)[vectors],
                                                     const std::byte* digits,
                                                     std::int64_t row_bytes,
                                                     std::int64_t block_inputs, Sums<Rows>& sums) {
    constexpr int parts = codes == Codes::int8 ? 1 : 2;
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part) {
      __m512i code[vectors];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) code[j] = byte_codes<codes>(word[j], part);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const std::byte* upper = digits + r * row_bytes + 4 * part;
        const __m512i up = broadcast(upper);
        const __m512i low = broadcast(upper + block_inputs);
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) {
          sums.upper[r][j] = _mm512_dpbusd_epi32(sums.upper[r][j], code[j], up);
          sums.lower[r][j] = _mm512_dpbusd_epi32(sums.lower[r][j], code[j], low);
        }
      }
    }
  }

  /// How a scale of W by one of x is computed.
  enum class Product : std::uint8_t { multiplied, by_exponents };

  /// Adds a block's sums to the results, or to C.
  template <Product product, int Rows>
  [[SLUICE_VNNI_INLINE]] static inline void finish(const Tile& t, std::int64_t index,
                                                   const std::byte* scales,
                                                   const __m512 (&scale)[vectors],
                                                   const Sums<Rows>& sums,
                                                   __m512 (&result)[Rows][vectors]) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        __m512i total = _mm512_add_epi32(_mm512_maskz_slli_epi32(all_lanes, sums.upper[r][j], 8),
                                         sums.lower[r][j]);
        if (t.has_zero_points) {
          const __m512i zero = load_zero_points(scales + scale_bytes(t.scale_type), j);
          total = _mm512_sub_epi32(total,
                                   _mm512_mullo_epi32(zero, _mm512_set1_epi32(start(t, r, index))));
        }
        const float of_x = x_scale(t, r, index);
        __m512 factor;
        if constexpr (product == Product::by_exponents) {
          const __m512i exponent = _mm512_set1_epi32(std::bit_cast<std::int32_t>(of_x) - one_bits);
          factor = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(scale[j]), exponent));
        } else {
          factor = _mm512_mul_ps(scale[j], _mm512_set1_ps(of_x));
        }
        const __m512 sum = _mm512_maskz_cvtepi32_ps(all_lanes, total);
        if constexpr (holds_results<Rows>) {
          result[r][j] = _mm512_fmadd_ps(sum, factor, result[r][j]);
        } else {
          float* c = t.c + r * t.c_stride + 16 * j;
          const bool exists = t.accumulate || index > 0;
          const __m512 before = exists ? _mm512_loadu_ps(c) : _mm512_setzero_ps();
          _mm512_storeu_ps(c, _mm512_fmadd_ps(sum, factor, before));
        }
      }
    }
  }

  static constexpr std::int64_t scale_bytes(Scales type) {
    return strip_columns * static_cast<std::int64_t>(size_bytes(type));
  }
  static std::int32_t start(const Tile& t, int row, std::int64_t block) {
    return *reinterpret_cast<const std::int32_t*>(
        reinterpret_cast<const std::byte*>(t.starts + block) + row * t.row_bytes);
  }
  static float x_scale(const Tile& t, int row, std::int64_t block) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(t.scales + block) +
                                           row * t.row_bytes);
  }
  /// What is read soon into the first-level cache, and where nothing else does, what is read later
  /// into the second-level one.
  [[SLUICE_VNNI_INLINE]] static inline void fetch(const std::byte* at, bool also_far) {
    constexpr std::int64_t near_bytes = 4096;
    constexpr std::int64_t far_bytes = 8192;
    _mm_prefetch(at + near_bytes, _MM_HINT_T0);
    if (also_far) _mm_prefetch(at + far_bytes, _MM_HINT_T1);
  }
  template <int Rows>
  [[SLUICE_VNNI_INLINE]] static inline void load_results(const Tile& t,
                                                         __m512 (&result)[Rows][vectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) {
        result[r][j] =
            t.accumulate ? _mm512_loadu_ps(t.c + r * t.c_stride + 16 * j) : _mm512_setzero_ps();
      }
    }
  }
  template <int Rows>
  [[SLUICE_VNNI_INLINE]] static inline void store_results(const Tile& t,
                                                          const __m512 (&result)[Rows][vectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j)
        _mm512_storeu_ps(t.c + r * t.c_stride + 16 * j, result[r][j]);
    }
  }
};

}  // namespace

void gemm_vnni(const Gemm& call) { Multiplication<VnniKernel>(call).run(); }

}  // namespace sluice::quantized

#else

#include "base/error.h"

namespace sluice::quantized {

void gemm_vnni(const Gemm& /*call*/) { throw Error("no AVX-512 on this CPU"); }

}  // namespace sluice::quantized

#endif
