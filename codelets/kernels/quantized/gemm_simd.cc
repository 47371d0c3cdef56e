#include <algorithm>
#include <cmath>
#include <cstring>

#include "codelets/kernels/quantized/kernels.h"
#include "codelets/kernels/quantized/plain_kernel.h"
#include "codelets/kernels/quantized/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/quantized/gemm_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/highway.h>

#include "codelets/kernels/quantized/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quantized::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

using ShortTag = hn::RepartitionToNarrow<IntTag>;
using CodeTag = hn::RebindToUnsigned<ShortTag>;
using Shorts = hn::Vec<ShortTag>;
using CodeWords = hn::Vec<CodeTag>;

constexpr bool has_32_registers = max_sums > 12;

/// Codes as 16-bit numbers, in the order of DigitOrder::words.
template <Codes codes>
HWY_INLINE Shorts word_codes(CodeWords word, int part) {
  const CodeTag d;
  const hn::RebindToSigned<CodeTag> to;
  if constexpr (codes == Codes::int4) {
    const auto mask = hn::Set(d, 15);
    switch (part) {
      case 0:
        return hn::BitCast(to, hn::And(word, mask));
      case 1:
        return hn::BitCast(to, hn::And(hn::ShiftRight<8>(word), mask));
      case 2:
        return hn::BitCast(to, hn::And(hn::ShiftRight<4>(word), mask));
      default:
        return hn::BitCast(to, hn::ShiftRight<12>(word));
    }
  }
  CodeWords bytes = word;
  if constexpr (codes == Codes::fp4) {
    const auto nibbles = hn::And(part < 2 ? word : hn::ShiftRight<4>(word), hn::Set(d, 0x0f0f));
    bytes = hn::BitCast(d, fp4_values(hn::BitCast(WordTag(), nibbles)));
  }
  return hn::BitCast(to,
                     part % 2 == 0 ? hn::And(bytes, hn::Set(d, 255)) : hn::ShiftRight<8>(bytes));
}

/// a * b + c rounded once, also where the CPU has no such instruction.
HWY_INLINE Vector fused_multiply_add(Vector a, Vector b, Vector c) {
#if HWY_TARGET == HWY_SSE2 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4
  const FloatTag d;
  alignas(64) float as[lanes];
  alignas(64) float bs[lanes];
  alignas(64) float cs[lanes];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  for (int i = 0; i < lanes; ++i) cs[i] = std::fma(as[i], bs[i], cs[i]);
  return hn::Load(d, cs);
#else
  return hn::MulAdd(a, b, c);
#endif
}

/// sum += code * numbers, of two inputs.
HWY_INLINE void add_products(Shorts code, Shorts numbers, Ints& sum, Ints& rest) {
  sum = hn::ReorderWidenMulAccumulate(IntTag(), code, numbers, sum, rest);
  keep(sum);
}

/// Two numbers of a row for each column.
HWY_INLINE Shorts broadcast(const std::byte* digits) {
  std::uint32_t both = 0;
  std::memcpy(&both, digits, sizeof(both));
  return hn::BitCast(ShortTag(), hn::Set(WordTag(), both));
}

/// Tiles `Vectors` vectors wide, of as many rows as their sums fit into registers.
template <int Vectors, int MaxRows>
struct PortableKernel {
  static constexpr std::int64_t max_rows = MaxRows;
  static constexpr std::int64_t columns = std::int64_t{lanes} * Vectors;
  static constexpr std::int64_t chunk_steps = 8;

  static bool exponents_add(const Tile& /*t*/, float /*least*/, float /*most*/) { return false; }

  template <Codes codes, int Rows, bool Fetch>
  static void tile(const Tile& tile) {
    constexpr int parts = codes == Codes::int8 ? 2 : 4;
    constexpr int step_lines = codes == Codes::int8 ? 8 : 4;
    const Tile t = tile;  // what is written to C may be none of it
    if (!t.accumulate) clear<Rows>(t);
    const std::byte* codes_at = t.codes;
    const std::byte* ahead = t.ahead;
    std::int64_t index = 0;
    for (std::int64_t step = t.first_step; step < t.end_step; ++index) {
      const std::int64_t steps = std::min(t.block_steps, t.end_step - step);
      // Some CPUs sum up even and odd products apart.
      Ints sum[Rows][Vectors];
      Ints rest[Rows][Vectors];
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int j = 0; j < Vectors; ++j) {
          sum[r][j] = rest[r][j] = hn::Zero(IntTag());
          keep(sum[r][j]);
        }
      }
      const std::byte* from = codes_at;
      const std::byte* digits = t.digits + 2 * depth_step * step;
      for (std::int64_t s = 0; s < steps; ++s) {
        for (std::int64_t i = 0; i < t.lines; ++i, ahead += 64) __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 8
        for (int k = 0; k < step_lines; ++k) {
          if constexpr (Fetch) fetch(from + 4 * t.first_column, t.lines == 0);
          if constexpr (Rows == 1) {
            add_line<codes>(from + 4 * t.first_column, digits, sum[0], rest[0]);
          } else {
#pragma GCC unroll 4
            for (int part = 0; part < parts; ++part) {
              add_part<codes, Rows>(from + 4 * t.first_column, digits + 4 * part, t.row_bytes, part,
                                    sum, rest);
            }
          }
          from += line;
          digits += 4 * parts;
        }
      }
      const std::byte* scales = t.row_scales != nullptr ? t.row_scales : from;
      t.has_zero_points ? add_block<true>(t, index, scales, sum, rest)
                        : add_block<false>(t, index, scales, sum, rest);
      codes_at += t.block_bytes;
      step += steps;
    }
  }

 private:
  /// A line of one row, whose numbers are held.
  template <Codes codes>
  static HWY_INLINE void add_line(const std::byte* codes_at, const std::byte* digits,
                                  Ints (&sum)[Vectors], Ints (&rest)[Vectors]) {
    constexpr int parts = codes == Codes::int8 ? 2 : 4;
    Shorts numbers[parts];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) numbers[part] = broadcast(digits + 4 * part);
#pragma GCC unroll 16
    for (int j = 0; j < Vectors; ++j) {
      const CodeWords word = load_word(codes_at, j);
#pragma GCC unroll 4
      for (int part = 0; part < parts; ++part) {
        add_products(word_codes<codes>(word, part), numbers[part], sum[j], rest[j]);
      }
    }
  }

  /// A part of a line, of which columns are held.
  template <Codes codes, int Rows>
  static HWY_INLINE void add_part(const std::byte* codes_at, const std::byte* digits,
                                  std::int64_t row_bytes, int part, Ints (&sum)[Rows][Vectors],
                                  Ints (&rest)[Rows][Vectors]) {
    Shorts code[Vectors];
#pragma GCC unroll 16
    for (int j = 0; j < Vectors; ++j) code[j] = word_codes<codes>(load_word(codes_at, j), part);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Shorts numbers = broadcast(digits + r * row_bytes);
#pragma GCC unroll 16
      for (int j = 0; j < Vectors; ++j) add_products(code[j], numbers, sum[r][j], rest[r][j]);
    }
  }
  static HWY_INLINE CodeWords load_word(const std::byte* codes_at, int j) {
    return hn::LoadU(CodeTag(), reinterpret_cast<const std::uint16_t*>(codes_at) + 2 * lanes * j);
  }

  template <int Rows>
  static HWY_INLINE void clear(const Tile& t) {
    for (int r = 0; r < Rows; ++r) {
      float* c = t.c + r * t.c_stride + t.first_column;
      std::fill(c, c + columns, 0.0F);
    }
  }

  /// The tile's scales as floats: their type is asked for once.
  static HWY_INLINE void unpack_scales(const Tile& t, const std::byte* scales, float* to) {
    const FloatTag d;
    const auto unpack = [&](Scales type) HWY_ATTR {
#pragma GCC unroll 16
      for (int j = 0; j < Vectors; ++j) {
        hn::Store(load_scales(type, scales, t.first_column + lanes * j), d, to + lanes * j);
      }
    };
    switch (t.scale_type) {
      case Scales::f16:
        return unpack(Scales::f16);
      case Scales::bf16:
        return unpack(Scales::bf16);
      case Scales::f32:
        return unpack(Scales::f32);
      default:
        return unpack(Scales::e8m0);
    }
  }

  /// Adds a block's sums to C.
  template <bool has_zero_points, int Rows>
  static HWY_INLINE void add_block(const Tile& t, std::int64_t index, const std::byte* scales,
                                   const Ints (&sum)[Rows][Vectors],
                                   const Ints (&rest)[Rows][Vectors]) {
    const FloatTag d;
    alignas(64) float of_w[columns];
    unpack_scales(t, scales, of_w);
    const std::byte* zeros =
        scales + strip_columns * static_cast<std::int64_t>(size_bytes(t.scale_type));
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const std::int64_t row = r * t.row_bytes / 4 + index;
      const Ints start = hn::Set(IntTag(), t.starts[row]);
      const Vector of_x = hn::Set(d, t.scales[row]);
      float* c = t.c + r * t.c_stride + t.first_column;
#pragma GCC unroll 16
      for (int j = 0; j < Vectors; ++j) {
        Ints total = hn::RearrangeToOddPlusEven(sum[r][j], rest[r][j]);
        if constexpr (has_zero_points) {
          const Ints zero = load_zero_points(zeros, t.first_column + lanes * j);
          total = hn::Sub(total, hn::Mul(zero, start));
        } else {
          total = hn::Add(total, start);
        }
        const Vector product = hn::Mul(hn::Load(d, of_w + lanes * j), of_x);
        const Vector before = hn::LoadU(d, c + lanes * j);
        hn::StoreU(fused_multiply_add(hn::ConvertTo(d, total), product, before), d, c + lanes * j);
      }
    }
  }

  static HWY_INLINE void fetch(const std::byte* at, bool also_far) {
    constexpr std::int64_t near_bytes = 4096;
    constexpr std::int64_t far_bytes = 8192;
    for (std::int64_t i = 0; i < 4 * columns; i += 64) {
      __builtin_prefetch(at + near_bytes + i, 0, 3);
      if (also_far) __builtin_prefetch(at + far_bytes + i, 0, 2);
    }
  }
};

void gemm(const Gemm& call) {
  if (call.rows == 1) {
    return Multiplication<PortableKernel<std::min(strip_vectors, 8), 1>>(call).run();
  }
  if constexpr (has_32_registers) {
    Multiplication<PortableKernel<4, 5>>(call).run();
  } else {
    Multiplication<PortableKernel<2, 4>>(call).run();
  }
}

#else

void gemm(const Gemm& call) { Multiplication<PlainKernel>(call).run(); }

#endif

}  // namespace sluice::quantized::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quantized {

HWY_EXPORT(gemm);

void gemm_portable(const Gemm& call) { HWY_DYNAMIC_DISPATCH(gemm)(call); }

}  // namespace sluice::quantized
#endif
