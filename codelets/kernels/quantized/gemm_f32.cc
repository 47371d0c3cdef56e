#include "codelets/kernels/quantized/gemm_f32.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/quantized/gemm_f32.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/highway.h>

#include "codelets/kernels/quantized/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quantized::HWY_NAMESPACE {

/// Inputs whose x are copied at once: rows at fixed offsets need one register for all of them.
constexpr std::int64_t chunk = 512;
constexpr std::int64_t x_stride = chunk + 16;  // rows in different cache sets

/// A step of a strip: values before they are scaled, and the scales.
struct Step {
  alignas(64) float values[depth_step][strip_columns];
  alignas(64) float scales[strip_columns];
};

/// E4M3's bytes, one a lane.
HWY_INLINE Vector fp8_values(Words bytes) {
  const FloatTag d;
  const Words magnitude = hn::And(bytes, hn::Set(WordTag(), 0x7fU));
  const Words sign = hn::ShiftLeft<24>(hn::Xor(bytes, magnitude));
  const Words normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(WordTag(), 120U << 23));
  const Vector subnormal =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(IntTag(), magnitude)), hn::Set(d, 0x1p-9F));
  const IntTag i;
  const auto as_ints = hn::BitCast(i, magnitude);
  Words value = hn::IfThenElse(hn::RebindMask(WordTag(), hn::Gt(hn::Set(i, 8), as_ints)),
                               hn::BitCast(WordTag(), subnormal), normal);
  value = hn::IfThenElse(hn::RebindMask(WordTag(), hn::Eq(as_ints, hn::Set(i, 127))),
                         hn::Set(WordTag(), 0x7fc00000U), value);
  return hn::BitCast(d, hn::Or(value, sign));
}

template <Codes codes>
HWY_INLINE Vector value_of(Words byte, Ints zero) {
  if constexpr (codes == Codes::fp8) return fp8_values(byte);
  const Vector value = hn::ConvertTo(FloatTag(), hn::Sub(hn::BitCast(IntTag(), byte), zero));
  return codes == Codes::fp4 ? hn::Mul(value, hn::Set(FloatTag(), 0.5F)) : value;
}

/// The four codes of a vector of words of a byte each, into four rows of values.
template <Codes codes>
HWY_INLINE void store_values(Words bytes, Ints zero, float* to) {
  const FloatTag d;
  const Words mask = hn::Set(WordTag(), 255U);
  hn::Store(value_of<codes>(hn::And(bytes, mask), zero), d, to);
  hn::Store(value_of<codes>(hn::And(hn::ShiftRight<8>(bytes), mask), zero), d, to + strip_columns);
  hn::Store(value_of<codes>(hn::And(hn::ShiftRight<16>(bytes), mask), zero), d,
            to + 2 * strip_columns);
  hn::Store(value_of<codes>(hn::ShiftRight<24>(bytes), zero), d, to + 3 * strip_columns);
}

/// `zeros`: the zero points' bytes, or null.
template <Codes codes>
void unpack_values(const std::byte* from, const std::byte* zeros, Step& step) {
  const std::int32_t usual = codes == Codes::fp4 ? fp4_offset : default_zero_point(codes);
  for (int j = 0; j < strip_vectors; ++j) {
    const std::int64_t column = std::int64_t{lanes} * j;
    const Ints zero = zeros != nullptr ? load_zero_points(zeros, column) : hn::Set(IntTag(), usual);
    const auto* words = reinterpret_cast<const std::uint32_t*>(from) + column;
    float* to = &step.values[0][column];
    for (float* end = to + depth_step * strip_columns; to < end; words += strip_columns) {
      const Words word = hn::LoadU(WordTag(), words);
      if constexpr (codes == Codes::int8 || codes == Codes::fp8) {
        store_values<codes>(word, zero, to);
        to += 4 * strip_columns;
      } else {
        const Words mask = hn::Set(WordTag(), 0x0f0f0f0fU);
        Words low = hn::And(word, mask);
        Words high = hn::And(hn::ShiftRight<4>(word), mask);
        if constexpr (codes == Codes::fp4) {
          low = fp4_values(low);
          high = fp4_values(high);
        }
        store_values<codes>(low, zero, to);
        store_values<codes>(high, zero, to + 4 * strip_columns);
        to += 8 * strip_columns;
      }
    }
  }
}

void unpack(const WeightFormat& format, const StripLayout& layout, const std::byte* strip,
            std::int64_t index, Step& step) {
  const std::int64_t group = index * depth_step / layout.group();
  const std::int64_t within = index * depth_step % layout.group();
  const std::byte* from = strip + group * layout.group_bytes() + layout.code_bytes(within);
  const std::byte* zeros =
      format.has_zero_points ? strip + layout.zero_points_offset(group) : nullptr;
  switch (format.codes) {
    case Codes::int4:
      unpack_values<Codes::int4>(from, zeros, step);
      break;
    case Codes::int8:
      unpack_values<Codes::int8>(from, zeros, step);
      break;
    case Codes::fp8:
      unpack_values<Codes::fp8>(from, zeros, step);
      break;
    default:
      unpack_values<Codes::fp4>(from, zeros, step);
  }
  for (std::int64_t column = 0; column < strip_columns; column += lanes) {
    hn::Store(load_scales(format.scales, strip + layout.scales_offset(group), column), FloatTag(),
              step.scales + column);
  }
}

/// Some rows by `Vectors` vectors of columns, over a step.
struct StepTile {
  const float* x;  ///< of x_stride
  const float* values;
  const float* scales;
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};
/// The products of an input. Of rows and columns the fewer are held.
template <int Rows, int Vectors>
HWY_INLINE void add_input(const float* x, const float* values, Vector (&sum)[Rows][Vectors]) {
  const FloatTag d;
  if constexpr (Rows < Vectors) {
    Vector row[Rows];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) row[r] = hn::Set(d, x[r * x_stride]);
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      const Vector column = hn::Load(d, values + lanes * j);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) add_product(sum[r][j], row[r], column);
    }
  } else {
    Vector column[Vectors];
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) column[j] = hn::Load(d, values + lanes * j);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const Vector row = hn::Set(d, x[r * x_stride]);
#pragma GCC unroll 12
      for (int j = 0; j < Vectors; ++j) add_product(sum[r][j], row, column[j]);
    }
  }
}
template <int Rows, int Vectors>
void multiply(const StepTile& t) {
  const FloatTag d;
  Vector sum[Rows][Vectors];
#pragma GCC unroll 12
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
    for (int j = 0; j < Vectors; ++j) {
      sum[r][j] = hn::Zero(d);
      keep(sum[r][j]);
    }
  }
  const float* values = t.values;
  // Two inputs at a turn, as GCC 12 moves sums from one register to another with one.
  for (const float* x = t.x; x < t.x + depth_step; x += 2, values += 2 * strip_columns) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      add_input(x + part, values + part * strip_columns, sum);
    }
  }
#pragma GCC unroll 12
  for (int j = 0; j < Vectors; ++j) {
    const Vector scale = hn::Load(d, t.scales + lanes * j);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      float* c = t.c + r * t.c_stride + lanes * j;
      const Vector before = t.accumulate ? hn::LoadU(d, c) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(sum[r][j], scale, before), d, c);
    }
  }
}

/// All rows by the strip's columns, over a step, in tiles whose sums fit into registers.
template <int MaxRows, int Vectors>
void multiply_step(const F32Gemm& call, const float* x, const Step& step, float* c,
                   bool accumulate) {
  constexpr auto tiles = []<std::size_t... I>(std::index_sequence<I...>) {
    return std::array<void (*)(const StepTile&), sizeof...(I)>{
        &multiply<static_cast<int>(I) + 1, Vectors>...};
  }
  (std::make_index_sequence<static_cast<std::size_t>(MaxRows)>());
  const std::int64_t num_tiles = (call.rows + MaxRows - 1) / MaxRows;
  std::int64_t first = 0;
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    const std::int64_t rows = (call.rows - first + num_tiles - tile - 1) / (num_tiles - tile);
    for (std::int64_t column = 0; column < strip_columns; column += Vectors * lanes) {
      tiles[static_cast<std::size_t>(rows - 1)]({.x = x + first * x_stride,
                                                 .values = &step.values[0][column],
                                                 .scales = step.scales + column,
                                                 .c = c + first * call.c_stride + column,
                                                 .c_stride = call.c_stride,
                                                 .accumulate = accumulate});
    }
    first += rows;
  }
}

/// A chunk of the rows of X, with zeros up to whole steps; this thread's until the next call.
float* copy_rows(const F32Gemm& call, std::int64_t first, std::int64_t inputs) {
  thread_local Workspace scratch;
  auto* copy = reinterpret_cast<float*>(
      scratch.reserve(static_cast<std::size_t>(call.rows * x_stride) * sizeof(float)));
  const std::int64_t count = std::min(inputs, call.in - first);
  for (std::int64_t row = 0; row < call.rows; ++row) {
    float* to = copy + row * x_stride;
    std::copy_n(call.x + row * call.x_stride + first, count, to);
    std::fill(to + count, to + inputs, 0.0F);
  }
  return copy;
}

void gemm_f32(const F32Gemm& call) {
  const StripLayout layout(call.format, call.in);
  Step step;
  for (std::int64_t first = 0; first < layout.depth(); first += chunk) {
    const std::int64_t inputs = std::min(chunk, layout.depth() - first);
    const float* x = copy_rows(call, first, inputs);
    for (std::int64_t strip = 0; strip < call.strips; ++strip) {
      const std::byte* w = call.w + strip * layout.size_bytes();
      float* c = call.c + strip * strip_columns;
      for (std::int64_t at = 0; at < inputs; at += depth_step) {
        unpack(call.format, layout, w, (first + at) / depth_step, step);
        const bool accumulate = call.accumulate || first + at > 0;
        if (call.rows == 1) {
          multiply_step<1, std::min(strip_vectors, 8)>(call, x + at, step, c, accumulate);
        } else {
          constexpr int vectors = std::min(strip_vectors, 2);
          multiply_step<max_sums / vectors, vectors>(call, x + at, step, c, accumulate);
        }
      }
    }
  }
}

}  // namespace sluice::quantized::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quantized {

HWY_EXPORT(gemm_f32);

void gemm_f32(const F32Gemm& call) {
  if (call.rows > 0) HWY_DYNAMIC_DISPATCH(gemm_f32)(call);
}

}  // namespace sluice::quantized
#endif
