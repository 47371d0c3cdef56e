#pragma once

#include <starpu.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/environment.h"

namespace sluice {

/// An accelerator for machines without one, to test with: a second process, forked from this one,
/// that StarPU knows as a TCP/IP slave, connected by socket pairs: no port is opened. It runs the
/// CPU kernels, in a limited memory of its own. Once in a process.
class StandIn {
 public:
  /// Forks, so that starpu_init() finds it: call it before, and before there are other threads. The
  /// other process calls `prepare` and never returns. Its memory is `memory_bytes`, rounded down to
  /// MiB. From here on, its death ends this process, with a line on stderr. Throws Error when
  /// StarPU was built without it, or when the process cannot be had.
  StandIn(std::uint64_t memory_bytes, const std::function<void()>& prepare);
  /// After starpu_shutdown().
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  /// StarPU has started. Throws Error when the other process has another memory than was asked for.
  void started();
  /// Its end is not a failure from here on; before starpu_shutdown().
  void expect_end() noexcept;

  /// Its memory, for StarPU; after started().
  unsigned node() const { return node_; }

 private:
  void serve(const std::string& sockets, const std::function<void()>& prepare) const;

  std::uint64_t memory_mb_;
  std::filesystem::path folder_;  ///< of the files that StarPU writes as it starts
  StarpuVariables variables_;
  pid_t process_ = -1;
  /// Its ends, held open, so that StarPU does not see it die before we do.
  std::array<int, 3> its_sockets_{-1, -1, -1};
  unsigned node_ = STARPU_MAIN_RAM;
};

/// The CPU kernel's entry by which StarPU calls any codelet in the stand-in's process: the last
/// bytes of `arg` are the address of the codelet's own, which a forked process has, too.
extern "C" void sluice_stand_in_entry(void** buffers, void* arg);
inline constexpr const char* stand_in_entry_name = "sluice_stand_in_entry";

}  // namespace sluice
