#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/machine/gemm_schedule_store.h"

namespace sluice {

/// What the search for schedules asks of the machine.
struct GemmMeter {
  /// What the kernels choose themselves for so many rows.
  std::function<GemmSchedule(std::int64_t rows)> own;
  /// Seconds of one product of so many rows by each of these schedules, one a round: in turn, in
  /// `rounds` rounds or fewer.
  std::function<std::vector<std::vector<double>>(std::int64_t rows, std::span<const GemmSchedule>,
                                                 int rounds)>
      measure;
};

/// Finds schedules of one shape's products (Sandwich section 6, "Tensor Program Generation"), for
/// one number of rows after the other, in rising order:
///
///   fast start   of each kernel, of all for the first `window` numbers of rows, then of the last
///                chosen, but for hopeless ones: rows, strips and depth of a job double while that
///                makes it faster
///   finetune     of each from there, from a thread's whole part by each way to cut rows and
///   columns
///                among threads, or from the kernels' own choice, whichever is fastest: the step
///                that gains most, until none does
///   the fastest of them, then how far ahead memory is fetched for it; the last word is a
///   comparison with the kernels' own choice
///
/// Once the last schedules are alike, the last one serves further rows without a search (schedule
/// reuse), as long as a row takes no longer by it. A machine's rates drift, so one schedule is
/// faster than another only if it is so in most rounds.
class GemmSearch {
 public:
  /// `kernels` are the shape's gemm_kernels(), not empty.
  GemmSearch(const GemmShape& shape, std::span<const StripKernel> kernels, GemmMeter meter);

  /// Of more rows than any call before it.
  TunedGemm find(std::int64_t rows);
  /// What an earlier search has found of the shape, in place of find().
  void take(const TunedGemm& found);

  /// Numbers of rows for which all kernels are tried.
  static constexpr int window = 16;

 private:
  using Kernels = std::vector<StripKernel>;

  Kernels candidates() const;
  /// Without those that are far slower than another one where a job has all rows, or many, and all
  /// else is like the kernels' own choice.
  Kernels hopeful(Kernels kernels, std::int64_t rows) const;
  /// The schedule that so many rows take without a search.
  std::optional<GemmSchedule> settled(std::int64_t rows) const;
  GemmSchedule searched(std::int64_t rows) const;
  /// Whether it leaves each thread a job, is no larger than the product, and its sums are few.
  bool fits(const GemmSchedule& schedule, std::int64_t rows) const;
  GemmSchedule fast_start(const StripTile& tile, std::int64_t rows) const;
  std::vector<GemmSchedule> whole_parts(const GemmSchedule& like, std::int64_t rows) const;
  GemmSchedule finetune(const GemmSchedule& start, std::int64_t rows) const;
  GemmSchedule with_fetch(const GemmSchedule& schedule, std::int64_t rows) const;
  /// The first one, unless another is faster.
  GemmSchedule fastest(std::int64_t rows, std::span<const GemmSchedule> schedules,
                       int rounds) const;
  TunedGemm compare(std::int64_t rows, const GemmSchedule& winner) const;
  std::int64_t num_strips() const;

  GemmShape shape_;
  std::span<const StripKernel> kernels_;
  GemmMeter meter_;
  std::deque<TunedGemm> found_;  ///< of the last numbers of rows, the latest at the end
};

/// Numbers of rows that are searched: all up to GemmSearch::window, then four in each doubling, up
/// to `most` and with it.
std::vector<std::int64_t> searched_rows(std::int64_t most);

}  // namespace sluice
