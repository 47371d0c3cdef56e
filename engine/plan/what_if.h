#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/plan/planner.h"

namespace sluice {

/// Where a policy changes its mind, by the cost model, for a layer that is not resident: the
/// smallest batch B from which decode is placed otherwise than for B = 1, at the workload's
/// context, and the smallest B x L from which prefill is, with B = 1 (LIA section 7.1: of B and L
/// only the product matters). One line each; without a GPU one line that says so.
std::string flip_points(CheckedPolicy& policy, const CostModel& costs, const Workload& workload);

/// The plan again with twice the link to the GPU, twice the DDR bandwidth, twice the CPU's GEMM
/// rate (ScaledModel): a table, with what changes.
std::string what_would_change(CheckedPolicy& policy, const CostModel& costs,
                              const Workload& workload);

/// Empty, or a line that says that this plan, which shares the work between devices, is slower by
/// the cost model than one of a single device that fits.
std::string slower_than_one_device(const Plan& plan, const CostModel& costs);

/// The first two, and the third as of `policy`'s own plan.
std::string explain_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& workload);

/// The same for programs; docs/reference/plan.md has the fields.
nlohmann::ordered_json explain_plan_json(CheckedPolicy& policy, const CostModel& costs,
                                         const Workload& workload);

}  // namespace sluice
