#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A request of a trace: when it comes, and how long it is.
struct TracedRequest {
  double arrival_s = 0;  ///< after the first request of the trace, never less than the one above
  std::int64_t input_tokens = 0;   ///< 1 to most_traced_tokens
  std::int64_t output_tokens = 0;  ///< 1 to most_traced_tokens
  /// Ids of the prompt's blocks of traced_block_tokens, from its begin on: requests whose first n
  /// ids are equal begin with the same tokens. Empty where the trace does not tell.
  std::vector<std::int64_t> prefix_blocks = {};
  std::vector<std::int32_t> prompt_token_ids = {};  ///< input_tokens of them, or empty
};

inline constexpr std::int64_t traced_block_tokens = 512;
/// Of an input or an output; no model reads that many.
inline constexpr std::int64_t most_traced_tokens = std::int64_t{1} << 24;

enum class TraceFormat : std::uint8_t {
  azure,     ///< CSV: TIMESTAMP, ContextTokens, GeneratedTokens
  burstgpt,  ///< CSV: Timestamp (s), Request tokens, Response tokens
  jsonl,     ///< ours: arrival_s, input_tokens, output_tokens, prompt_token_ids, hash_ids
  lengths,   ///< a JSON list of NEO's: prompt, max_tokens
  mooncake,  ///< JSON lines: timestamp (ms), input_length, output_length, hash_ids
};
std::string_view to_string(TraceFormat format);
/// The format of that name, or nothing.
std::optional<TraceFormat> parse_trace_format(std::string_view name);

struct RequestTrace {
  TraceFormat format = TraceFormat::jsonl;
  std::vector<TracedRequest> requests;  ///< at least one
  std::int64_t failed = 0;              ///< left out: answers of 0 tokens (burstgpt)

  /// Whether the file says when requests come; if not, all arrival_s are 0.
  bool has_arrivals() const { return format != TraceFormat::lengths; }
};

/// Reads a trace; docs/reference/replay.md has the formats. Without `format` it is recognised.
/// `path` is for messages. Throws Error of one line that names path and line: no known format,
/// broken CSV or JSON, a missing column or field, a length beyond its bounds, a time that lies
/// ahead of the line above, no requests at all.
RequestTrace parse_request_trace(std::string_view text, const std::string& path,
                                 std::optional<TraceFormat> format = std::nullopt);

/// The same from a file ("-": standard input).
RequestTrace read_request_trace(const std::string& path,
                                std::optional<TraceFormat> format = std::nullopt);

}  // namespace sluice
