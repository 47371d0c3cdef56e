#pragma once

namespace sluice {

class DataHandle;

/// A handle that is somebody else's, as a task's data name it. It must live until the task is
/// submitted.
class HandleRef {
 public:
  HandleRef(const DataHandle& handle) : handle_(&handle) {}  // NOLINT(google-explicit-constructor)
  operator const DataHandle&() const { return *handle_; }    // NOLINT(google-explicit-constructor)
  const DataHandle* operator->() const { return handle_; }

 private:
  const DataHandle* handle_;
};

}  // namespace sluice
