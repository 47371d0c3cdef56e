#include "engine/measure/gemm_search.h"

#include <algorithm>
#include <utility>

#include "base/median.h"
#include "base/rounding.h"
#include "engine/measure/gain.h"

namespace sluice {
namespace {

/// Rows of a job in which kernels are tried for the first time.
constexpr std::int64_t most_tried_rows = 64;
/// A kernel that takes so many times as long as another one, cut alike, is not worth a search.
constexpr double hopeless = 1.3;
/// A step of the fast start must be so many times as fast.
constexpr double least_step_gain = 1.01;
constexpr int step_rounds = 5;
constexpr int start_rounds = 9;
constexpr int last_rounds = 15;
/// Of finetuning: as many as double or halve a dimension; more are chance going in circles.
constexpr int most_steps = 16;
/// A reused schedule must take a row at most so many times as long as the last one did.
constexpr double as_long = 1.03;
/// Schedules that must be alike for the last one to serve further rows.
constexpr int alike_in_a_row = 3;

/// Within a factor of two.
bool is_near(std::int64_t a, std::int64_t b) { return a <= 2 * b && b <= 2 * a; }
/// Whether a job has them.
bool has_all_rows(const TunedGemm& of) { return of.schedule.rows >= of.rows; }
bool are_alike(const TunedGemm& a, const TunedGemm& b) {
  const bool same_rows = has_all_rows(a)
                             ? has_all_rows(b)
                             : !has_all_rows(b) && is_near(a.schedule.rows, b.schedule.rows);
  return same_rows && a.schedule.strip.tile == b.schedule.strip.tile &&
         is_near(a.schedule.strips, b.schedule.strips) &&
         is_near(a.schedule.strip.block_depth, b.schedule.strip.block_depth);
}

/// The dimensions of a slice (of a computation, as the paper calls what is done at once).
constexpr int num_dimensions = 3;
std::int64_t& dimension(GemmSchedule& schedule, int which) {
  switch (which) {
    case 0:
      return schedule.rows;
    case 1:
      return schedule.strips;
    default:
      return schedule.strip.block_depth;
  }
}
std::int64_t least(const GemmSchedule& schedule, int which) {
  switch (which) {
    case 0:
      return schedule.strip.tile.rows;
    case 1:
      return 1;
    default:
      return strip_depth_step;
  }
}

}  // namespace

GemmSearch::GemmSearch(const GemmShape& shape, std::span<const StripKernel> kernels,
                       GemmMeter meter)
    : shape_(shape), kernels_(kernels), meter_(std::move(meter)) {}

std::int64_t GemmSearch::num_strips() const { return divide_up(shape_.out, strip_columns); }

TunedGemm GemmSearch::find(std::int64_t rows) {
  std::optional<TunedGemm> tuned;
  if (const std::optional<GemmSchedule> reused = settled(rows)) {
    tuned = compare(rows, *reused);
    const auto row_s = [](const TunedGemm& of) {
      return of.tuned_s / static_cast<double>(of.rows);
    };
    const bool is_own = *reused == meter_.own(rows);
    if (!is_own && row_s(*tuned) > as_long * row_s(found_.back())) tuned.reset();
  }
  if (!tuned) tuned = compare(rows, searched(rows));
  take(*tuned);
  return *tuned;
}

GemmSchedule GemmSearch::searched(std::int64_t rows) const {
  const GemmSchedule own = meter_.own(rows);
  std::vector<GemmSchedule> best = {own};
  for (const StripKernel& kernel : hopeful(candidates(), rows)) {
    std::vector<GemmSchedule> starts;
    if (own.strip.tile == kernel.tile) starts.push_back(own);
    starts.push_back(fast_start(kernel.tile, rows));
    for (const GemmSchedule& part : whole_parts(GemmSchedule(starts.back()), rows))
      starts.push_back(part);
    best.push_back(finetune(fastest(rows, starts, step_rounds), rows));
  }
  return with_fetch(fastest(rows, best, start_rounds), rows);
}

void GemmSearch::take(const TunedGemm& found) {
  found_.push_back(found);
  if (std::ssize(found_) > window) found_.pop_front();
}

GemmSearch::Kernels GemmSearch::candidates() const {
  Kernels kernels(kernels_.begin(), kernels_.end());
  if (std::ssize(found_) < window) return kernels;
  std::erase_if(kernels, [&](const StripKernel& kernel) {
    return std::none_of(found_.begin(), found_.end(), [&](const TunedGemm& found) {
      return found.schedule.strip.tile == kernel.tile;
    });
  });
  return kernels;
}

GemmSearch::Kernels GemmSearch::hopeful(Kernels kernels, std::int64_t rows) const {
  if (kernels.size() < 2) return kernels;
  std::vector<GemmSchedule> schedules;
  for (const StripKernel& kernel : kernels) {
    schedules.push_back(meter_.own(rows));
    GemmSchedule& schedule = schedules.back();
    schedule.strip.tile = kernel.tile;
    schedule.strip.block_depth = std::min(schedule.strip.block_depth, kernel.most_depth);
    schedule.rows = round_up(std::min(rows, most_tried_rows), kernel.tile.rows);
    if (!fits(schedule, rows)) schedule.rows = kernel.tile.rows;
  }
  std::vector<double> seconds;
  for (std::vector<double>& samples : meter_.measure(rows, schedules, step_rounds))
    seconds.push_back(median(std::move(samples)));
  const double shortest = *std::min_element(seconds.begin(), seconds.end());
  Kernels left;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (seconds[i] <= hopeless * shortest) left.push_back(kernels[i]);
  }
  return left;
}

std::optional<GemmSchedule> GemmSearch::settled(std::int64_t rows) const {
  if (std::ssize(found_) < window) return std::nullopt;
  const TunedGemm& last = found_.back();
  const bool are_settled =
      std::all_of(found_.end() - alike_in_a_row, found_.end(),
                  [&](const TunedGemm& found) { return are_alike(found, last); });
  if (!are_settled) return std::nullopt;
  if (last.schedule == meter_.own(last.rows)) return meter_.own(rows);
  GemmSchedule schedule = last.schedule;
  if (has_all_rows(last)) schedule.rows = round_up(rows, schedule.strip.tile.rows);
  return fits(schedule, rows) ? std::optional(schedule) : std::nullopt;
}

bool GemmSearch::fits(const GemmSchedule& schedule, std::int64_t rows) const {
  const StripTile& tile = schedule.strip.tile;
  const auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                                   [&](const StripKernel& each) { return each.tile == tile; });
  const std::int64_t most_depth =
      std::min(kernel->most_depth, round_up(shape_.in, strip_depth_step));
  const std::int64_t jobs =
      divide_up(rows, schedule.rows) * divide_up(num_strips(), schedule.strips);
  const std::int64_t most_jobs = divide_up(rows, tile.rows) * num_strips();
  return schedule.rows <= round_up(rows, tile.rows) && schedule.strips <= num_strips() &&
         schedule.strip.block_depth <= most_depth &&
         schedule.rows * schedule.strips * strip_columns <= most_sums_of_a_job &&
         jobs >= std::min<std::int64_t>(shape_.threads, most_jobs);
}

GemmSchedule GemmSearch::fast_start(const StripTile& tile, std::int64_t rows) const {
  GemmSchedule slice{
      .strip = {.tile = tile, .block_depth = strip_depth_step}, .rows = tile.rows, .strips = 1};
  bool is_open[num_dimensions] = {true, true, true};
  while (std::find(std::begin(is_open), std::end(is_open), true) != std::end(is_open)) {
    for (int which = 0; which < num_dimensions; ++which) {
      if (!is_open[which]) continue;
      // A step of 2^t tiles after t steps doubles the slice.
      GemmSchedule grown = slice;
      dimension(grown, which) *= 2;
      is_open[which] = false;
      if (!fits(grown, rows)) continue;
      const std::vector<GemmSchedule> both = {slice, grown};
      const std::vector<std::vector<double>> samples = meter_.measure(rows, both, step_rounds);
      if (Gain::over(samples[0], samples[1]).median < least_step_gain) continue;
      is_open[which] = true;
      slice = grown;
    }
  }
  return slice;
}

std::vector<GemmSchedule> GemmSearch::whole_parts(const GemmSchedule& like,
                                                  std::int64_t rows) const {
  std::vector<GemmSchedule> found;
  for (std::int64_t of_rows = 1; of_rows <= shape_.threads; ++of_rows) {
    if (shape_.threads % of_rows != 0) continue;
    const std::int64_t of_columns = shape_.threads / of_rows;
    GemmSchedule part = like;
    part.rows = round_up(divide_up(rows, of_rows), like.strip.tile.rows);
    part.strips = divide_up(num_strips(), of_columns);
    if (fits(part, rows)) found.push_back(part);
  }
  return found;
}

GemmSchedule GemmSearch::finetune(const GemmSchedule& start, std::int64_t rows) const {
  GemmSchedule slice = start;
  for (int step = 0; step < most_steps; ++step) {
    std::vector<GemmSchedule> ways = {slice};
    for (int which = 0; which < num_dimensions; ++which) {
      GemmSchedule larger = slice;
      dimension(larger, which) *= 2;
      if (fits(larger, rows)) ways.push_back(larger);
      GemmSchedule smaller = slice;
      const std::int64_t unit = least(slice, which);
      dimension(smaller, which) = std::max(unit, dimension(slice, which) / 2 / unit * unit);
      if (smaller != slice) ways.push_back(smaller);
    }
    const GemmSchedule best = fastest(rows, ways, step_rounds);
    if (best == slice) break;
    slice = best;
  }
  return slice;
}

GemmSchedule GemmSearch::with_fetch(const GemmSchedule& schedule, std::int64_t rows) const {
  std::vector<GemmSchedule> ways = {schedule};
  for (const std::int64_t bytes : {0, 4096, 8192, 16384}) {
    ways.push_back(schedule);
    ways.back().strip.fetch_bytes = bytes;
  }
  return fastest(rows, ways, step_rounds);
}

GemmSchedule GemmSearch::fastest(std::int64_t rows, std::span<const GemmSchedule> schedules,
                                 int rounds) const {
  const std::vector<std::vector<double>> samples = meter_.measure(rows, schedules, rounds);
  std::size_t best = 0;
  Gain gain;
  for (std::size_t i = 1; i < schedules.size(); ++i) {
    const Gain of_this = Gain::over(samples.front(), samples[i]);
    if (!of_this.is_sure() || of_this.median <= gain.median) continue;
    best = i;
    gain = of_this;
  }
  return schedules[best];
}

TunedGemm GemmSearch::compare(std::int64_t rows, const GemmSchedule& winner) const {
  TunedGemm tuned{.shape = shape_, .rows = rows, .schedule = winner};
  if (winner == meter_.own(rows)) {
    const std::vector<GemmSchedule> own = {GemmSchedule()};
    tuned.own_s = median(meter_.measure(rows, own, step_rounds).front());
    tuned.tuned_s = tuned.own_s;
    return tuned;
  }
  // Two alone, so that the luck of the best of many does not count.
  const std::vector<GemmSchedule> both = {GemmSchedule(), winner};
  const std::vector<std::vector<double>> samples = meter_.measure(rows, both, last_rounds);
  const Gain gain = Gain::over(samples[0], samples[1]);
  tuned.own_s = median(samples[0]);
  tuned.tuned_s = tuned.own_s / gain.median;
  tuned.is_used = gain.is_sure();
  return tuned;
}

std::vector<std::int64_t> searched_rows(std::int64_t most) {
  std::vector<std::int64_t> rows;
  for (std::int64_t each = 1; each < std::min<std::int64_t>(most, GemmSearch::window); ++each)
    rows.push_back(each);
  for (std::int64_t doubling = GemmSearch::window; doubling < most; doubling *= 2) {
    for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
      const std::int64_t each = doubling + doubling / 4 * quarter;
      if (each < most) rows.push_back(each);
    }
  }
  rows.push_back(most);
  return rows;
}

}  // namespace sluice
