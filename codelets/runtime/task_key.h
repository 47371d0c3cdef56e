#pragma once

#include <string>
#include <type_traits>

namespace sluice {

/// All that a GPU task's kernels are launched with: sizes and addresses, not what lies there.
class TaskKey {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace sluice
