#include "tests/support/small_disk.h"

#include <csignal>

namespace sluice::test {

SmallDisk::SmallDisk(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
  getrlimit(RLIMIT_FSIZE, &old_limit_);
  const rlimit small = {bytes, old_limit_.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
}

SmallDisk::~SmallDisk() {
  setrlimit(RLIMIT_FSIZE, &old_limit_);
  std::signal(SIGXFSZ, old_handler_);
}

}  // namespace sluice::test
