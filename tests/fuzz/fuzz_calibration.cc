// Any bytes as a calibration: refused with an Error of one line, or it is the same when it is
// written and read again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "perfmodels/calibration.h"
#include "perfmodels/measured_model.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const sluice::Calibration read = sluice::parse_calibration(text, "calibration.json");
    const std::string written = sluice::format_calibration(read);
    require(sluice::format_calibration(sluice::parse_calibration(written, "again")) == written);
    const sluice::MeasuredModel model(read, read.model);
    const auto shape = sluice::BatchShape::decode(4, 64);
    require(model.compute_s(read.measured_device(), sluice::Sublayer::qkv, shape,
                            sluice::Tier::ddr) >= 0);
  } catch (const sluice::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
