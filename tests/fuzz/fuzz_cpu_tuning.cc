// Any bytes as what `sluice tune` keeps: refused with an Error of one line, or it is the same when
// it is written and read again, and what is complete has a plan.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "engine/measure/tune.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const sluice::Topology& machine() {
  static const sluice::Topology topology = sluice::Topology::described_by("numa:2 core:2 pu:1");
  return topology;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const sluice::CpuTuning tuning = sluice::read_cpu_tuning(
        sluice::parse_json(text, "tuned.json", sluice::DuplicateKeys::refuse), "tuned.json",
        machine());
    const nlohmann::json written = sluice::as_json(tuning, machine());
    const sluice::CpuTuning again = sluice::read_cpu_tuning(written, "again", machine());
    require(again.is_complete() == tuning.is_complete());
    require(again.decode.plans.size() == tuning.decode.plans.size());
    if (tuning.is_complete()) {
      const sluice::CpuPlan plan = sluice::read_cpu_plan(written, "again", machine());
      require(plan.decode.measured_s > 0 && plan.prefill.measured_s > 0);
    }
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
  return 0;
}
