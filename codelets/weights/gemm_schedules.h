#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "codelets/kernels/strip_gemm.h"
#include "codelets/weights/weight.h"

namespace sluice {

/// How x W^T is dealt out to threads and cut into loops (Sandwich section 6). It changes no bit of
/// the result. What is left out is chosen by the number of rows, and by the CPU.
struct GemmSchedule {
  StripSchedule strip = {};
  std::int64_t rows = 0;    ///< of a job
  std::int64_t strips = 0;  ///< of 64 columns of W^T, of a job

  bool operator==(const GemmSchedule&) const = default;
};

/// Sums that a job may have, of its rows by its columns: each thread keeps as many.
constexpr std::int64_t most_sums_of_a_job = std::int64_t{1} << 20;

/// Products that one schedule serves, whatever their rows: by weights of one shape and type, on so
/// many threads in so many groups.
struct GemmShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType dtype = DType::bf16;  ///< f32 or bf16
  int threads = 1;
  int groups = 1;

  bool operator==(const GemmShape&) const = default;
  bool operator<(const GemmShape& other) const {
    const auto fields = [](const GemmShape& shape) {
      return std::tie(shape.in, shape.out, shape.dtype, shape.threads, shape.groups);
    };
    return fields(*this) < fields(other);
  }
};

/// Schedules that were found for numbers of rows.
class GemmSchedules {
 public:
  /// `schedule` holds from so many rows on, up to the next number that has one.
  void add(const GemmShape& shape, std::int64_t rows, const GemmSchedule& schedule);
  /// Null where there is none.
  const GemmSchedule* find(const GemmShape& shape, std::int64_t rows) const;

 private:
  std::map<GemmShape, std::map<std::int64_t, GemmSchedule>> shapes_;
};

/// Products of this process by one weight of f32 or bf16 are cut as these say, where they know
/// their shape, from the next one on. Products of several weights, which experts have, are not.
void follow_gemm_schedules(GemmSchedules schedules);
/// Of a product that begins now.
GemmSchedule gemm_schedule_of(const GemmShape& shape, std::int64_t rows);

}  // namespace sluice
