#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/console/child_process.h"
#include "perfmodels/cost_model.h"

namespace sluice {

/// The second program, which is linked to StarPU's simulator, with a folder of what it reads.
class SimulatorProgram {
 public:
  /// Throws Error where there is no such program, or no place for a folder.
  SimulatorProgram();
  ~SimulatorProgram() { remove_folder(); }
  SimulatorProgram(const SimulatorProgram&) = delete;
  SimulatorProgram& operator=(const SimulatorProgram&) = delete;

  /// Describes a machine there; returns what run() knows it by.
  std::string add_machine(const CostModel& costs);
  /// Runs it to its end on a machine. May be called from several threads.
  ChildResult run(const std::vector<std::string>& arguments, const std::string& machine) const;
  /// In one line, why there is no result.
  static std::string problem_of(const ChildResult& child);

  /// Before the process ends in another way than by the destructor.
  void remove_folder() const;

 private:
  std::string program_;
  std::filesystem::path folder_;
  int num_machines_ = 0;
};

/// Calls `job(i)` for each i below `count`, as many at once as there are cores, with a bar that
/// says `what`. Throws Interrupted.
void run_jobs(std::size_t count, const char* what, const std::function<void(std::size_t)>& job);

/// The policy as the simulator finds it: names are the same; of a file it takes the sibling that is
/// built for it. Throws Error where there is none.
std::string simulated_policy(const std::string& name_or_file);

}  // namespace sluice
