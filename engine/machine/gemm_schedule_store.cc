#include "engine/machine/gemm_schedule_store.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "base/rounding.h"
#include "codelets/weights/plain.h"
#include "engine/machine/calibration_store.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Beyond what a model has, and far from what overflows.
constexpr std::int64_t most_elements = std::int64_t{1} << 32;

Json as_json(const GemmShape& shape) {
  return {{"in", shape.in},
          {"out", shape.out},
          {"dtype", to_string(shape.dtype)},
          {"threads", shape.threads},
          {"groups", shape.groups}};
}

Json as_json(const TunedGemm& tuned) {
  const GemmSchedule& schedule = tuned.schedule;
  Json json = {{"rows", tuned.rows},
               {"tile", {schedule.strip.tile.rows, schedule.strip.tile.columns}},
               {"block_depth", schedule.strip.block_depth},
               {"job_rows", schedule.rows},
               {"job_strips", schedule.strips},
               {"tuned_s", tuned.tuned_s},
               {"own_s", tuned.own_s},
               {"is_used", tuned.is_used}};
  if (schedule.strip.fetch_bytes) json["fetch_bytes"] = *schedule.strip.fetch_bytes;
  return json;
}

class Reader {
 public:
  Reader(std::string_view where, const Topology& topology)
      : fields_(std::string(where)), topology_(topology) {}

  std::vector<TunedGemm> read(const Json& json) const {
    if (fields_.at(json, "topology") != topology_.shape())
      throw Error("{}: tuned on another machine: its topology is not this one's ({})",
                  fields_.where(), topology_.summary());
    std::vector<TunedGemm> found;
    for (const Json& shape : fields_.list(json, "shapes")) {
      const GemmShape of = read_shape(shape);
      for (const Json& rows : fields_.list(shape, "rows")) found.push_back(read_rows(of, rows));
    }
    return found;
  }

 private:
  GemmShape read_shape(const Json& json) const {
    const Json& dtype = fields_.at(json, "dtype");
    if (dtype != to_string(DType::f32) && dtype != to_string(DType::bf16))
      throw Error("{}: \"dtype\" is {}, expected \"f32\" or \"bf16\"", fields_.where(),
                  describe(dtype));
    return {
        .in = fields_.number(json, "in", 1, most_elements),
        .out = fields_.number(json, "out", 1, most_elements),
        .dtype = dtype == to_string(DType::f32) ? DType::f32 : DType::bf16,
        .threads = static_cast<int>(fields_.number(json, "threads", 1, ThreadPool::max_threads)),
        .groups = static_cast<int>(fields_.number(json, "groups", 1, ThreadPool::max_threads))};
  }

  TunedGemm read_rows(const GemmShape& shape, const Json& json) const {
    return {.shape = shape,
            .rows = fields_.number(json, "rows", 1, most_elements),
            .schedule = read_schedule(shape, json),
            .tuned_s = fields_.seconds(json, "tuned_s"),
            .own_s = fields_.seconds(json, "own_s"),
            .is_used = fields_.truth(json, "is_used")};
  }

  GemmSchedule read_schedule(const GemmShape& shape, const Json& json) const {
    const Json& tile = fields_.list(json, "tile");
    if (tile.size() != 2)
      throw Error("{}: \"tile\" is {}, expected rows and columns", fields_.where(), describe(tile));
    GemmSchedule schedule;
    schedule.strip.tile = {.rows = fields_.number_of(tile[0], "tile", 1, most_elements),
                           .columns = fields_.number_of(tile[1], "tile", 1, most_elements)};
    const std::span<const StripKernel> kernels = gemm_kernels(
        {.in = shape.in, .out = shape.out, .format = WeightFormat::plain(shape.dtype)});
    if (std::none_of(kernels.begin(), kernels.end(),
                     [&](const StripKernel& kernel) { return kernel.tile == schedule.strip.tile; }))
      throw Error("{}: a kernel for {} x {} numbers, which this CPU has not", fields_.where(),
                  schedule.strip.tile.rows, schedule.strip.tile.columns);
    schedule.strip.block_depth =
        fields_.number(json, "block_depth", strip_depth_step, most_elements);
    if (schedule.strip.block_depth % strip_depth_step != 0)
      throw Error("{}: \"block_depth\" is {}, expected a multiple of {}", fields_.where(),
                  schedule.strip.block_depth, strip_depth_step);
    if (json.contains("fetch_bytes"))
      schedule.strip.fetch_bytes = fields_.number(json, "fetch_bytes", 0, most_fetch_bytes);
    schedule.strips = fields_.number(json, "job_strips", 1, divide_up(shape.out, strip_columns));
    schedule.rows =
        fields_.number(json, "job_rows", 1, most_sums_of_a_job / (schedule.strips * strip_columns));
    return schedule;
  }

  static constexpr std::int64_t most_fetch_bytes = std::int64_t{1} << 20;
  JsonFields fields_;
  const Topology& topology_;
};

}  // namespace

GemmSchedules schedules_of(const std::vector<TunedGemm>& found) {
  std::map<GemmShape, std::map<std::int64_t, const TunedGemm*>> by_rows;
  for (const TunedGemm& tuned : found) by_rows[tuned.shape][tuned.rows] = &tuned;
  GemmSchedules schedules;
  for (const auto& [shape, tunings] : by_rows) {
    for (auto each = tunings.begin(); each != tunings.end(); ++each) {
      const TunedGemm& tuned = *each->second;
      GemmSchedule schedule = tuned.is_used ? tuned.schedule : GemmSchedule();
      // A job that had all rows has them up to the next number that was measured.
      const auto next = std::next(each);
      if (tuned.is_used && schedule.rows >= tuned.rows && next != tunings.end())
        schedule.rows = std::max(schedule.rows, next->first);
      schedules.add(shape, tuned.rows, schedule);
    }
  }
  return schedules;
}

Json as_json(const std::vector<TunedGemm>& found, const Topology& topology) {
  std::vector<GemmShape> shapes;
  Json list = Json::array();
  for (const TunedGemm& tuned : found) {
    const auto place = std::find(shapes.begin(), shapes.end(), tuned.shape);
    const auto index = static_cast<std::size_t>(place - shapes.begin());
    if (place == shapes.end()) {
      shapes.push_back(tuned.shape);
      list.push_back(as_json(tuned.shape));
      list.back()["rows"] = Json::array();
    }
    list[index]["rows"].push_back(as_json(tuned));
  }
  return {{"topology", topology.shape()}, {"shapes", std::move(list)}};
}

std::vector<TunedGemm> read_tuned_gemms(const Json& json, std::string_view where,
                                        const Topology& topology) {
  return Reader(where, topology).read(json);
}

std::filesystem::path gemm_schedule_path(DType dtype) {
  const std::filesystem::path folder = calibration_folder(calibration_setup(dtype, 1));
  return folder / "gemm-schedules" / (std::string(to_string(dtype)) + ".json");
}

std::vector<TunedGemm> kept_gemms(DType dtype, const Topology& topology) {
  const std::filesystem::path path = gemm_schedule_path(dtype);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const std::string name = path.string();
  try {
    return read_tuned_gemms(parse_json(read_file(name), name, DuplicateKeys::refuse), name,
                            topology);
  } catch (const Error& problem) {
    throw Error("{}; remove the file, or make it anew with sluice tune --kernels --force",
                problem.what());
  }
}

std::int64_t follow_kept_gemm_schedules(DType dtype, const CpuUse& cpu) {
  std::error_code error;
  if (!std::filesystem::exists(gemm_schedule_path(dtype), error)) return 0;
  const std::vector<TunedGemm> found = kept_gemms(dtype, Topology::of_this_machine());
  follow_gemm_schedules(schedules_of(found));
  const auto shares_so = [&](const GemmShape& shape, const CpuPhasePlan& phase) {
    return shape.threads == phase.num_cores() && shape.groups == std::ssize(phase.groups);
  };
  std::set<GemmShape> shapes;
  for (const TunedGemm& tuned : found) {
    const GemmShape& shape = tuned.shape;
    const bool is_of_run =
        cpu.plan ? shares_so(shape, cpu.plan->prefill) || shares_so(shape, cpu.plan->decode)
                 : shape.threads == cpu.num_threads() && shape.groups == 1;
    if (tuned.is_used && is_of_run) shapes.insert(shape);
  }
  return std::ssize(shapes);
}

}  // namespace sluice
