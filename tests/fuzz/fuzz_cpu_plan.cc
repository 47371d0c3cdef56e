// Any bytes as a CPU plan: refused with an Error of one line, or it is the same when it is written
// and read again, and a pool's threads can be cut up that way.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/cpu_plan.h"
#include "base/error.h"
#include "base/json.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const sluice::Topology& machine() {
  static const sluice::Topology topology =
      sluice::Topology::described_by("pack:2 numa:1 core:4 pu:2");
  return topology;
}

void check(const sluice::CpuPhasePlan& phase, const std::vector<int>& cores) {
  double shares = 0;
  std::set<int> threads;
  for (const sluice::ThreadPool::Group& group : sluice::threads_of(phase, cores)) {
    require(group.share > 0 && !group.threads.empty());
    shares += group.share;
    for (const int thread : group.threads) require(threads.insert(thread).second);
  }
  require(shares > 1 - 1e-6 && shares < 1 + 1e-6);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const sluice::CpuPlan plan =
        sluice::read_cpu_plan(sluice::parse_json(text, "plan.json", sluice::DuplicateKeys::refuse),
                              "plan.json", machine());
    const sluice::CpuPlan again =
        sluice::read_cpu_plan(sluice::as_json(plan, machine()), "again", machine());
    require(again.cores() == plan.cores());
    check(plan.prefill, plan.cores());
    check(plan.decode, plan.cores());
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
  return 0;
}
