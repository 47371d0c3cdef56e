// f32 multiply-adds over bf16 in Highway's vectors; included once a target, as Highway's own are.

#if defined(SLUICE_MULTIPLY_ADD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_MULTIPLY_ADD_INL_H
#undef SLUICE_MULTIPLY_ADD_INL_H
#else
#define SLUICE_MULTIPLY_ADD_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace sluice::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// At most the 16 lanes that a KV page's tokens and the padding of a head fill.
using FloatTag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using Vector = hn::Vec<FloatTag>;
using Words = hn::Vec<WordTag>;

constexpr int lanes = static_cast<int>(hn::MaxLanes(FloatTag()));
/// Vectors that may hold sums, beside what is multiplied: 16 or 32 registers.
constexpr int max_sums = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 24 : 12;

/// The bfloat16 in the lower half of each word, and the one in the upper.
HWY_INLINE Vector lower(Words words) { return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words)); }
HWY_INLINE Vector upper(Words words) {
  return hn::BitCast(FloatTag(), hn::And(words, hn::Set(WordTag(), 0xffff0000U)));
}

/// sum += a * b, in sum's own register: GCC 12 moves sums from one to another and runs out of
/// AVX2's 16, at half of the rate.
HWY_INLINE void add_product(Vector& sum, Vector a, Vector b) {
#if HWY_TARGET == HWY_AVX2
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
#else
  sum = hn::MulAdd(a, b, sum);
#endif
}

/// A vector of columns from `first` on, of either of two neighbouring rows that begin at `pair`, as
/// packed weights and KV pages hold them: in bf16 [columns][2], in f32 [2][columns].
struct Bf16Rows {
  static constexpr std::int64_t pair_bytes = 4;  ///< a column
  static HWY_INLINE Vector load(const std::byte* pair, std::int64_t /*columns*/, int part,
                                std::int64_t first) {
    const Words words = hn::LoadU(WordTag(), reinterpret_cast<const std::uint32_t*>(pair) + first);
    return part == 0 ? lower(words) : upper(words);
  }
};
struct F32Rows {
  static constexpr std::int64_t pair_bytes = 8;
  static HWY_INLINE Vector load(const std::byte* pair, std::int64_t columns, int part,
                                std::int64_t first) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(pair) + part * columns + first);
  }
};

}  // namespace sluice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
