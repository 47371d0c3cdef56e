#include "models/quantized/method.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "models/family.h"

namespace sluice {

#define SLUICE_METHOD(name) extern const QuantizationMethod name##_method;
#include "models/quantization_methods.inc"
#undef SLUICE_METHOD

std::span<const QuantizationMethod* const> quantization_methods() {
#define SLUICE_METHOD(name) &name##_method,
  static const std::array methods = {
#include "models/quantization_methods.inc"
  };
#undef SLUICE_METHOD
  return methods;
}

namespace {

const QuantizationMethod* find_method(std::string_view name) {
  const auto methods = quantization_methods();
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [&](const auto* method) { return method->name == name; });
  return found == methods.end() ? nullptr : *found;
}

}  // namespace

const QuantizationMethod& quantization_method(const QuantizationConfig& config) {
  return *find_method(config.method);
}

std::string_view module_class(TensorRole role) {
  switch (role) {
    case TensorRole::token_embedding:
      return "Embedding";
    case TensorRole::project_in:
    case TensorRole::project_out:
    case TensorRole::lm_head:
    case TensorRole::q_weight:
    case TensorRole::k_weight:
    case TensorRole::v_weight:
    case TensorRole::out_weight:
    case TensorRole::gate_weight:
    case TensorRole::fc1_weight:
    case TensorRole::fc2_weight:
    case TensorRole::router_weight:
    case TensorRole::shared_gate_weight:
    case TensorRole::shared_fc1_weight:
    case TensorRole::shared_fc2_weight:
      return "Linear";
    default:
      return {};
  }
}

std::string module_of(std::string tensor_name) {
  tensor_name.resize(tensor_name.size() - std::string_view(".weight").size());
  return tensor_name;
}

WeightFormat expected_format(const ModelConfig& config, TensorId id) {
  const WeightFormat plain = WeightFormat::plain(config.stored_dtype);
  const Family* family = find_family(config.family);
  const std::string_view of_class = module_class(id.role);
  if (!config.quantization || family == nullptr || of_class.empty()) return plain;
  const QuantizationScheme* scheme =
      quantization_method(*config.quantization)
          .scheme_of(*config.quantization, module_of(family->tensor_name(id)), of_class);
  if (scheme == nullptr || scheme->format.is_plain()) return plain;
  WeightFormat format = scheme->format;
  if (format.scales == WeightFormat::Scales::none) {
    format.scales = format.codes == WeightFormat::Codes::fp8 ? WeightFormat::Scales::f32
                                                             : WeightFormat::Scales::f16;
  }
  return format;
}

QuantizationConfig parse_quantization_config(const ConfigReader& fields) {
  const std::string name = fields.text("quant_method", "");
  const QuantizationMethod* method = find_method(name);
  if (method == nullptr) {
    std::vector<std::string> names;
    for (const auto* known : quantization_methods()) names.push_back(quote(known->name));
    fields.refuse("quant_method",
                  fmt::format("{}; or get the model in bf16, f16 or f32", fmt::join(names, ", ")));
  }
  QuantizationConfig config;
  config.method = name;
  method->read(fields, config);
  return config;
}

}  // namespace sluice
