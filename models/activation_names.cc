#include "models/activation_names.h"

namespace sluice {
namespace {

struct Name {
  std::string_view name;
  Activation activation;
};

/// The first of each is the one that is written.
constexpr Name names[] = {
    {"relu", Activation::relu},
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
};

}  // namespace

std::optional<Activation> parse_activation(std::string_view name) {
  for (const Name& known : names) {
    if (known.name == name) return known.activation;
  }
  return std::nullopt;
}

std::string_view activation_name(Activation activation) {
  for (const Name& known : names) {
    if (known.activation == activation) return known.name;
  }
  return "";
}

}  // namespace sluice
