#include "engine/replay/traced_prompt.h"

#include <algorithm>
#include <random>

#include "engine/replay/draws.h"

namespace sluice {
namespace {

/// What an id counts.
enum class Subject : std::uint32_t { block, request };

/// A stream of its own for each seed, subject and id.
std::mt19937_64 bits_of(std::uint64_t seed, Subject subject, std::int64_t id) {
  const auto number = static_cast<std::uint64_t>(id);
  std::seed_seq words = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(subject), static_cast<std::uint32_t>(number),
                         static_cast<std::uint32_t>(number >> 32)};
  return std::mt19937_64(words);
}

void append(std::vector<std::int32_t>& tokens, std::size_t until, TokenRange range,
            std::mt19937_64 bits) {
  while (tokens.size() < until)
    tokens.push_back(static_cast<std::int32_t>(draw_whole(bits, range.first, range.last)));
}

}  // namespace

std::vector<std::int32_t> traced_prompt(const TracedRequest& request, std::int64_t index,
                                        TokenRange range, std::uint64_t seed) {
  if (!request.prompt_token_ids.empty()) return request.prompt_token_ids;
  const auto size = static_cast<std::size_t>(request.input_tokens);
  std::vector<std::int32_t> tokens;
  tokens.reserve(size);
  for (const std::int64_t block : request.prefix_blocks) {
    const std::size_t until = tokens.size() + static_cast<std::size_t>(traced_block_tokens);
    append(tokens, std::min(size, until), range, bits_of(seed, Subject::block, block));
  }
  append(tokens, size, range, bits_of(seed, Subject::request, index));
  return tokens;
}

}  // namespace sluice
