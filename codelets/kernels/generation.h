#pragma once

namespace sluice {

/// Of the kernels' speed: to be raised when one has become faster or slower by more than runs
/// differ, so that what was calibrated before is measured anew.
inline constexpr int kernel_generation = 4;

}  // namespace sluice
