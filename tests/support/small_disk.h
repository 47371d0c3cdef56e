#pragma once

#include <sys/resource.h>

namespace sluice::test {

/// Files cannot grow beyond `bytes` meanwhile, as on a full disk; this holds for programs that are
/// started, too.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

}  // namespace sluice::test
