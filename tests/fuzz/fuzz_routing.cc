// Any bytes as a routing file: refused with an Error of one line, or it is the same when it is
// written and read again, and what follows from it lies between its bounds.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "perfmodels/routing.h"
#include "perfmodels/routing_file.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

/// What a cost model asks.
void ask(const sluice::Routing& routing) {
  constexpr double rounding = 1e-6;
  require(routing.num_experts() == 8 && routing.experts_per_token() == 2);
  for (const double rows : {1.0, 2.0, 3.5, 64.0, 1e6}) {
    const double touched = routing.experts_touched(rows);
    require(touched >= 0 && touched <= 8 + rounding);
    require(routing.rows_of_an_expert(rows) > 0);
  }
  double before = 0;
  for (std::int64_t count = 0; count <= 8; ++count) {
    const double share = routing.hot_share(count);
    require(share >= before - rounding && share <= 1 + rounding);
    before = share;
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const sluice::RoutedModel model = {
      .name = "mix", .num_layers = 2, .num_experts = 8, .experts_per_token = 2};
  try {
    const sluice::RecordedRouting read = sluice::parse_routing(text, "routing.json", model);
    const std::string written = sluice::format_routing(read);
    require(sluice::format_routing(sluice::parse_routing(written, "again", model)) == written);
    ask(sluice::Routing::recorded(read, model.experts_per_token));
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos && message.size() < 4000);
  }
  return 0;
}
