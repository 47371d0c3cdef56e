// Any bytes as a safetensors file: either it is refused with Error, or every view can be read.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "models/safetensors.h"

namespace {

/// The first and last few elements.
void read_ends(const sluice::TensorView& view) {
  std::array<float, 4> values = {};
  const std::size_t size = view.data.size() / sluice::size_bytes(view.dtype);
  const std::size_t count = std::min(size, values.size());
  sluice::read_floats(view, 0, count, values.data());
  sluice::read_floats(view, size - count, count, values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of its own, so that the address sanitizer sees a read past the end.
  const auto owner = std::make_shared<const std::vector<std::uint8_t>>(data, data + size);
  try {
    const auto file =
        sluice::Safetensors::parse({"fuzz.safetensors", std::as_bytes(std::span(*owner)), owner});
    for (const auto& [name, tensor] : file.tensors()) {
      try {
        read_ends(file.view(name));
      } catch (const sluice::Error&) {  // a type that models do not use
      }
    }
  } catch (const sluice::Error&) {
  }
  return 0;
}
