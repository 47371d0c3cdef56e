#include "engine/replay/outcome_json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {

// As nlohmann::json finds them.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FinishedRequest, arrival_s, admitted_s, first_token_s,
                                   last_token_s, output_tokens, rejected)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplaySample, time_s, waiting, running, swapped, pool_tokens,
                                   busy_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplayTimeline::Pool, name, tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplayTimeline, pools, resources, samples, end_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EngineStats, prompt_tokens, generated_tokens, iterations,
                                   preemptions, swapped_in_pages, swapped_out_pages,
                                   prefix_hit_tokens, wall_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReplayOutcome, finished, timeline, stats,
                                   one_sub_batch_iterations, two_sub_batch_iterations)

std::string outcome_to_json(const ReplayOutcome& outcome) { return nlohmann::json(outcome).dump(); }

ReplayOutcome outcome_from_json(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<ReplayOutcome>();
  } catch (const nlohmann::json::exception& error) {
    throw Error("the simulator's answer cannot be read: {}", error.what());
  }
}

}  // namespace sluice
