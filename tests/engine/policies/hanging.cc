// A policy that never answers.
#include <unistd.h>

#include "schedulers/plugin.h"

namespace {

class Hanging : public sluice::Policy {
 public:
  /// Says once that it has been asked.
  sluice::MemoryPlan plan_memory() override {
    const ssize_t ignored = write(STDOUT_FILENO, "asked\n", 6);
    static_cast<void>(ignored);
    while (true) pause();
  }
};

}  // namespace

SLUICE_POLICY(Hanging, "hanging", "answers never");
