#include "codelets/kernels/simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<FloatTag>;

constexpr std::int64_t lanes() { return static_cast<std::int64_t>(hn::MaxLanes(FloatTag())); }
std::int64_t padded(std::int64_t n) { return (n + lanes() - 1) / lanes() * lanes(); }

/// bfloat16 bits to float: the upper half of the word.
template <class D>
HWY_INLINE Vector load_bf16([[maybe_unused]] D d, const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}

/// Rounds to nearest even.
template <class D>
HWY_INLINE void store_bf16([[maybe_unused]] D d, Vector value, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> i32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
  const auto result = hn::IfThenElse(is_nan, quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, result)), d16, to);
}

void load_row(const void* x, std::int64_t n, DType dtype, float* out) {
  const FloatTag d;
  std::int64_t i = 0;
  if (dtype == DType::bf16) {
    const auto* from = static_cast<const unsigned char*>(x);
    for (; i + lanes() <= n; i += lanes()) {
      hn::StoreU(load_bf16(d, reinterpret_cast<const std::uint16_t*>(from + 2 * i)), d, out + i);
    }
    for (; i < n; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from + 2 * i, 2);
      out[i] = to_float(BFloat16{bits});
    }
  } else if (dtype == DType::f32) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    for (; i < n; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, static_cast<const unsigned char*>(x) + 2 * i, 2);
      out[i] = half_to_float(bits);
    }
  }
}

void store_row(const float* x, std::int64_t n, DType dtype, void* out) {
  if (dtype == DType::f32) {
    if (out != x) std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const FloatTag d;
  auto* to = static_cast<std::uint16_t*>(out);
  std::int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store_bf16(d, hn::LoadU(d, x + i), to + i);
  for (; i < n; ++i) to[i] = to_bf16(x[i]).bits;
}

/// x[i, i + count), zeros behind it. Not MaskedLoad, which reads a whole aligned vector before AVX.
HWY_INLINE Vector load_some(FloatTag d, const float* x, std::int64_t i, std::int64_t count) {
  if (count == lanes()) return hn::LoadU(d, x + i);
  HWY_ALIGN float some[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(x + i, count, some);
  return hn::Load(d, some);
}

/// Applies `body(vector, first index)` to x, the tail padded with zeros, and stores the results.
template <class Body>
HWY_INLINE void map_row(const float* x, std::int64_t n, DType dtype, void* out, Body&& body) {
  const FloatTag d;
  HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::int64_t i = 0; i < n; i += lanes()) {
    const std::int64_t count = std::min(lanes(), n - i);
    const Vector value = body(load_some(d, x, i, count), i, count);
    if (dtype == DType::f32) {
      auto* to = static_cast<float*>(out) + i;
      if (count == lanes()) {
        hn::StoreU(value, d, to);
      } else {
        hn::Store(value, d, tail);
        std::memcpy(to, tail, static_cast<std::size_t>(count) * sizeof(float));
      }
    } else {
      auto* to = static_cast<std::uint16_t*>(out) + i;
      if (count == lanes()) {
        store_bf16(d, value, to);
      } else {
        hn::Store(value, d, tail);
        for (std::int64_t j = 0; j < count; ++j) to[j] = to_bf16(tail[j]).bits;
      }
    }
  }
}

/// y * sigmoid(factor * y)
HWY_INLINE Vector swish(FloatTag d, Vector y, float factor) {
  const Vector one = hn::Set(d, 1.0F);
  const Vector inner = hn::Mul(y, hn::Set(d, factor));
  // Highway's Exp is defined up to 104 only; below -88 the result is zero to f32's last place.
  const auto vanishes = hn::Lt(inner, hn::Set(d, -88.0F));
  const Vector exponent = hn::IfThenElse(vanishes, hn::Zero(d), hn::Neg(inner));
  return hn::IfThenElse(vanishes, hn::Zero(d), hn::Div(y, hn::Add(one, hn::Exp(d, exponent))));
}

/// Not Min, which would hide a NaN.
HWY_INLINE Vector at_most(Vector y, Vector limit) {
  return hn::IfThenElse(hn::Gt(y, limit), limit, y);
}

template <Epilogue Kind>
HWY_INLINE Vector apply(FloatTag d, Vector y, [[maybe_unused]] Vector other,
                        [[maybe_unused]] float limit) {
  const Vector one = hn::Set(d, 1.0F);
  if constexpr (Kind == Epilogue::accumulate) return hn::Add(y, other);
  if constexpr (Kind == Epilogue::multiply) return hn::Mul(y, other);
  if constexpr (Kind == Epilogue::relu) {  // not Max, which would hide a NaN
    return hn::IfThenElse(hn::Lt(y, hn::Zero(d)), hn::Zero(d), y);
  }
  if constexpr (Kind == Epilogue::silu) return swish(d, y, 1.0F);
  if constexpr (Kind == Epilogue::clamped_gate)
    return swish(d, at_most(y, hn::Set(d, limit)), clamped_swiglu_slope);
  if constexpr (Kind == Epilogue::multiply_clamped) {
    const Vector below = at_most(y, hn::Set(d, limit));
    const Vector lowest = hn::Set(d, -limit);
    const Vector clamped = hn::IfThenElse(hn::Lt(below, lowest), lowest, below);
    return hn::Mul(hn::Add(clamped, one), other);
  }
  if constexpr (Kind == Epilogue::gelu_tanh) {
    const Vector cube = hn::Mul(hn::Mul(y, y), y);
    const Vector inner =
        hn::Mul(hn::Set(d, 0.7978845608028654F), hn::MulAdd(hn::Set(d, 0.044715F), cube, y));
    return hn::Mul(hn::Mul(hn::Set(d, 0.5F), y), hn::Add(one, hn::Tanh(d, inner)));
  }
  if constexpr (Kind == Epilogue::gelu) {
    HWY_ALIGN float lane[lanes()];
    hn::Store(y, d, lane);
    for (float& value : lane) value *= 0.5F * (1.0F + std::erf(value * 0.70710678F));
    return hn::Load(d, lane);
  }
  return y;
}

template <Epilogue Kind>
void finish(const Tile& tile) {
  const FloatTag d;
  constexpr bool has_operand = Kind == Epilogue::multiply || Kind == Epilogue::multiply_clamped;
  const auto element = static_cast<std::int64_t>(size_bytes(tile.dst_dtype));
  const std::int64_t stride = tile.tile_stride != 0 ? tile.tile_stride : tile.columns;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    auto* dst = static_cast<unsigned char*>(tile.dst) + r * tile.dst_stride * element;
    const float* other = Kind == Epilogue::accumulate ? reinterpret_cast<const float*>(dst)
                         : has_operand                ? tile.operand + r * stride
                                                      : nullptr;
    map_row(tile.tile + r * stride, tile.columns, tile.dst_dtype, dst,
            [&](Vector y, std::int64_t i, std::int64_t some) {
              if (tile.bias != nullptr) y = hn::Add(y, load_some(d, tile.bias, i, some));
              return apply<Kind>(d, y, other == nullptr ? y : load_some(d, other, i, some),
                                 tile.limit);
            });
  }
}

void finish_tile(const Tile& tile) {
  switch (tile.epilogue) {
    case Epilogue::store:
      return finish<Epilogue::store>(tile);
    case Epilogue::accumulate:
      return finish<Epilogue::accumulate>(tile);
    case Epilogue::relu:
      return finish<Epilogue::relu>(tile);
    case Epilogue::gelu:
      return finish<Epilogue::gelu>(tile);
    case Epilogue::gelu_tanh:
      return finish<Epilogue::gelu_tanh>(tile);
    case Epilogue::silu:
      return finish<Epilogue::silu>(tile);
    case Epilogue::multiply:
      return finish<Epilogue::multiply>(tile);
    case Epilogue::clamped_gate:
      return finish<Epilogue::clamped_gate>(tile);
    case Epilogue::multiply_clamped:
      return finish<Epilogue::multiply_clamped>(tile);
  }
}

void norm_row(NormKind kind, const float* x, std::int64_t n, const float* weight, const float* bias,
              float eps, DType dtype, void* out) {
  const FloatTag d;
  const auto sum_over = [&](auto&& term) {
    Vector sum = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + lanes() <= n; i += lanes()) sum = hn::Add(sum, term(hn::LoadU(d, x + i)));
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    HWY_ALIGN float one[HWY_MAX_BYTES / sizeof(float)];
    for (; i < n; ++i) {
      hn::Store(term(hn::Set(d, x[i])), d, one);
      total += one[0];
    }
    return total;
  };
  const auto count = static_cast<float>(n);
  const float mean =
      kind == NormKind::layer_norm ? sum_over([](Vector v) { return v; }) / count : 0.0F;
  const Vector mean_vector = hn::Set(d, mean);
  const float variance = sum_over([&](Vector v) {
                           const Vector centred = hn::Sub(v, mean_vector);
                           return hn::Mul(centred, centred);
                         }) /
                         count;
  const Vector factor = hn::Set(d, 1.0F / std::sqrt(variance + eps));
  map_row(x, n, dtype, out, [&](Vector v, std::int64_t i, std::int64_t some) {
    Vector y = hn::Mul(hn::Sub(v, mean_vector), factor);
    if (weight != nullptr) y = hn::Mul(y, load_some(d, weight, i, some));
    if (bias != nullptr) y = hn::Add(y, load_some(d, bias, i, some));
    return y;
  });
}

void rope_head(float* x, const float* cos, const float* sin, std::int64_t head_dim) {
  const FloatTag d;
  const std::int64_t half = head_dim / 2;
  std::int64_t i = 0;
  for (; i + lanes() <= half; i += lanes()) {
    const Vector low = hn::LoadU(d, x + i);
    const Vector high = hn::LoadU(d, x + half + i);
    const Vector c = hn::LoadU(d, cos + i);
    const Vector s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(low, c), hn::Mul(high, s)), d, x + i);
    hn::StoreU(hn::Add(hn::Mul(high, c), hn::Mul(low, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[i] + low * sin[i];
  }
}

std::int64_t find_not_finite(const void* x, std::int64_t n, DType dtype) {
  const FloatTag d;
  constexpr std::int64_t chunk = 512;
  HWY_ALIGN float values[chunk];
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t count = std::min(chunk, n - begin);
    load_row(
        static_cast<const unsigned char*>(x) + begin * static_cast<std::int64_t>(size_bytes(dtype)),
        count, dtype, values);
    std::fill(values + count, values + padded(count), 0.0F);
    Vector sum = hn::Zero(d);  // stays zero but for a NaN or an infinity
    const Vector zero = hn::Zero(d);
    for (std::int64_t i = 0; i < count; i += lanes()) {
      sum = hn::MulAdd(hn::Load(d, values + i), zero, sum);
    }
    if (hn::AllTrue(d, hn::Eq(sum, zero))) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) return begin + i;
    }
  }
  return -1;
}

std::int64_t find_largest(const float* x, std::int64_t n) {
  const FloatTag d;
  const Vector infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  Vector largest = hn::Neg(infinity);
  Vector least = infinity;
  Vector check = hn::Zero(d);  // becomes NaN with the first NaN
  const std::int64_t whole = n / lanes() * lanes();
  for (std::int64_t i = 0; i < whole; i += lanes()) {
    const Vector value = hn::LoadU(d, x + i);
    largest = hn::Max(largest, value);
    least = hn::Min(least, value);
    check = hn::MulAdd(value, hn::Zero(d), check);
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, largest));
  float worst = hn::GetLane(hn::MinOfLanes(d, least));
  bool numbers = hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
  for (std::int64_t i = whole; i < n; ++i) {
    numbers = numbers && !std::isnan(x[i]);
    best = std::max(best, x[i]);
    worst = std::min(worst, x[i]);
  }
  // Infinities spoil `check` as well; who calls looks at them one by one.
  if (n == 0 || !numbers || std::isinf(worst) || std::isinf(best)) return -1;
  const Vector wanted = hn::Set(d, best);
  for (std::int64_t i = 0; i < whole; i += lanes()) {
    const std::int64_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), wanted));
    if (lane >= 0) return i + lane;
  }
  return std::find(x + whole, x + n, best) - x;
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace sluice::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::simd {

HWY_EXPORT(finish_tile);
HWY_EXPORT(norm_row);
HWY_EXPORT(store_row);
HWY_EXPORT(load_row);
HWY_EXPORT(rope_head);
HWY_EXPORT(find_not_finite);
HWY_EXPORT(find_largest);
HWY_EXPORT(target_name);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

std::int64_t find_largest(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(find_largest)(x, n);
}

void finish_tile(const Tile& tile) { HWY_DYNAMIC_DISPATCH(finish_tile)(tile); }
void norm_row(NormKind kind, const float* x, std::int64_t n, const float* weight, const float* bias,
              float eps, DType dtype, void* out) {
  HWY_DYNAMIC_DISPATCH(norm_row)(kind, x, n, weight, bias, eps, dtype, out);
}
void store_row(const float* x, std::int64_t n, DType dtype, void* out) {
  HWY_DYNAMIC_DISPATCH(store_row)(x, n, dtype, out);
}
void load_row(const void* x, std::int64_t n, DType dtype, float* out) {
  HWY_DYNAMIC_DISPATCH(load_row)(x, n, dtype, out);
}
void rope_head(float* x, const float* cos, const float* sin, std::int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(rope_head)(x, cos, sin, head_dim);
}
std::int64_t find_not_finite(const void* x, std::int64_t n, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(find_not_finite)(x, n, dtype);
}

}  // namespace sluice::simd
#endif
