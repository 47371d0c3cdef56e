#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "perfmodels/profile.h"

namespace sluice {

/// A machine of round numbers, for tests to work with by hand and to break.
inline nlohmann::json round_machine() {
  return nlohmann::json::parse(R"({
    "name": "round", "description": "round numbers",
    "causal_attention": {"value": 0, "source": "test"},
    "cpu": {
      "name": "cpu", "cores": {"value": 8, "source": "test"},
      "memory_bandwidth_gb_per_s": {"value": 100, "source": "test"},
      "gemm_tflop_per_s": {"value": 10, "source": "test"},
      "attention_bandwidth_gb_per_s": {"value": 50, "source": "test"},
      "attention_tflop_per_s": {"value": 5, "source": "test"},
      "combine": "sum", "task_overhead_us": {"value": 2, "source": "test"},
      "dequantize_gb_per_s": {"value": 20, "source": "test"}
    },
    "gpu": {
      "name": "gpu", "count": {"value": 1, "source": "test"},
      "all_reduce": {"bandwidth_gb_per_s": {"value": 10, "source": "test"},
                     "latency_us": {"value": 28, "source": "test"}},
      "memory_bandwidth_gb_per_s": {"value": 1000, "source": "test"},
      "gemm_tflop_per_s": {"value": 100, "source": "test"},
      "attention_bandwidth_gb_per_s": {"value": 500, "source": "test"},
      "attention_tflop_per_s": {"value": 50, "source": "test"},
      "combine": "max", "task_overhead_us": {"value": 10, "source": "test"},
      "dequantize_gb_per_s": {"value": 200, "source": "test"}
    },
    "tiers": {
      "hbm": {"capacity_gib": {"value": 16, "source": "test"},
              "reserved_gib": {"value": 1.5, "source": "test"}},
      "ddr": {"capacity_gib": {"value": 128, "source": "test"}},
      "cxl": {"capacity_gib": {"value": 256, "source": "test"},
              "cpu_bandwidth_gb_per_s": {"value": 25, "source": "test"}},
      "disk": {"capacity_gib": {"value": 1024, "source": "test"}}
    },
    "links": [
      {"from": "ddr", "to": "hbm", "bandwidth_gb_per_s": {"value": 25, "source": "test"},
       "latency_us": {"value": 10, "source": "test"}, "pinned": true},
      {"from": "hbm", "to": "ddr", "bandwidth_gb_per_s": {"value": 20, "source": "test"},
       "latency_us": {"value": 10, "source": "test"}, "pinned": true},
      {"from": "cxl", "to": "hbm", "bandwidth_gb_per_s": {"value": 16, "source": "test"},
       "latency_us": {"value": 8, "source": "test"}, "pinned": true},
      {"from": "cxl", "to": "ddr", "bandwidth_gb_per_s": {"value": 32, "source": "test"},
       "latency_us": {"value": 1, "source": "test"}, "pinned": true},
      {"from": "disk", "to": "ddr", "bandwidth_gb_per_s": {"value": 2, "source": "test"},
       "latency_us": {"value": 100, "source": "test"}, "pinned": false},
      {"from": "ddr", "to": "cxl", "bandwidth_gb_per_s": {"value": 32, "source": "test"},
       "latency_us": {"value": 1, "source": "test"}, "pinned": true},
      {"from": "ddr", "to": "disk", "bandwidth_gb_per_s": {"value": 1, "source": "test"},
       "latency_us": {"value": 100, "source": "test"}, "pinned": false}
    ]
  })");
}

/// round_machine() with a merge patch over it; a number in the patch replaces value and source.
inline MachineProfile patched_machine(const std::string& patch) {
  nlohmann::json machine = round_machine();
  machine.merge_patch(nlohmann::json::parse(patch));
  return parse_profile(machine.dump(), "round.json");
}

/// round_machine() with two nodes of four cores. A node's memory gives 40 to 100 GB/s, other nodes'
/// 20 GB/s to all cores of one; a round of eight threads takes 8 us.
inline nlohmann::json machine_with_cores() {
  nlohmann::json machine = round_machine();
  machine["cpu"].update(nlohmann::json::parse(R"({
    "topology": {"value": "pack:2 numa:1 core:4 pu:1", "source": "test"},
    "node_bandwidth_gb_per_s": {"over": "cores", "points": [[1, 40], [4, 100]], "source": "test"},
    "remote_bandwidth_gb_per_s": {"value": 20, "source": "test"},
    "round_us": {"over": "threads", "points": [[1, 1], [8, 8]], "source": "test"},
    "contention": [{"cores": 2, "bandwidth_gb_per_s":
                    {"over": "cores", "points": [[1, 40], [2, 60]], "source": "test"}}]
  })"));
  return machine;
}

}  // namespace sluice
