// Any bytes as a trace of requests, in its own format and in each that one can ask for: refused
// with an Error of one line, or its arrivals rise from 0 and its lengths are within bounds.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "engine/replay/trace_file.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool is_length(std::int64_t tokens) { return tokens >= 1 && tokens <= sluice::most_traced_tokens; }

void check_trace(const sluice::RequestTrace& trace) {
  require(!trace.requests.empty() && trace.failed >= 0);
  require(trace.requests.front().arrival_s == 0);
  double before_s = 0;
  for (const sluice::TracedRequest& request : trace.requests) {
    require(std::isfinite(request.arrival_s) && request.arrival_s >= before_s);
    require(trace.has_arrivals() || request.arrival_s == 0);
    before_s = request.arrival_s;
    require(is_length(request.input_tokens) && is_length(request.output_tokens));
    const auto num_blocks = static_cast<std::int64_t>(request.prefix_blocks.size());
    require((num_blocks - 1) * sluice::traced_block_tokens < request.input_tokens);
    const auto num_ids = static_cast<std::int64_t>(request.prompt_token_ids.size());
    require(num_ids == 0 || num_ids == request.input_tokens);
    for (const std::int32_t id : request.prompt_token_ids) require(id >= 0);
  }
}

void parse(std::string_view text, std::optional<sluice::TraceFormat> format) {
  try {
    check_trace(sluice::parse_request_trace(text, "trace", format));
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.starts_with("trace") && message.find('\n') == std::string_view::npos);
    require(message.size() < 1000);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text, std::nullopt);
  for (const char* name : {"azure", "burstgpt", "jsonl", "lengths", "mooncake"})
    parse(text, sluice::parse_trace_format(name).value());
  return 0;
}
