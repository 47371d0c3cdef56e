// Any bytes as what `sluice tune --kernels` keeps: refused with an Error of one line, or it is the
// same when it is written and read again, and its schedules cut a product into jobs with room for
// their sums.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "engine/machine/gemm_schedule_store.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const sluice::Topology& machine() {
  static const sluice::Topology topology = sluice::Topology::described_by("core:2 pu:1");
  return topology;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<sluice::TunedGemm> found = sluice::read_tuned_gemms(
        sluice::parse_json(text, "found.json", sluice::DuplicateKeys::refuse), "found.json",
        machine());
    require(sluice::read_tuned_gemms(sluice::as_json(found, machine()), "again", machine()) ==
            found);
    const sluice::GemmSchedules schedules = sluice::schedules_of(found);
    for (const sluice::TunedGemm& tuned : found) {
      require(schedules.find(tuned.shape, tuned.rows) != nullptr);
      require(tuned.schedule.rows >= 1 && tuned.schedule.strips >= 1);
      require(tuned.schedule.rows <=
              sluice::most_sums_of_a_job / (tuned.schedule.strips * sluice::strip_columns));
    }
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
  return 0;
}
