// The same run twice, on this machine and on the simulated one that its calibration describes:
// tasks, their order and places, and what moved must be the same.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "engine/trace/trace.h"
#include "engine/trace/trace_analysis.h"
#include "perfmodels/placement.h"
#include "tests/support/cli_process.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Arguments;
using testing::CliProcess;
using testing::CliResult;
using testing::content_of;
using testing::operator+;
using test::TemporaryFolder;
using Lines = std::vector<std::string>;

struct Prompts {
  std::string policy;  ///< empty: the program chooses
  std::int64_t batch = 1;
  std::int64_t input_tokens = 1;
  std::int64_t output_tokens = 1;
  Arguments more = {};  ///< of both programs
};

/// The program with calibrations of its own.
class Program {
 public:
  explicit Program(const TemporaryFolder& folder) : folder_(folder) {}

  void run(const Arguments& arguments) const {
    const Arguments words = {"XDG_DATA_HOME=" + folder_.path().string(), testing::sluice_program()};
    const CliResult result = CliProcess("/usr/bin/env", words + arguments).wait();
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  Trace trace(const Arguments& arguments, const std::string& name, const Prompts& run) const {
    const std::string folder = folder_.file(name);
    const Arguments policy = run.policy.empty() ? Arguments{} : Arguments{"--policy", run.policy};
    this->run(arguments + Arguments{"--batch", std::to_string(run.batch), "--trace", folder} +
              policy + run.more);
    const std::string file = folder + "/trace.jsonl";
    return trace_from_lines(content_of(file), file);
  }

  /// Prompts of the same length, all at once.
  Trace real(const Prompts& run, const std::string& name) const {
    const std::string prompts = folder_.file(name + ".prompts");
    std::ofstream lines(prompts);
    for (std::int64_t i = 0; i < run.batch; ++i) {
      lines << json{{"id", i},
                    {"prompt_token_ids", Ids(static_cast<std::size_t>(run.input_tokens), 100 + i)}}
            << "\n";
    }
    lines.close();
    return trace({"generate", "--prompts", prompts, "--max-tokens",
                  std::to_string(run.output_tokens), "--ignore-eos", "--temperature", "0", "-q"},
                 name + ".real", run);
  }
  Trace simulated(const Prompts& run, const std::string& name) const {
    return trace(
        {"simulate", "--model", "tiny", "--machine", "this", "--input-tokens",
         std::to_string(run.input_tokens), "--output-tokens", std::to_string(run.output_tokens)},
        name + ".simulated", run);
  }

 private:
  using Ids = std::vector<std::int64_t>;
  const TemporaryFolder& folder_;
};

std::map<int, Device> devices_of(const Trace& trace) {
  std::map<int, Device> devices;
  for (const TraceWorker& worker : trace.workers) devices[worker.id] = worker.device;
  return devices;
}

/// What was decided of each task, in the order in which they ran, but for times. Not what it waited
/// for: StarPU leaves out what has ended by the time of submission.
Lines decisions(const Trace& trace) {
  const std::map<int, Device> devices = devices_of(trace);
  Lines lines;
  lines.reserve(trace.tasks.size());
  for (const TraceTask& task : trace.tasks) {
    EXPECT_TRUE(task.tagged) << task.name;
    const TaskTag& tag = task.tag;
    lines.push_back(fmt::format(
        "{} {} of {}, {}, wanted on {}, ran on {}; {} tokens, context {}, {} sequences", task.name,
        task_label(task), task_place(task), to_string(tag.phase), to_string(tag.device),
        to_string(devices.at(task.worker)), tag.num_tokens, tag.context_tokens, tag.num_sequences));
  }
  return lines;
}

/// The same of one device's tasks.
Lines decisions_of(Device device, Trace trace) {
  const std::map<int, Device> devices = devices_of(trace);
  std::erase_if(trace.tasks,
                [&](const TraceTask& task) { return devices.at(task.worker) != device; });
  return decisions(trace);
}

/// Bytes that went into one tier's memory.
double bytes_into(Tier tier, const Trace& trace) {
  std::map<int, Tier> tiers;
  for (const TraceNode& node : trace.nodes) tiers[node.id] = node.tier;
  double sum = 0;
  for (const TraceTransfer& transfer : trace.transfers)
    sum += tiers.at(transfer.to) == tier ? static_cast<double>(transfer.bytes) : 0;
  return sum;
}

/// Bytes of each transfer, in order.
Lines transfers(const Trace& trace) {
  Lines lines;
  lines.reserve(trace.transfers.size());
  for (const TraceTransfer& transfer : trace.transfers)
    lines.push_back(fmt::format("{} bytes from {} to {}", transfer.bytes,
                                node_label(trace, transfer.from), node_label(trace, transfer.to)));
  return lines;
}

/// Submissions, admissions, first and last tokens, without the requests' names, which a simulation
/// does not know.
Lines events(const Trace& trace) {
  Lines lines;
  lines.reserve(trace.events.size());
  for (const TraceEvent& event : trace.events)
    lines.push_back(event.text.substr(0, event.text.find(" (")));
  return lines;
}

void expect_same(const Lines& real, const Lines& simulated) {
  EXPECT_EQ(real.size(), simulated.size());
  const auto [a, b] = std::mismatch(real.begin(), real.end(), simulated.begin(), simulated.end());
  if (a == real.end() || b == simulated.end()) return;
  ADD_FAILURE() << "the first difference, at " << a - real.begin() << ":\nreal:      " << *a
                << "\nsimulated: " << *b;
}

/// Calibrates, then calls `compare` with the traces of each run, real and simulated.
template <typename Comparison>
void compare_traces(const std::vector<Prompts>& runs, const Comparison& compare) {
  const TemporaryFolder folder;
  const Program program(folder);
  program.run({"calibrate", "--model", "tiny", "--repeat", "1"});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string name = fmt::format("{}", i);
    SCOPED_TRACE("run " + name + ", policy " + runs[i].policy);
    const Trace real = program.real(runs[i], name);
    const Trace simulated = program.simulated(runs[i], name);
    EXPECT_EQ(real.num_lost + simulated.num_lost, 0);
    compare(runs[i], real, simulated);
  }
}

TEST(SameDecisionsTest, SimulationRunsTheTasksThatThisMachineRuns) {
  const std::vector<Prompts> runs = {
      {.policy = "cpu-only", .batch = 3, .input_tokens = 40, .output_tokens = 8},
      {.policy = "lia", .batch = 16, .input_tokens = 100, .output_tokens = 3},
      {.policy = "neo", .batch = 5, .input_tokens = 17, .output_tokens = 1},
      {.policy = "", .batch = 1, .input_tokens = 1, .output_tokens = 20},
      {.policy = SLUICE_TEST_POLICY, .batch = 12, .input_tokens = 60, .output_tokens = 6},
      {.policy = SLUICE_TEST_POLICY, .batch = 40, .input_tokens = 5, .output_tokens = 9}};
  compare_traces(runs, [](const Prompts& run, const Trace& real, const Trace& simulated) {
    expect_same(decisions(real), decisions(simulated));
    expect_same(transfers(real), transfers(simulated));
    expect_same(events(real), events(simulated));
    const bool cuts = run.policy == SLUICE_TEST_POLICY;
    EXPECT_EQ(cuts, std::any_of(real.tasks.begin(), real.tasks.end(),
                                [](const TraceTask& task) { return task.tag.sub_batch > 0; }));
  });
}

Arguments streamed(const char* prefill, const char* decode, const char* memory) {
  return {"--policy-option", fmt::format("prefill={}", prefill),
          "--policy-option", fmt::format("decode={}", decode),
          "--policy-option", "opt1=off",
          "--device",        fmt::format("standin:{}", memory)};
}

/// Weights that stay, that stream and are evicted, KV on its way, CPU and accelerator by turns.
TEST(SameDecisionsTest, SimulationMovesWhatTheStandInAcceleratorIsSent) {
  const std::vector<Prompts> runs = {{"lia", 4, 60, 8, streamed("000000", "000000", "12MiB")},
                                     {"lia", 1, 40, 12, streamed("000011", "100110", "16MiB")},
                                     {"flexgen", 4, 60, 8, {"--device", "standin:12MiB"}},
                                     // Everything stays, KV too.
                                     {"gpu-only", 4, 60, 8, {"--device", "standin:48MiB"}}};
  compare_traces(runs, [](const Prompts&, const Trace& real, const Trace& simulated) {
    for (const Device device : {Device::cpu, Device::gpu})
      expect_same(decisions_of(device, real), decisions_of(device, simulated));
    for (const Tier tier : {Tier::hbm, Tier::ddr}) {
      const double moved = bytes_into(tier, real);
      EXPECT_GT(moved, 0);
      EXPECT_NEAR(bytes_into(tier, simulated) / moved, 1, 0.02) << to_string(tier);
    }
  });
}

/// In one direction one transfer after the other is on its way.
TEST(SameDecisionsTest, TheSimulatedLinkIsTheOneThatIsAskedFor) {
  const TemporaryFolder folder;
  const Program program(folder);
  program.run({"calibrate", "--model", "tiny", "--repeat", "1"});
  const Trace trace = program.simulated(
      {.policy = "lia",
       .batch = 4,
       .input_tokens = 60,
       .output_tokens = 3,
       .more = streamed("000000", "000000", "12MiB") + Arguments{"--link", "0.5,300"}},
      "link");
  const std::vector<LinkUse> uses = link_use(trace);
  ASSERT_EQ(uses.size(), 2U);
  for (const LinkUse& use : uses) {
    const double expected_s =
        static_cast<double>(use.num_transfers) * 300e-6 + static_cast<double>(use.bytes) / 0.5e9;
    EXPECT_GT(use.num_transfers, 5);
    EXPECT_NEAR(static_cast<double>(use.busy_ns) * 1e-9, expected_s, 0.03 * expected_s)
        << use.num_transfers << " transfers, " << use.bytes << " bytes";
  }
}

}  // namespace
}  // namespace sluice
