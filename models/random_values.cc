#include "models/random_values.h"

#include <cstring>

namespace sluice {
namespace {

/// David Stafford's "Mix13" finaliser, as in SplitMix64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// FNV-1a over the name, mixed with the seed.
std::uint64_t tensor_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix(hash + mix(seed + 0x9e3779b97f4a7c15ULL));
}

/// One multiplication of exact numbers, so that every machine rounds alike.
inline float random_value(std::uint64_t key, std::uint64_t index) {
  constexpr float scale = 0.02F / 37837.227F;  // the sum below has a deviation of 65536 / sqrt(3)
  constexpr std::int32_t mean = 2 * 65535;
  const std::uint64_t bits = mix(key + index * 0x9e3779b97f4a7c15ULL);
  const auto sum = static_cast<std::int32_t>((bits & 0xffffU) + ((bits >> 16) & 0xffffU) +
                                             ((bits >> 32) & 0xffffU) + (bits >> 48));
  return static_cast<float>(sum - mean) * scale;
}

/// Rounds to nearest even. For |value| below 65504, no NaN: what random weights are.
inline std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  constexpr std::uint32_t smallest_normal = 113U << 23;
  if (magnitude < smallest_normal) {  // a subnormal half: adding 0.5 lets the FPU round it
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

template <typename Element, typename Make>
void fill(std::span<std::byte> out, std::uint64_t first, Make make) {
  const std::size_t count = out.size() / sizeof(Element);
  for (std::size_t i = 0; i < count; ++i) {
    const Element element = make(first + i);
    std::memcpy(out.data() + i * sizeof(Element), &element, sizeof(Element));
  }
}

template <typename Value>
void fill_as(DType dtype, std::span<std::byte> out, std::uint64_t first, Value value) {
  switch (dtype) {
    case DType::f32:
      return fill<float>(out, first, value);
    case DType::bf16:
      return fill<BFloat16>(out, first, [value](std::uint64_t i) { return to_bf16(value(i)); });
    case DType::f16:
      return fill<std::uint16_t>(out, first,
                                 [value](std::uint64_t i) { return to_half(value(i)); });
  }
}

enum class Content : std::uint8_t { random, ones, zeros };

Content content_of(TensorRole role) {
  switch (role) {
    case TensorRole::final_norm_weight:
    case TensorRole::attention_norm_weight:
    case TensorRole::ffn_norm_weight:
    case TensorRole::q_norm_weight:
    case TensorRole::k_norm_weight:
      return Content::ones;
    case TensorRole::final_norm_bias:
    case TensorRole::attention_norm_bias:
    case TensorRole::ffn_norm_bias:
    case TensorRole::q_bias:
    case TensorRole::k_bias:
    case TensorRole::v_bias:
    case TensorRole::out_bias:
    case TensorRole::gate_bias:
    case TensorRole::fc1_bias:
    case TensorRole::fc2_bias:
    case TensorRole::router_bias:
    case TensorRole::router_correction:
      return Content::zeros;
    default:
      return Content::random;
  }
}

}  // namespace

void fill_random(TensorRole role, std::string_view name, std::uint64_t seed, DType dtype,
                 std::uint64_t first, std::span<std::byte> out) {
  switch (content_of(role)) {
    case Content::ones:
      return fill_as(dtype, out, first, [](std::uint64_t) { return 1.0F; });
    case Content::zeros:
      return fill_as(dtype, out, first, [](std::uint64_t) { return 0.0F; });
    case Content::random:
      const std::uint64_t key = tensor_key(seed, name);
      return fill_as(dtype, out, first, [key](std::uint64_t i) { return random_value(key, i); });
  }
}

}  // namespace sluice
