// Any bytes as a safetensors file: either it is refused with Error, or every view can be read, and
// so can the quantised weights that its tensors' names promise.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "models/quantized/method.h"
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

/// A quantization_config for each layout of codes.
const std::vector<sluice::QuantizationConfig>& configs() {
  static const std::vector<sluice::QuantizationConfig> all = [] {
    const auto integers = [](int bits, int group, bool symmetric) -> nlohmann::json {
      return {{"quant_method", "compressed-tensors"},
              {"format", "pack-quantized"},
              {"config_groups",
               {{"group_0",
                 {{"targets", {"Linear"}},
                  {"weights",
                   {{"num_bits", bits}, {"group_size", group}, {"symmetric", symmetric}}}}}}}};
    };
    nlohmann::json floats = integers(8, -1, true);
    floats["format"] = "float-quantized";
    floats["config_groups"]["group_0"]["weights"]["type"] = "float";
    const nlohmann::json texts = {
        integers(4, 32, true),
        integers(4, -1, false),
        integers(8, 64, false),
        floats,
        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}},
        {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}},
        {{"quant_method", "awq"}, {"group_size", 32}},
        {{"quant_method", "fp8"}},
        {{"quant_method", "mxfp4"}},
    };
    std::vector<sluice::QuantizationConfig> parsed;
    for (const nlohmann::json& text : texts)
      parsed.push_back(sluice::parse_quantization_config({text, "config.json"}));
    return parsed;
  }();
  return all;
}

/// A weight that a tensor's shape may be a part of, for each config.
void read_quantized(const sluice::Checkpoint& checkpoint, const std::string& module,
                    const sluice::Safetensors::Tensor& tensor) {
  constexpr std::int64_t most = 1 << 20;
  if (tensor.shape.size() < 2 || tensor.shape[0] > most || tensor.shape[1] > most) return;
  for (const sluice::QuantizationConfig& config : configs()) {
    const std::int64_t bits = config.schemes.front().format.bits_per_code();
    for (const std::int64_t in : {tensor.shape[1], tensor.shape[1] * 32 / bits, tensor.shape[0],
                                  tensor.shape[0] * 32 / bits}) {
      for (const std::int64_t out : {tensor.shape[0], tensor.shape[1], tensor.shape[1] * 8}) {
        if (in < 1 || out < 1 || in > 4096 || out > 4096) continue;
        try {
          const auto found = sluice::quantization_method(config).find(
              config, checkpoint, {module, "Linear", {out, in}});
          if (!found) continue;
          sluice::CodedRows rows;
          found->read(0, std::min<std::int64_t>(9, found->num_rows()), rows);
          found->read(found->num_rows() - 1, 1, rows);
        } catch (const sluice::Error&) {
        }
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of its own, so that the address sanitizer sees a read past the end.
  const auto owner = std::make_shared<const std::vector<std::uint8_t>>(data, data + size);
  try {
    auto file =
        sluice::Safetensors::parse({"fuzz.safetensors", std::as_bytes(std::span(*owner)), owner});
    for (const auto& [name, tensor] : file.tensors()) {
      try {
        read_ends(file.view(name));
      } catch (const sluice::Error&) {  // a type that models do not use
      }
    }
    constexpr std::size_t most_tensors = 100;
    auto tensors = file.tensors();
    if (tensors.size() > most_tensors) return 0;
    const auto checkpoint = sluice::Checkpoint::of(std::move(file));
    for (const auto& [name, tensor] : tensors) {
      for (const char separator : {'.', '_'})  // "w.weight_packed", "w_blocks"
        read_quantized(checkpoint, name.substr(0, name.rfind(separator)), tensor);
    }
  } catch (const sluice::Error&) {
  }
  return 0;
}
