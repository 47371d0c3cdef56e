#include "codelets/kernels/quantized/digits.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/quantized/digits.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::quantized::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
constexpr auto lanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));

/// A block of a row: its values, zeros where they end, and its numbers.
struct BlockValues {
  alignas(64) float x[max_block];
  alignas(64) std::int16_t numbers[max_block];
};

void load(const float* from, std::int64_t count, float* to) { std::copy_n(from, count, to); }
void load(const std::uint16_t* from, std::int64_t count, float* to) {
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto words = hn::PromoteTo(WordTag(), hn::LoadU(halves, from + i));
    hn::StoreU(hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words)), FloatTag(), to + i);
  }
  for (; i < count; ++i) to[i] = to_float(BFloat16{from[i]});
}

/// The largest |x|'s bits; those of no number are above all others.
std::uint32_t largest_bits(const float* x, std::int64_t count) {
  const IntTag d;
  auto largest = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto bits = hn::BitCast(d, hn::Load(FloatTag(), x + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(d, 0x7fffffff)));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

/// Of a block's scale, 2^exponent; 1 where all is zero. Never so small that its inverse, or half of
/// it, is no normal number.
int scale_exponent(std::uint32_t largest) {
  constexpr float first_too_large = 32639.5F;
  if (largest == 0) return 0;
  const int exponent = std::max(static_cast<int>(largest >> 23) - 127 - 14, -125);
  const float number = std::bit_cast<float>(largest) *
                       std::bit_cast<float>(static_cast<std::uint32_t>(127 - exponent) << 23);
  return number < first_too_large ? exponent : exponent + 1;
}

/// number = x * inverse of `count`; returns their sum.
std::int32_t make_numbers(BlockValues& block, std::int64_t count, float inverse) {
  const IntTag d;
  const hn::Rebind<std::int16_t, FloatTag> narrow;
  const auto factor = hn::Set(FloatTag(), inverse);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto numbers = hn::NearestInt(hn::Mul(hn::Load(FloatTag(), block.x + i), factor));
    sum = hn::Add(sum, numbers);
    hn::Store(hn::DemoteTo(narrow, numbers), narrow, block.numbers + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void store_words(const std::int16_t* numbers, std::int64_t count, std::byte* to) {
  const hn::CappedTag<std::uint64_t, 8> d;
  const auto step = static_cast<std::int64_t>(hn::MaxLanes(d)) * 4;
  const auto second = hn::Set(d, 0x00000000ffff0000U);
  for (std::int64_t i = 0; i < count; i += step) {
    const auto four = hn::Load(d, reinterpret_cast<const std::uint64_t*>(numbers + i));
    const auto outer = hn::AndNot(hn::Set(d, 0x0000ffffffff0000U), four);
    const auto inner =
        hn::Or(hn::ShiftLeft<16>(hn::And(four, second)), hn::And(hn::ShiftRight<16>(four), second));
    hn::StoreU(hn::Or(outer, inner), d, reinterpret_cast<std::uint64_t*>(to + 2 * i));
  }
}

void store_bytes(const std::int16_t* numbers, std::int64_t count, std::byte* to) {
  const hn::CappedTag<std::int16_t, 32> d;
  const hn::Rebind<std::int8_t, decltype(d)> narrow;
  const auto step = static_cast<std::int64_t>(hn::MaxLanes(d));
  auto* digits = reinterpret_cast<std::int8_t*>(to);
  for (std::int64_t i = 0; i < count; i += step) {
    const auto number = hn::Load(d, numbers + i);
    const auto upper = hn::ShiftRight<8>(hn::Add(number, hn::Set(d, 128)));
    const auto lower = hn::Sub(number, hn::ShiftLeft<8>(upper));
    hn::StoreU(hn::DemoteTo(narrow, upper), narrow, digits + i);
    hn::StoreU(hn::DemoteTo(narrow, lower), narrow, digits + count + i);
  }
}

template <class Element>
void make_row(const DigitLayout& layout, const Element* x, std::byte* row) {
  const StripLayout& strip = layout.strip();
  auto* scales = reinterpret_cast<float*>(row + layout.scales_offset());
  auto* starts = reinterpret_cast<std::int32_t*>(row + layout.starts_offset());
  BlockValues block;
  for (std::int64_t index = 0; index < strip.num_blocks(); ++index) {
    const std::int64_t first = index * strip.block();
    const std::int64_t depth = std::min(strip.block(), strip.depth() - first);
    const std::int64_t count = std::min(depth, layout.in() - first);
    load(x + first, count, block.x);
    std::fill(block.x + count, block.x + depth, 0.0F);
    const std::uint32_t largest = largest_bits(block.x, depth);
    const bool finite = largest < 0x7f800000U;
    const int exponent = finite ? scale_exponent(largest) : 0;
    const auto power = [](int of) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(127 + of) << 23);
    };
    if (!finite) std::fill(block.x, block.x + depth, 0.0F);
    starts[index] = make_numbers(block, depth, power(-exponent)) * layout.start_factor();
    scales[index] =
        finite ? power(exponent) * layout.scale_factor() : std::numeric_limits<float>::quiet_NaN();
    std::byte* to = row + 2 * first;
    layout.order() == DigitOrder::words ? store_words(block.numbers, depth, to)
                                        : store_bytes(block.numbers, depth, to);
  }
}

void make(const DigitLayout& layout, const InputRows& rows, std::byte* digits) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    std::byte* to = digits + row * layout.row_bytes();
    rows.dtype == DType::f32
        ? make_row(layout, static_cast<const float*>(rows.x) + row * rows.stride, to)
        : make_row(layout, static_cast<const std::uint16_t*>(rows.x) + row * rows.stride, to);
  }
}

}  // namespace sluice::quantized::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quantized {

HWY_EXPORT(make);

std::int32_t DigitLayout::start_factor() const {
  if (has_zero_points_) return 1;
  return codes_ == WeightFormat::Codes::fp4 ? -fp4_offset : -default_zero_point(codes_);
}

void make_digits(const DigitLayout& layout, const InputRows& rows, std::byte* digits) {
  HWY_DYNAMIC_DISPATCH(make)(layout, rows, digits);
}

}  // namespace sluice::quantized
#endif
