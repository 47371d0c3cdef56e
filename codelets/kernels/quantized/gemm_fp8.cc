#include "codelets/kernels/quantized/gemm_fp8.h"

#include <algorithm>

#include "base/memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/quantized/gemm_fp8.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/highway.h>

#include "codelets/kernels/quantized/codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quantized::HWY_NAMESPACE {

/// The lower byte of each half of a word, an E4M3, becomes a bf16.
HWY_INLINE Words widen_fp8(Words bytes) {
  const WordTag d;
  const Words magnitude = hn::And(bytes, hn::Set(d, 0x007f007fU));
  const Words sign = hn::ShiftLeft<8>(hn::Xor(bytes, magnitude));
  const Words normal = hn::Add(hn::ShiftLeft<4>(magnitude), hn::Set(d, 0x3c003c00U));
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t value = hn::GetLane(normal);
  for (int half = 0; half < 32; half += 16) {
    const std::uint32_t code = hn::GetLane(magnitude) >> half & 0x7fU;
    if (code >= 8 && code != 0x7f) continue;
    const std::uint32_t bits = to_bf16(fp8_to_float(static_cast<std::uint8_t>(code))).bits;
    value = (value & ~(0xffffU << half)) | bits << half;
  }
  return hn::Or(hn::Set(d, value), sign);
#else
  const hn::Repartition<std::int16_t, WordTag> shorts;
  const hn::Repartition<std::uint8_t, WordTag> octets;
  // 0 to 7 are that many times 2^-9.
  alignas(16) static constexpr std::uint8_t upper[16] = {0,    0x3b, 0x3b, 0x3b,
                                                         0x3c, 0x3c, 0x3c, 0x3c};
  alignas(16) static constexpr std::uint8_t lower[16] = {0,    0x00, 0x80, 0xc0,
                                                         0x00, 0x20, 0x40, 0x60};
  const auto index = hn::BitCast(octets, hn::And(magnitude, hn::Set(d, 0x00070007U)));
  const auto high = hn::TableLookupBytes(hn::LoadDup128(octets, upper), index);
  const auto low = hn::TableLookupBytes(hn::LoadDup128(octets, lower), index);
  const auto subnormal =
      hn::Or(hn::ShiftLeft<8>(hn::BitCast(shorts, high)), hn::BitCast(shorts, low));
  const auto code = hn::BitCast(shorts, magnitude);
  const auto small =
      hn::IfThenElse(hn::Lt(code, hn::Set(shorts, 8)), subnormal, hn::BitCast(shorts, normal));
  const auto all =
      hn::IfThenElse(hn::Eq(code, hn::Set(shorts, 0x7f)), hn::Set(shorts, 0x7fc0), small);
  return hn::Or(hn::BitCast(d, all), sign);
#endif
}

/// Codes [inputs / 4][64][4] become a strip of bf16 [inputs / 2][64][2].
void unpack(const std::byte* codes, std::int64_t inputs, std::byte* strip) {
  const WordTag d;
  const Words first = hn::Set(d, 0x000000ffU);
  const Words second = hn::Set(d, 0x0000ff00U);
  for (std::int64_t i = 0; i < inputs; i += 4, codes += line, strip += 2 * line) {
    for (std::int64_t at = 0; at < line; at += std::int64_t{4} * lanes) {
      const Words word = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(codes + at));
      const auto halves = [&](Words two) HWY_ATTR {
        return hn::Or(hn::And(two, first), hn::ShiftLeft<8>(hn::And(two, second)));
      };
      auto* to = reinterpret_cast<std::uint32_t*>(strip + at);
      hn::StoreU(widen_fp8(halves(word)), d, to);
      hn::StoreU(widen_fp8(halves(hn::ShiftRight<16>(word))), d, to + strip_columns);
    }
  }
}

/// c = sum * scale, or more of it, for `rows` of 64 columns.
void add_scaled(const float* sum, std::int64_t rows, Scales type, const std::byte* scales,
                bool accumulate, float* c, std::int64_t c_stride) {
  const FloatTag d;
  for (std::int64_t column = 0; column < strip_columns; column += lanes) {
    const Vector scale = load_scales(type, scales, column);
    for (std::int64_t row = 0; row < rows; ++row) {
      float* to = c + row * c_stride + column;
      const Vector before = accumulate ? hn::LoadU(d, to) : hn::Zero(d);
      const Vector one = hn::LoadU(d, sum + row * strip_columns + column);
      hn::StoreU(hn::MulAdd(one, scale, before), d, to);
    }
  }
}

}  // namespace sluice::quantized::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quantized {

HWY_EXPORT(unpack);
HWY_EXPORT(add_scaled);

namespace {

/// Rows of X of one block.
struct BlockRows {
  const std::uint16_t* x;
  std::int64_t stride;
};

/// A copy with zeros up to whole steps, where X ends before; this thread's until the next call.
BlockRows rows_of(const Fp8Gemm& call, std::int64_t first, std::int64_t inputs) {
  const std::uint16_t* from = call.x + first;
  if (first + inputs <= call.in) return {from, call.x_stride};
  thread_local Workspace scratch;
  auto* copy = reinterpret_cast<std::uint16_t*>(
      scratch.reserve(static_cast<std::size_t>(call.rows * inputs) * sizeof(std::uint16_t)));
  for (std::int64_t row = 0; row < call.rows; ++row) {
    std::uint16_t* to = copy + row * inputs;
    std::fill(std::copy_n(from + row * call.x_stride, call.in - first, to), to + inputs, 0);
  }
  return {copy, inputs};
}

}  // namespace

void gemm_fp8(const Fp8Gemm& call) {
  if (call.rows == 0) return;
  const StripLayout layout(call.format, call.in);
  thread_local Workspace strips;
  thread_local Workspace sums;
  std::byte* values = strips.reserve(strip_bytes(layout.block(), DType::bf16));
  auto* sum = reinterpret_cast<float*>(
      sums.reserve(static_cast<std::size_t>(call.rows * strip_columns) * sizeof(float)));
  for (std::int64_t first = 0; first < layout.depth(); first += layout.block()) {
    const std::int64_t inputs = std::min(layout.block(), layout.depth() - first);
    const BlockRows rows = rows_of(call, first, inputs);
    const std::int64_t group = first / layout.group();
    for (std::int64_t strip = 0; strip < call.strips; ++strip) {
      const std::byte* w = call.w + strip * layout.size_bytes();
      HWY_DYNAMIC_DISPATCH(unpack)
      (w + group * layout.group_bytes() + layout.code_bytes(first - group * layout.group()), inputs,
       values);
      strip_gemm({.rows = call.rows,
                  .depth = inputs,
                  .a = rows.x,
                  .a_stride = rows.stride,
                  .b = values,
                  .c = sum,
                  .c_stride = strip_columns,
                  .arithmetic = call.arithmetic});
      HWY_DYNAMIC_DISPATCH(add_scaled)
      (sum, call.rows, call.format.scales, w + layout.scales_offset(group),
       call.accumulate || first > 0, call.c + strip * strip_columns, call.c_stride);
    }
  }
}

}  // namespace sluice::quantized
#endif
