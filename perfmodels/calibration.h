#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perfmodels/cost_model.h"
#include "perfmodels/work.h"

namespace sluice {

/// What is timed on its own: LIA's sublayers, 2 and 3 as the one stage that they run as, and the LM
/// head.
inline constexpr std::array<Sublayer, 6> timed_sublayers = {Sublayer::qkv,      Sublayer::attention,
                                                            Sublayer::out_proj, Sublayer::fc1,
                                                            Sublayer::fc2,      Sublayer::lm_head};
/// A sublayer's place among them. Throws Error for one that is not timed.
std::size_t timed_index(Sublayer sublayer);
/// Seconds of each, of one layer; 0: not measured.
using TimedSeconds = std::array<double, timed_sublayers.size()>;

/// What a batch of a calibration costs beside its shape.
struct CalibrationBatch {
  BatchShape shape;
  std::int64_t logit_rows = 0;

  bool operator==(const CalibrationBatch&) const = default;
};

/// One repetition: seconds, and what the machine's memory and arithmetic gave right before and
/// after.
struct CalibrationSample {
  MachineRates rates;
  TimedSeconds seconds{};
};

struct CalibrationPoint {
  CalibrationBatch batch;
  std::vector<CalibrationSample> samples;
};

/// Seconds of a transfer between two tiers over its size.
struct CalibrationLink {
  struct Point {
    double bytes = 0;
    double seconds = 0;
  };
  Tier from = Tier::ddr;
  Tier to = Tier::cxl;
  std::vector<Point> points;  ///< bytes ascending
};

/// Storing the K and V of new tokens into one layer's slab, where that is at home.
struct CalibrationKvStore {
  Phase phase = Phase::prefill;
  std::int64_t rows = 0;  ///< of one prompt; decoding, one a sequence
  MachineRates rates;     ///< as CalibrationSample's
  double seconds = 0;
};

/// A device's kernels and the link to the accelerator's memory, each alone and both at once.
struct CalibrationInterference {
  Device device = Device::gpu;  ///< whose kernels
  Phase phase = Phase::decode;
  double kernels_alone_s = 0;  ///< of an iteration's layers
  double kernels_beside_s = 0;
  double link_alone_bytes_per_s = 0;
  double link_beside_bytes_per_s = 0;
};

/// The link to the accelerator's memory and the one back: each alone with one piece of data at a
/// time, and both at once with several.
struct CalibrationTwoWays {
  double there_alone_bytes_per_s = 0;
  double there_beside_bytes_per_s = 0;
  double back_alone_bytes_per_s = 0;
  double back_beside_bytes_per_s = 0;
};

/// What a calibration holds for, beside the model's shape: the same kernels on the same processors.
struct CalibrationSetup {
  std::string cpu;
  std::int64_t cores = 0;
  std::int64_t threads = 0;
  std::string isa;    ///< of oneDNN
  std::string dtype;  ///< of GEMM operands and KV
  /// The accelerator that computes, and whose links are measured; empty: the CPU.
  std::string device;
  /// How the threads' cores were cut into groups, in words; empty: one group of all in both phases.
  std::string cpu_plan = {};

  bool operator==(const CalibrationSetup&) const = default;
};

/// What `sluice calibrate` measures, as its file holds it (docs/reference/calibration.md): all
/// repetitions as they were seen, so that what is made of them can change without measuring again.
struct Calibration {
  CalibrationSetup setup;
  ModelDimensions model;  ///< costs are a layer's; num_layers is 0 in older files
  std::uint64_t ddr_bytes = 0;
  std::int64_t repetitions = 0;                       ///< that each point is to have
  std::vector<double> task_overhead_us;               ///< one a repetition; of the device
  std::vector<CalibrationKvStore> kv_stores;          ///< all repetitions; none in older files
  std::vector<CalibrationLink> links;                 ///< all repetitions; an accelerator's only
  std::vector<CalibrationInterference> interference;  ///< all repetitions; an accelerator's only
  std::vector<CalibrationTwoWays> two_ways;           ///< the same; none in older files
  std::vector<CalibrationPoint> points;

  Device measured_device() const { return setup.device.empty() ? Device::cpu : Device::gpu; }
  /// Every point was measured, the overhead in each repetition, and an accelerator has its links
  /// and what they and kernels do to each other.
  bool complete() const;
  /// Null when it was never measured.
  const CalibrationPoint* find(const CalibrationBatch& batch) const;
  CalibrationPoint& at(const CalibrationBatch& batch);  ///< added when missing
};

/// The same layers: everything that a layer's time depends on. Their number may differ.
bool same_layers(const ModelDimensions& a, const ModelDimensions& b);

std::string format_calibration(const Calibration& calibration);
/// Throws Error in one line: no JSON, a wrong or unknown field with its path, what was found and
/// what was expected. `where` names the file in messages.
Calibration parse_calibration(std::string_view json_text, std::string_view where);

}  // namespace sluice
