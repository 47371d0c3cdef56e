#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

/// Puts arrays one behind the other into a workspace, each aligned to 256 bytes.
class WorkspaceLayout {
 public:
  /// Offset of `count` elements of `T`.
  template <typename T>
  std::size_t place(std::int64_t count) {
    constexpr std::size_t alignment = 256;
    const std::size_t at = bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + alignment - 1) / alignment * alignment;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace sluice::cuda
