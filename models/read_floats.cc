#include <bit>
#include <cstring>

#include "base/error.h"
#include "models/weights.h"

namespace sluice {
namespace {

template <typename Element, typename Convert>
void convert_all(const std::byte* from, std::size_t count, float* out, Convert convert) {
  for (std::size_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from + i * sizeof(Element), sizeof(Element));
    out[i] = convert(element);
  }
}

/// half_to_float without branches, which compilers turn into vector code.
float widen_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  const std::uint32_t infinite = magnitude >= 0x7c00U ? 0x7f800000U : 0U;
  const std::uint32_t normal = ((magnitude << 13) + (112U << 23)) | infinite;
  const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t bits = magnitude < 0x400U ? std::bit_cast<std::uint32_t>(small) : normal;
  return std::bit_cast<float>(bits | sign);
}

}  // namespace

void read_floats(const TensorView& tensor, std::size_t first, std::size_t count, float* out) {
  const std::size_t size = tensor.data.size() / size_bytes(tensor.dtype);
  if (first > size || count > size - first) {
    throw Error("{}: elements {} to {} of tensor {} are asked for, it has {}", tensor.file, first,
                first + count, tensor.name, size);
  }
  const std::byte* from = tensor.data.data() + first * size_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(out, from, count * sizeof(float));
      return;
    case DType::bf16:
      convert_all<BFloat16>(from, count, out, [](BFloat16 value) { return to_float(value); });
      return;
    case DType::f16:
      convert_all<std::uint16_t>(from, count, out, widen_half);
      return;
  }
}

}  // namespace sluice
