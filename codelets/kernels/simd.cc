#include "codelets/kernels/simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codelets/runtime/batch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Vector = hn::Vec<FloatTag>;

std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(FloatTag())); }
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

/// Applies `body(vector, first index)` to x, the tail padded with zeros, and stores the results.
template <class Body>
HWY_INLINE void map_row(const float* x, std::int64_t n, DType dtype, void* out, Body&& body) {
  const FloatTag d;
  HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::int64_t i = 0; i < n; i += lanes()) {
    const std::int64_t count = std::min(lanes(), n - i);
    const Vector value = count == lanes()
                             ? body(hn::LoadU(d, x + i), i, count)
                             : body(hn::MaskedLoad(hn::FirstN(d, count), d, x + i), i, count);
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

HWY_INLINE Vector load_some(FloatTag d, const float* x, std::int64_t i, std::int64_t count) {
  return count == lanes() ? hn::LoadU(d, x + i) : hn::MaskedLoad(hn::FirstN(d, count), d, x + i);
}

template <Epilogue Kind>
HWY_INLINE Vector apply(FloatTag d, Vector y, [[maybe_unused]] Vector other) {
  const Vector one = hn::Set(d, 1.0F);
  if constexpr (Kind == Epilogue::accumulate) return hn::Add(y, other);
  if constexpr (Kind == Epilogue::multiply) return hn::Mul(y, other);
  if constexpr (Kind == Epilogue::relu) {  // not Max, which would hide a NaN
    return hn::IfThenElse(hn::Lt(y, hn::Zero(d)), hn::Zero(d), y);
  }
  if constexpr (Kind == Epilogue::silu) {
    // Highway's Exp is defined up to 104 only; below -88 the result is zero to f32's last place.
    const auto vanishes = hn::Lt(y, hn::Set(d, -88.0F));
    const Vector exponent = hn::IfThenElse(vanishes, hn::Zero(d), hn::Neg(y));
    return hn::IfThenElse(vanishes, hn::Zero(d), hn::Div(y, hn::Add(one, hn::Exp(d, exponent))));
  }
  if constexpr (Kind == Epilogue::gelu_tanh) {
    const Vector cube = hn::Mul(hn::Mul(y, y), y);
    const Vector inner =
        hn::Mul(hn::Set(d, 0.7978845608028654F), hn::MulAdd(hn::Set(d, 0.044715F), cube, y));
    return hn::Mul(hn::Mul(hn::Set(d, 0.5F), y), hn::Add(one, hn::Tanh(d, inner)));
  }
  if constexpr (Kind == Epilogue::gelu) {
    HWY_ALIGN float lane[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(y, d, lane);
    for (std::int64_t i = 0; i < lanes(); ++i)
      lane[i] *= 0.5F * (1.0F + std::erf(lane[i] * 0.70710678F));
    return hn::Load(d, lane);
  }
  return y;
}

template <Epilogue Kind>
void finish(const Tile& tile) {
  const FloatTag d;
  const auto element = static_cast<std::int64_t>(size_bytes(tile.dst_dtype));
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    auto* dst = static_cast<unsigned char*>(tile.dst) + r * tile.dst_stride * element;
    const float* other = Kind == Epilogue::accumulate ? reinterpret_cast<const float*>(dst)
                         : Kind == Epilogue::multiply ? tile.operand + r * tile.columns
                                                      : nullptr;
    map_row(tile.tile + r * tile.columns, tile.columns, tile.dst_dtype, dst,
            [&](Vector y, std::int64_t i, std::int64_t some) {
              if (tile.bias != nullptr) y = hn::Add(y, load_some(d, tile.bias, i, some));
              return apply<Kind>(d, y, other == nullptr ? y : load_some(d, other, i, some));
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

HWY_INLINE float dot(const float* a, const float* b, std::int64_t n) {
  const FloatTag d;
  Vector sum = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += lanes())
    sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// y = y * scale; y += weight * x is add_scaled.
HWY_INLINE void scale_in_place(float* y, float scale, std::int64_t n) {
  const FloatTag d;
  const Vector factor = hn::Set(d, scale);
  for (std::int64_t i = 0; i < n; i += lanes())
    hn::Store(hn::Mul(hn::Load(d, y + i), factor), d, y + i);
}
HWY_INLINE void add_scaled(float* y, float weight, const float* x, std::int64_t n) {
  const FloatTag d;
  const Vector factor = hn::Set(d, weight);
  for (std::int64_t i = 0; i < n; i += lanes()) {
    hn::Store(hn::MulAdd(factor, hn::Load(d, x + i), hn::Load(d, y + i)), d, y + i);
  }
}

/// Scratch of one block: everything f32, rows padded with zeros to whole vectors.
struct Scratch {
  std::int64_t stride;
  float *q, *sum, *k, *v, *maximum, *denominator;
  Scratch(void* memory, std::int64_t queries, std::int64_t head_dim) : stride(padded(head_dim)) {
    float* next = static_cast<float*>(memory);
    const auto take = [&next](std::int64_t count) {
      float* mine = next;
      next += padded(count);
      return mine;
    };
    q = take(queries * stride);
    sum = take(queries * stride);
    k = take(page_tokens * stride);
    v = take(page_tokens * stride);
    maximum = take(queries);
    denominator = take(queries);
  }
};

/// One vector of head_dim elements as f32, its padding zero.
HWY_INLINE void load_padded(const void* base, std::int64_t offset, std::int64_t n, DType dtype,
                            float* to) {
  load_row(static_cast<const unsigned char*>(base) +
               offset * static_cast<std::int64_t>(size_bytes(dtype)),
           n, dtype, to);
  std::fill(to + n, to + padded(n), 0.0F);
}

void load_queries(const AttentionBlock& block, const Scratch& scratch) {
  const std::int64_t queries = block.num_rows * block.group;
  for (std::int64_t query = 0; query < queries; ++query) {
    float* q = scratch.q + query * scratch.stride;
    load_padded(block.q,
                query / block.group * block.row_stride + query % block.group * block.head_dim,
                block.head_dim, block.dtype, q);
    scale_in_place(q, block.scale, scratch.stride);
  }
}

void attention_block(const AttentionBlock& block, void* memory) {
  const FloatTag d;
  const std::int64_t queries = block.num_rows * block.group;
  const Scratch scratch(memory, queries, block.head_dim);
  const std::int64_t stride = scratch.stride;
  load_queries(block, scratch);
  std::fill(scratch.sum, scratch.sum + queries * stride, 0.0F);
  std::fill(scratch.maximum, scratch.maximum + queries, -std::numeric_limits<float>::infinity());
  std::fill(scratch.denominator, scratch.denominator + queries, 0.0F);

  const std::int64_t last_position = block.first_position + block.num_rows - 1;
  const std::int64_t first_token =
      first_visible_token(block.first_position, block.sliding_window_tokens);
  constexpr float unseen = -1e30F;
  HWY_ALIGN float weights[page_tokens + HWY_MAX_BYTES / sizeof(float)];
  for (std::int64_t page = first_token / page_tokens; page <= last_position / page_tokens; ++page) {
    const std::int64_t begin = page * page_tokens;
    const std::int64_t tokens = std::min(page_tokens, last_position + 1 - begin);
    const std::int64_t base = block.pages[static_cast<std::size_t>(page)] * block.page_elements;
    for (std::int64_t t = 0; t < tokens; ++t) {
      load_padded(block.slab, base + block.k_offset + t * block.head_dim, block.head_dim,
                  block.dtype, scratch.k + t * stride);
      load_padded(block.slab, base + block.v_offset + t * block.head_dim, block.head_dim,
                  block.dtype, scratch.v + t * stride);
    }
    for (std::int64_t query = 0; query < queries; ++query) {
      const std::int64_t position = block.first_position + query / block.group;
      const std::int64_t low = std::max(
          first_visible_token(position, block.sliding_window_tokens) - begin, std::int64_t{0});
      const std::int64_t high = std::min(position + 1 - begin, tokens);
      if (low >= high) continue;
      std::fill(weights, weights + page_tokens, unseen);
      float maximum = scratch.maximum[query];
      for (std::int64_t t = low; t < high; ++t) {
        weights[t] = dot(scratch.q + query * stride, scratch.k + t * stride, stride);
        maximum = std::max(maximum, weights[t]);
      }
      float* sum = scratch.sum + query * stride;
      const float shrink = std::exp(scratch.maximum[query] - maximum);
      if (shrink != 1.0F) scale_in_place(sum, shrink, stride);
      scratch.maximum[query] = maximum;
      const Vector shift = hn::Set(d, maximum);
      for (std::int64_t t = 0; t < page_tokens; t += lanes()) {
        hn::Store(hn::Exp(d, hn::Sub(hn::Load(d, weights + t), shift)), d, weights + t);
      }
      float total = scratch.denominator[query] * shrink;
      for (std::int64_t t = low; t < high; ++t) {
        total += weights[t];
        add_scaled(sum, weights[t], scratch.v + t * stride, stride);
      }
      scratch.denominator[query] = total;
    }
  }
  for (std::int64_t query = 0; query < queries; ++query) {
    float* sum = scratch.sum + query * stride;
    scale_in_place(sum, 1.0F / scratch.denominator[query], stride);
    const std::int64_t offset =
        query / block.group * block.row_stride + query % block.group * block.head_dim;
    store_row(sum, block.head_dim, block.dtype,
              static_cast<unsigned char*>(block.out) +
                  offset * static_cast<std::int64_t>(size_bytes(block.dtype)));
  }
}

void score_row(const AttentionBlock& block, std::int64_t row, std::int64_t head, float* scores,
               void* memory) {
  const Scratch scratch(memory, 1, block.head_dim);
  load_padded(block.q, row * block.row_stride + head * block.head_dim, block.head_dim, block.dtype,
              scratch.q);
  scale_in_place(scratch.q, block.scale, scratch.stride);
  const std::int64_t position = block.first_position + row;
  const std::int64_t first = first_visible_token(position, block.sliding_window_tokens);
  for (std::int64_t token = first; token <= position; ++token) {
    const std::int64_t page = block.pages[static_cast<std::size_t>(token / page_tokens)];
    load_padded(block.slab,
                page * block.page_elements + block.k_offset + token % page_tokens * block.head_dim,
                block.head_dim, block.dtype, scratch.k);
    scores[token - first] = dot(scratch.q, scratch.k, scratch.stride);
  }
}

void value_row(const AttentionBlock& block, std::int64_t row, std::int64_t head,
               const float* scores, void* memory) {
  const Scratch scratch(memory, 1, block.head_dim);
  const std::int64_t position = block.first_position + row;
  const std::int64_t first = first_visible_token(position, block.sliding_window_tokens);
  const std::int64_t count = position + 1 - first;
  const float maximum = *std::max_element(scores, scores + count);
  std::fill(scratch.sum, scratch.sum + scratch.stride, 0.0F);
  float total = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = std::exp(scores[i] - maximum);
    total += weight;
    const std::int64_t token = first + i;
    const std::int64_t page = block.pages[static_cast<std::size_t>(token / page_tokens)];
    load_padded(block.slab,
                page * block.page_elements + block.v_offset + token % page_tokens * block.head_dim,
                block.head_dim, block.dtype, scratch.v);
    add_scaled(scratch.sum, weight, scratch.v, scratch.stride);
  }
  scale_in_place(scratch.sum, 1.0F / total, scratch.stride);
  store_row(scratch.sum, block.head_dim, block.dtype,
            static_cast<unsigned char*>(block.out) +
                (row * block.row_stride + head * block.head_dim) *
                    static_cast<std::int64_t>(size_bytes(block.dtype)));
}

std::size_t scratch_bytes(std::int64_t queries, std::int64_t head_dim) {
  const std::int64_t stride = padded(head_dim);
  const std::int64_t floats =
      2 * padded(queries * stride) + 2 * padded(page_tokens * stride) + 2 * padded(queries);
  return static_cast<std::size_t>(floats) * sizeof(float);
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
HWY_EXPORT(attention_block);
HWY_EXPORT(score_row);
HWY_EXPORT(value_row);
HWY_EXPORT(scratch_bytes);
HWY_EXPORT(target_name);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

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
std::size_t attention_scratch_bytes(std::int64_t num_rows, std::int64_t group,
                                    std::int64_t head_dim) {
  return HWY_DYNAMIC_DISPATCH(scratch_bytes)(num_rows * group, head_dim);
}
void attention_block(const AttentionBlock& block, void* scratch) {
  HWY_DYNAMIC_DISPATCH(attention_block)(block, scratch);
}
void score_row(const AttentionBlock& block, std::int64_t row, std::int64_t head_in_group,
               float* scores, void* scratch) {
  HWY_DYNAMIC_DISPATCH(score_row)(block, row, head_in_group, scores, scratch);
}
void value_row(const AttentionBlock& block, std::int64_t row, std::int64_t head_in_group,
               const float* scores, void* scratch) {
  HWY_DYNAMIC_DISPATCH(value_row)(block, row, head_in_group, scores, scratch);
}

}  // namespace sluice::simd
#endif
