// Codes, scales and zero points in Highway's vectors; included once a target, as Highway's own are.

#if defined(SLUICE_QUANTIZED_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_QUANTIZED_CODES_INL_H
#undef SLUICE_QUANTIZED_CODES_INL_H
#else
#define SLUICE_QUANTIZED_CODES_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "codelets/kernels/multiply_add-inl.h"
#include "codelets/kernels/quantized/digits.h"
#include "codelets/kernels/quantized/strip.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quantized::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): of this target

using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;
using IntTag = hn::RebindToSigned<FloatTag>;
using Ints = hn::Vec<IntTag>;

constexpr int strip_vectors = static_cast<int>(strip_columns) / lanes;
constexpr std::int64_t line = 4 * strip_columns;  ///< a word of codes of each column

/// Gives a sum a register of its own. GCC 12 keeps sums that begin with one zero in memory, and
/// adds integers in another order, which needs more registers than there are.
template <class V>
HWY_INLINE void keep(V& sum) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  asm volatile("" : "+v"(sum.raw));  // volatile: equal ones would become one
#else
  (void)sum;
#endif
}

/// A byte each: twice the values of E2M1's codes, so far above zero that none is below it.
HWY_INLINE Words fp4_values(Words nibbles) {
  static_assert(fp4_offset == 12);
  alignas(16) static constexpr std::uint8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                         12, 11, 10, 9,  8,  6,  4,  0};
#if HWY_TARGET == HWY_SCALAR
  const std::uint32_t word = hn::GetLane(nibbles);
  std::uint32_t values = 0;
  for (int i = 0; i < 32; i += 8) values |= std::uint32_t{table[word >> i & 15U]} << i;
  return hn::Set(WordTag(), values);
#else
  const hn::Repartition<std::uint8_t, WordTag> bytes;
  return hn::BitCast(
      WordTag(), hn::TableLookupBytes(hn::LoadDup128(bytes, table), hn::BitCast(bytes, nibbles)));
#endif
}

/// Scales of a vector of columns from `column` on.
HWY_INLINE Vector load_scales(Scales type, const std::byte* scales, std::int64_t column) {
  const FloatTag d;
  if (type == Scales::f16) {
    const hn::Rebind<hwy::float16_t, FloatTag> halves;
    const auto* from = reinterpret_cast<const hwy::float16_t*>(scales) + column;
    return hn::PromoteTo(d, hn::LoadU(halves, from));
  }
  if (type == Scales::bf16) {
    const hn::Rebind<std::uint16_t, FloatTag> halves;
    const auto* from = reinterpret_cast<const std::uint16_t*>(scales) + column;
    return lower(hn::PromoteTo(WordTag(), hn::LoadU(halves, from)));
  }
  if (type == Scales::f32) return hn::LoadU(d, reinterpret_cast<const float*>(scales) + column);
  const hn::Rebind<std::uint8_t, FloatTag> bytes;
  const auto* from = reinterpret_cast<const std::uint8_t*>(scales) + column;
  const Words exponents = hn::ShiftLeft<23>(hn::PromoteTo(WordTag(), hn::LoadU(bytes, from)));
  return hn::BitCast(d, hn::Max(exponents, hn::Set(WordTag(), 0x00400000U)));  // 2^-127
}
HWY_INLINE Ints load_zero_points(const std::byte* zeros, std::int64_t column) {
  const hn::Rebind<std::uint8_t, IntTag> bytes;
  const auto* from = reinterpret_cast<const std::uint8_t*>(zeros) + column;
  return hn::PromoteTo(IntTag(), hn::LoadU(bytes, from));
}

}  // namespace sluice::quantized::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
