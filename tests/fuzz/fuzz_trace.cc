// Any bytes as trace.jsonl: refused with an Error of one line, or everything that `sluice trace`
// makes of it can be made.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/draw/picture.h"
#include "engine/trace/gantt.h"
#include "engine/trace/trace.h"
#include "engine/trace/trace_analysis.h"
#include "engine/trace/trace_formats.h"
#include "engine/trace/trace_report.h"

namespace {

void use(const sluice::Trace& trace) {
  const std::string lines = sluice::trace_as_lines(trace);
  if (sluice::trace_as_lines(sluice::trace_from_lines(lines, "again")) != lines) std::abort();
  const std::vector<std::int64_t> all = sluice::iterations_of(trace);
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(3, all.size()));
  const std::vector<std::int64_t> some(all.begin(), all.begin() + count);
  sluice::trace_as_text(trace, some);
  sluice::trace_as_json(trace, some);
  sluice::trace_as_paje(trace);
  sluice::trace_as_perfetto(trace);
  sluice::trace_as_dot(trace);
  if (!some.empty()) sluice::draw_gantt(trace, some, sluice::PictureFormat::svg);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    use(sluice::trace_from_lines(text, "trace.jsonl"));
  } catch (const sluice::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
