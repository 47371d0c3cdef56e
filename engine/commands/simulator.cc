#include "engine/commands/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/cpu.h"
#include "base/error.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/compute.h"
#include "engine/simulate/platform.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

fs::path find_program() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  fs::path program = self.parent_path() / "sluice-simulate";
  if (failed || !fs::exists(program, failed)) {
    throw Error(
        "there is no simulator beside {}; build with StarPU's SimGrid flavour (./run.sh simulate "
        "does, docs/guide/simulate.md says how)",
        self.string());
  }
  return program;
}

fs::path make_folder() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) throw Error("TMPDIR: {}; set it to a folder that can be written", error.message());
  std::string name = (parent / "sluice-simulate-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error("cannot make a folder like {}; set TMPDIR to one that can be written", name);
  return name;
}

}  // namespace

SimulatorProgram::SimulatorProgram() : program_(find_program()), folder_(make_folder()) {}

void SimulatorProgram::remove_folder() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string SimulatorProgram::add_machine(const CostModel& costs) {
  std::string platform = (folder_ / fmt::format("{}", num_machines_++)).string();
  write_platform(costs, platform);
  return platform;
}

ChildResult SimulatorProgram::run(const std::vector<std::string>& arguments,
                                  const std::string& machine) const {
  // The machine's description is the only source of times: nothing that StarPU adds by itself.
  return run_child(program_, arguments,
                   {{"STARPU_HOSTNAME", platform_host},
                    {"STARPU_PERF_MODEL_DIR", machine},
                    {"STARPU_HOME", machine},
                    {"STARPU_SILENT", "1"},
                    {"STARPU_SUBALLOCATOR", "0"},  // pieces of 32 MiB
                    {"STARPU_SIMGRID_CUDA_MALLOC_COST", "0"},
                    {"STARPU_SIMGRID_CUDA_QUEUE_COST", "0"},
                    {"STARPU_SIMGRID_TASK_SUBMIT_COST", "0"},
                    {"STARPU_SIMGRID_TASK_PUSH_COST", "0"},
                    {"STARPU_SIMGRID_FETCHING_INPUT_COST", "0"}});
}

std::string SimulatorProgram::problem_of(const ChildResult& child) {
  if (child.err.empty()) return fmt::format("the simulator ended with code {}", child.exit_code);
  // What SimGrid says when everything waits for room on the GPU, where all that is left is in
  // use.
  if (child.err.find("Deadlock detected") != std::string::npos)
    return "hbm is so full that a task's values find no room; a smaller batch needs less";
  return child.err.substr(0, child.err.find('\n'));
}

void run_jobs(std::size_t count, const char* what, const std::function<void(std::size_t)>& job) {
  ProgressBar bar(what);
  std::atomic<std::size_t> next{0};
  std::size_t num_done = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      if (interrupt_flag()) return;
      job(i);
      const std::lock_guard lock(mutex);
      bar.update(static_cast<double>(++num_done), static_cast<double>(count));
    }
  };
  const std::size_t num_threads = std::min<std::size_t>(
      count, static_cast<std::size_t>(default_num_threads(read_cpu_topology())));
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (interrupt_flag()) throw Interrupted();
}

std::string simulated_policy(const std::string& name_or_file) {
  if (!name_or_file.ends_with(native_policy_ending) ||
      name_or_file.ends_with(simgrid_policy_ending))
    return name_or_file;
  const std::string stem(name_or_file, 0, name_or_file.size() - native_policy_ending.size());
  const std::string sibling = fmt::format("{}{}", stem, simgrid_policy_ending);
  std::error_code ignored;
  if (!fs::exists(sibling, ignored)) {
    throw Error(
        "--policy {}: {} is not beside it; sluice_add_policy() builds both where the "
        "simulator's StarPU is",
        name_or_file, sibling);
  }
  return fs::absolute(sibling).string();
}

}  // namespace sluice
