#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/topology.h"
#include "codelets/weights/gemm_schedules.h"
#include "engine/machine/compute.h"

namespace sluice {

/// What was measured of products of a shape by so many rows, in seconds of one product.
struct TunedGemm {
  GemmShape shape;
  std::int64_t rows = 1;
  GemmSchedule schedule;  ///< the fastest that was found
  double tuned_s = 0;     ///< by it
  double own_s = 0;       ///< as the kernels choose themselves
  bool is_used = false;   ///< it beats the kernels' own choice by more than chance

  bool operator==(const TunedGemm&) const = default;
};

/// As products follow them: each holds up to the next number of rows that was measured, as far as
/// it is used.
GemmSchedules schedules_of(const std::vector<TunedGemm>& found);

/// {"topology", "shapes": [{"in", "out", "dtype", "threads", "groups", "rows": [{"rows", "tile",
/// "block_depth", "fetch_bytes", "job_rows", "job_strips", "tuned_s", "own_s", "is_used"}]}]};
/// without "fetch_bytes" the CPU's own.
nlohmann::json as_json(const std::vector<TunedGemm>& found, const Topology& topology);
/// Reads that. `where` names it in messages. Throws Error, in one line, where a field is missing or
/// of another kind, names a kernel that this CPU has not, and where it is another machine's.
std::vector<TunedGemm> read_tuned_gemms(const nlohmann::json& json, std::string_view where,
                                        const Topology& topology);

/// Where `sluice tune --kernels` keeps what it finds: beside the calibrations of this machine and
/// kernel_generation, a file a GEMM type, for all models.
std::filesystem::path gemm_schedule_path(DType dtype);

/// What is kept there; nothing where there is no file. Throws Error as read_tuned_gemms() does, and
/// where the file cannot be read, and says what would help.
std::vector<TunedGemm> kept_gemms(DType dtype, const Topology& topology);

/// Has products follow kept_gemms(); the number of shapes for which a run on these cores has
/// schedules that beat the kernels' own choice. Throws Error as that does.
std::int64_t follow_kept_gemm_schedules(DType dtype, const CpuUse& cpu);

}  // namespace sluice
