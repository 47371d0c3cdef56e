// The search for schedules on a machine that is a formula.
#include "engine/measure/gemm_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "codelets/weights/plain.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::expect_error;

constexpr StripTile low = {.rows = 1, .columns = 64};
constexpr StripTile middle = {.rows = 3, .columns = 32};
constexpr StripTile high = {.rows = 6, .columns = 16};
constexpr StripKernel all_kernels[] = {{.tile = low, .most_depth = 1024},
                                       {.tile = middle, .most_depth = 1024},
                                       {.tile = high, .most_depth = 1024}};

GemmShape shape_of(int threads) {
  return {.in = 1024, .out = 64 * 32, .dtype = DType::bf16, .threads = threads, .groups = 1};
}

/// A machine on which a product takes what its jobs take, one thread's after the other: each job
/// has a cost of its own, each tile of rows reads the block again, large slices fall out of a
/// cache.
class PlayedMachine {
 public:
  explicit PlayedMachine(int threads) : threads_(threads) {}

  double seconds(std::int64_t rows, const GemmSchedule& wanted) const {
    // What the kernels choose themselves is far from the best.
    const GemmSchedule schedule = wanted.strip.tile ? wanted : own();
    const StripTile& tile = schedule.strip.tile;
    const auto parts = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t jobs = parts(rows, schedule.rows) * parts(32, schedule.strips);
    const std::int64_t rounds = parts(jobs, threads_);
    const std::int64_t job_rows = std::min(rows, schedule.rows);
    const auto tiles = static_cast<double>(parts(job_rows, tile.rows) * schedule.strips);
    const double of_a_tile =
        2.0 + static_cast<double>(std::min(job_rows, tile.rows)) * (tile == low ? 1.5 : 1.0);
    const auto block =
        static_cast<double>(std::min<std::int64_t>(schedule.strip.block_depth, 1024));
    const double blocks = 1024 / block;
    const double slice = block * static_cast<double>(job_rows);
    const double spill = slice > 16384 ? 1 + slice / 65536 : 1;
    const double fetch = schedule.strip.fetch_bytes == 8192 ? 0.9 : 1;
    return static_cast<double>(rounds) * (5 + tiles * (of_a_tile * 16 * spill * fetch + blocks));
  }

  static GemmSchedule own() {
    return {.strip = {.tile = high, .block_depth = 64}, .rows = 6, .strips = 1};
  }
  GemmMeter meter() {
    return {.own = [](std::int64_t) { return own(); },
            .measure =
                [this](std::int64_t rows, std::span<const GemmSchedule> schedules, int) {
                  std::vector<std::vector<double>> all;
                  for (const GemmSchedule& schedule : schedules) {
                    all.push_back({seconds(rows, schedule)});
                    measured.push_back(schedule);
                  }
                  return all;
                }};
  }

  /// By trying everything, in powers of two.
  double best(std::int64_t rows) const {
    double fastest = INFINITY;
    for (const StripKernel& kernel : all_kernels) {
      const StripTile& tile = kernel.tile;
      for (std::int64_t job_rows = tile.rows; job_rows < 2 * (rows + tile.rows); job_rows *= 2) {
        for (std::int64_t strips = 1; strips <= 32; strips *= 2) {
          for (std::int64_t depth = 64; depth <= 1024; depth *= 2) {
            fastest = std::min(
                fastest,
                seconds(rows, {.strip = {.tile = tile, .block_depth = depth, .fetch_bytes = 8192},
                               .rows = job_rows,
                               .strips = strips}));
          }
        }
      }
    }
    return fastest;
  }

  std::vector<GemmSchedule> measured;

 private:
  int threads_;
};

TEST(GemmSearchTest, FindsWhatTryingEverythingFinds) {
  for (const int threads : {1, 2, 8}) {
    PlayedMachine machine(threads);
    GemmSearch search(shape_of(threads), all_kernels, machine.meter());
    for (const std::int64_t rows : searched_rows(256)) {
      const TunedGemm tuned = search.find(rows);
      EXPECT_EQ(tuned.rows, rows);
      EXPECT_DOUBLE_EQ(tuned.tuned_s, machine.seconds(rows, tuned.schedule));
      EXPECT_EQ(tuned.own_s, machine.seconds(rows, {}));
      // A step of under 2 % is none, in two of the dimensions, and a reused schedule may be near
      // the best only.
      EXPECT_LE(tuned.tuned_s,
                machine.best(rows) * (rows <= GemmSearch::window ? 1.02 * 1.02 : 1.15))
          << rows << " rows, " << threads << " threads";
    }
  }
}

TEST(GemmSearchTest, EachThreadKeepsAJobAndSumsStayFew) {
  for (const int threads : {2, 8, 64}) {
    PlayedMachine machine(threads);
    GemmSearch search(shape_of(threads), all_kernels, machine.meter());
    for (const std::int64_t rows : {1, 8, 4096}) {
      machine.measured.clear();
      search.find(rows);
      for (const GemmSchedule& schedule : machine.measured) {
        if (!schedule.strip.tile) continue;  // the kernels' own
        const auto parts = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
        const std::int64_t jobs = parts(rows, schedule.rows) * parts(32, schedule.strips);
        const std::int64_t most = parts(rows, schedule.strip.tile.rows) * 32;
        EXPECT_GE(jobs, std::min<std::int64_t>(threads, most));
        EXPECT_LE(schedule.rows * schedule.strips * 64, most_sums_of_a_job);
        EXPECT_EQ(schedule.rows % schedule.strip.tile.rows, 0);
        EXPECT_EQ(schedule.strip.block_depth % strip_depth_step, 0);
      }
    }
  }
}

/// Sandwich section 6: behind the first numbers of rows only kernels that were chosen are tried,
/// and where schedules stay alike none is searched.
TEST(GemmSearchTest, LaterRowsTakeFewerTrials) {
  PlayedMachine machine(2);
  GemmSearch search(shape_of(2), all_kernels, machine.meter());
  std::set<std::int64_t> early;
  for (const std::int64_t rows : searched_rows(16)) {
    search.find(rows);
    for (const GemmSchedule& schedule : machine.measured) early.insert(schedule.strip.tile.rows);
  }
  EXPECT_EQ(early, (std::set<std::int64_t>{0, 1, 3, 6})) << "0: the kernels' own choice";
  for (const std::int64_t rows : {32, 64, 128, 256, 512, 1024}) search.find(rows);
  machine.measured.clear();
  const TunedGemm tuned = search.find(2048);
  EXPECT_EQ(machine.measured.size(), 2U) << "the settled schedule beside the kernels' own";
  EXPECT_EQ(tuned.schedule.strip.tile, high);
}

TEST(GemmSearchTest, GoesOnBehindWhatWasFound) {
  PlayedMachine whole_machine(2);
  GemmSearch whole(shape_of(2), all_kernels, whole_machine.meter());
  std::vector<TunedGemm> expected;
  for (const std::int64_t rows : searched_rows(128)) expected.push_back(whole.find(rows));
  for (const std::size_t cut : {1, 15, 16, 20}) {
    PlayedMachine machine(2);
    GemmSearch resumed(shape_of(2), all_kernels, machine.meter());
    for (std::size_t i = 0; i < cut; ++i) resumed.take(expected[i]);
    EXPECT_TRUE(machine.measured.empty());
    for (std::size_t i = cut; i < expected.size(); ++i)
      EXPECT_EQ(resumed.find(expected[i].rows), expected[i]) << "cut at " << cut;
  }
}

TEST(GemmSearchTest, RowsAreAllAtFirstThenFourInEachDoubling) {
  EXPECT_EQ(searched_rows(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(searched_rows(3), (std::vector<std::int64_t>{1, 2, 3}));
  const std::vector<std::int64_t> rows = searched_rows(40);
  const std::vector<std::int64_t> last(rows.end() - 6, rows.end());
  EXPECT_EQ(last, (std::vector<std::int64_t>{16, 20, 24, 28, 32, 40}));
  EXPECT_EQ(rows.size(), 15U + 6);
  EXPECT_EQ(searched_rows(2048).back(), 2048);
}

// ---------------------------------------------------------------- what is kept

const Topology& two_cores() {
  static const Topology topology = Topology::described_by("core:2 pu:1");
  return topology;
}

/// With a kernel that this CPU has.
std::vector<TunedGemm> some_found() {
  const GemmShape shape{.in = 1024, .out = 640, .dtype = DType::bf16, .threads = 2, .groups = 1};
  const StripTile tile =
      gemm_kernels({.in = 1024, .out = 640, .format = WeightFormat::plain(DType::bf16)})
          .back()
          .tile;
  GemmShape other = shape;
  other.groups = 2;
  const GemmSchedule schedule{
      .strip = {.tile = tile, .block_depth = 128, .fetch_bytes = 4096}, .rows = 24, .strips = 3};
  GemmSchedule plain = schedule;
  plain.strip.fetch_bytes.reset();
  return {
      {.shape = shape,
       .rows = 1,
       .schedule = schedule,
       .tuned_s = 0.5,
       .own_s = 1,
       .is_used = true},
      {.shape = shape, .rows = 2, .schedule = plain, .tuned_s = 0.99, .own_s = 1},
      {.shape = other, .rows = 1, .schedule = plain, .tuned_s = 0.9, .own_s = 1, .is_used = true}};
}

TEST(GemmScheduleStoreTest, IsReadAsItWasWritten) {
  const std::vector<TunedGemm> found = some_found();
  EXPECT_EQ(read_tuned_gemms(as_json(found, two_cores()), "a file", two_cores()), found);
}

TEST(GemmScheduleStoreTest, OnlyWhatBeatsTheKernelsOwnChoiceIsFollowed) {
  const std::vector<TunedGemm> found = some_found();
  const GemmSchedules schedules = schedules_of(found);
  EXPECT_EQ(*schedules.find(found[0].shape, 1), found[0].schedule);
  EXPECT_EQ(*schedules.find(found[0].shape, 2), GemmSchedule()) << "1 % may be chance";
  EXPECT_EQ(*schedules.find(found[2].shape, 7), found[2].schedule);
}

/// A job with all of 16 rows has all of 17, too: their remainder would read the weight again.
TEST(GemmScheduleStoreTest, JobsWithAllRowsKeepThemUpToTheNextNumber) {
  std::vector<TunedGemm> found = some_found();
  found.resize(2);
  found[0].rows = 16;
  found[0].schedule.rows = 18;
  found[1].rows = 20;
  found[1].schedule.rows = 12;
  found[1].is_used = true;
  const GemmSchedules schedules = schedules_of(found);
  EXPECT_GE(schedules.find(found[0].shape, 19)->rows, 19);
  EXPECT_EQ(schedules.find(found[0].shape, 21)->rows, 12);
}

TEST(GemmScheduleStoreTest, BadFilesAreRefusedInALine) {
  const json good = as_json(some_found(), two_cores());
  const auto refused = [](const json& bad, std::initializer_list<std::string_view> words) {
    expect_error([&] { read_tuned_gemms(bad, "the file", two_cores()); }, words);
  };
  refused(json::array(), {"the file", "expected an object"});
  const Topology other = Topology::described_by("core:3 pu:1");
  expect_error([&] { read_tuned_gemms(good, "the file", other); }, {"the file", "another machine"});
  for (const char* key : {"topology", "shapes"}) {
    json bad = good;
    bad.erase(key);
    refused(bad, {"the file", key, "missing"});
  }
  const auto with = [&](const char* key, const json& value) {
    json bad = good;
    json& shape = bad["shapes"][0];
    (shape.contains(key) ? shape : shape["rows"][0])[key] = value;
    return bad;
  };
  refused(with("in", 0), {"the file", "\"in\"", "0"});
  refused(with("out", 1e300), {"the file", "\"out\""});
  refused(with("dtype", "f16"), {"the file", "\"dtype\"", "f16"});
  refused(with("threads", -1), {"the file", "\"threads\""});
  refused(with("rows", "many"), {"the file", "\"rows\"", "many"});
  refused(with("tile", {1}), {"the file", "\"tile\""});
  refused(with("tile", {5, 48}), {"the file", "5 x 48", "this CPU"});
  refused(with("block_depth", 65), {"the file", "\"block_depth\"", "65"});
  refused(with("fetch_bytes", -4), {"the file", "\"fetch_bytes\""});
  refused(with("job_rows", 1 << 30), {"the file", "\"job_rows\""});
  refused(with("job_strips", 11), {"the file", "\"job_strips\"", "10"});
  refused(with("tuned_s", 0), {"the file", "\"tuned_s\"", "seconds"});
  refused(with("is_used", 1), {"the file", "\"is_used\"", "true or false"});
  refused(with("own_s", "fast"), {"the file", "\"own_s\"", "seconds"});
}

}  // namespace
}  // namespace sluice
