#pragma once

#include <optional>
#include <string_view>

#include "base/architecture.h"

namespace sluice {

/// The names of config.json that can be computed, for messages.
constexpr std::string_view known_activations =
    "\"relu\", \"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\" or \"silu\"";

/// By its name in Transformers, which has several for some; nothing for others.
std::optional<Activation> parse_activation(std::string_view name);

/// One of those names.
std::string_view activation_name(Activation activation);

}  // namespace sluice
