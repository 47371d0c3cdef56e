#include "engine/serve/live.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

ordered_json iteration_json(const EngineSnapshot::Iteration& iteration) {
  ordered_json work = ordered_json::array();
  for (const EngineSnapshot::Work& piece : iteration.work) {
    work.push_back({{"device", piece.device},
                    {"what", piece.what},
                    {"sub_batch", piece.sub_batch},
                    {"sequences", piece.sequences},
                    {"tokens", piece.tokens},
                    {"busy_s", piece.busy_s}});
  }
  return {{"number", iteration.number},
          {"duration_s", iteration.duration_s},
          {"sub_batches", iteration.sub_batches},
          {"work", std::move(work)}};
}

}  // namespace

const char* to_string(EngineSnapshot::State state) {
  switch (state) {
    case EngineSnapshot::State::loading:
      return "loading";
    case EngineSnapshot::State::ready:
      return "ready";
    case EngineSnapshot::State::draining:
      return "draining";
    case EngineSnapshot::State::failed:
      return "failed";
  }
  return "?";
}

std::string live_json(const EngineSnapshot& engine, std::string_view model) {
  ordered_json pools = ordered_json::array();
  for (const EngineSnapshot::Pool& pool : engine.pools) {
    pools.push_back({{"tier", pool.tier},
                     {"pages", pool.pages},
                     {"used_pages", pool.used_pages},
                     {"page_tokens", pool.page_tokens}});
  }
  ordered_json devices = ordered_json::array();
  for (const EngineSnapshot::Device& device : engine.devices)
    devices.push_back({{"name", device.name}, {"busy_s", device.busy_s}});
  ordered_json moved = ordered_json::array();
  for (const EngineSnapshot::Moved& one : engine.moved)
    moved.push_back({{"from", one.from}, {"to", one.to}, {"bytes", one.bytes}});
  ordered_json iterations = ordered_json::array();
  for (const EngineSnapshot::Iteration& iteration : engine.recent)
    iterations.push_back(iteration_json(iteration));
  return json_text(ordered_json{
      {"model", model},
      {"state", to_string(engine.state)},
      {"policy", engine.policy},
      {"running", engine.running},
      {"waiting", engine.waiting},
      {"swapped", engine.swapped},
      {"pools", std::move(pools)},
      {"devices", std::move(devices)},
      {"prompt_tokens", engine.prompt_tokens},
      {"output_tokens", engine.output_tokens},
      {"moved_in_bytes", engine.moved_in_bytes},
      {"moved_out_bytes", engine.moved_out_bytes},
      {"moved", std::move(moved)},
      {"preemptions", engine.preemptions_by_swap + engine.preemptions_by_recompute},
      {"prefix_hit_tokens", engine.prefix_hit_tokens},
      {"iterations", {{"one", engine.iterations_of_one}, {"two", engine.iterations_of_two}}},
      {"recent", std::move(iterations)}});
}

}  // namespace sluice
