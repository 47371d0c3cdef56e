#pragma once

namespace sluice {

/// What a policy for mixtures of experts says of another model. Where the fastest of all policies
/// is taken, such a one is no candidate, and not one that lacks room.
inline constexpr const char* no_experts = "the model has no experts";

}  // namespace sluice
