// Any text as config.json and generation_config.json: either it is refused with Error, or it makes
// a model whose tensors can be counted and which survives being written and read again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/config_json.h"
#include "models/generation_config.h"
#include "models/weights.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::int64_t num_elements(const sluice::ModelConfig& config, sluice::TensorId id) {
  std::int64_t product = 1;
  for (std::int64_t size : sluice::expected_shape(config, id)) {
    require(size > 0 && !__builtin_mul_overflow(product, size, &product));
  }
  return product;
}

void check_model(const sluice::ModelConfig& config) {
  std::int64_t sum = 0;
  for (const sluice::TensorId id : sluice::expected_tensors(config)) {
    require(!__builtin_add_overflow(sum, num_elements(config, id), &sum));
    sluice::expected_format(config, id);
  }
  require(sum == sluice::num_parameters(config));
  const std::string text = sluice::config_json(config);
  require(sluice::config_json(sluice::parse_config(text, "again")) == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check_model(sluice::parse_config(text, "config.json"));
  } catch (const sluice::Error&) {
  }
  try {
    sluice::parse_generation_config(text, "generation_config.json");
  } catch (const sluice::Error&) {
  }
  return 0;
}
