#include "perfmodels/calibration_transfer.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "perfmodels/measured_model.h"
#include "perfmodels/roofline.h"

namespace sluice {
namespace {

constexpr std::array layer_gemms = {Sublayer::qkv, Sublayer::out_proj, Sublayer::fc1,
                                    Sublayer::fc2};

/// Of a GEMM's weight.
double elements_of(const ModelDimensions& model, Sublayer sublayer) {
  const SublayerLoad load = sublayer == Sublayer::lm_head
                                ? lm_head_load(model, 1)
                                : sublayer_load(model, sublayer, BatchShape::decode(1, 1));
  return load.flops / 2;
}

/// The law of so many rows.
SizeLaw law_of(const MeasuredModel& costs, std::int64_t rows) {
  std::array<SizeLaw::Point, layer_gemms.size()> points;
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i] = {
        .elements = elements_of(costs.model(), layer_gemms[i]),
        .seconds = costs.compute_s(costs.device(), layer_gemms[i], BatchShape::decode(rows, 1))};
  }
  return SizeLaw::fit(points);
}

double attention_s(const Calibration& measured, const ModelDimensions& model,
                   const BatchShape& shape, const CalibrationSample& sample) {
  return resized_attention(sample.seconds[timed_index(Sublayer::attention)],
                           sublayer_load(measured.model, Sublayer::attention, shape),
                           sublayer_load(model, Sublayer::attention, shape), sample.rates);
}

}  // namespace

SizeLaw SizeLaw::fit(std::span<const Point> points) {
  // Of (fixed + per_element n - t) / t, squared and summed: two normal equations.
  double sum_1 = 0;
  double sum_n = 0;
  double sum_nn = 0;
  double right_1 = 0;
  double right_n = 0;
  for (const Point& point : points) {
    const double one = 1 / point.seconds;
    const double n = point.elements / point.seconds;
    sum_1 += one * one;
    sum_n += one * n;
    sum_nn += n * n;
    right_1 += one;
    right_n += n;
  }
  const double determinant = sum_1 * sum_nn - sum_n * sum_n;
  if (determinant > 1e-9 * sum_1 * sum_nn) {
    const SizeLaw law = {.fixed = (right_1 * sum_nn - right_n * sum_n) / determinant,
                         .per_element = (sum_1 * right_n - sum_n * right_1) / determinant};
    if (law.fixed >= 0 && law.per_element >= 0) return law;
    if (law.per_element < 0) return {.fixed = right_1 / sum_1, .per_element = 0};
  }
  return {.fixed = 0, .per_element = right_n / sum_nn};
}

bool transferable(const ModelDimensions& from, const ModelDimensions& to) {
  return from.weight_bits == to.weight_bits && from.head_bits == to.head_bits &&
         from.kv_element_bytes == to.kv_element_bytes && from.num_experts == 0 &&
         to.num_experts == 0;
}

double layer_distance(const ModelDimensions& a, const ModelDimensions& b) {
  const auto apart = [](double x, double y) { return std::abs(std::log(x / y)); };
  double distance = 0;
  for (const Sublayer sublayer : layer_gemms)
    distance += apart(elements_of(a, sublayer), elements_of(b, sublayer));
  return distance + apart(a.kv_size(), b.kv_size()) +
         apart(a.q_size() / a.kv_size(), b.q_size() / b.kv_size());
}

Calibration transferred(const Calibration& measured, const ModelDimensions& whole_model) {
  const ModelDimensions model = measured_form(whole_model);
  if (!transferable(measured.model, model))
    throw Error("a calibration of {}-bit weights says nothing of {}-bit ones, or of experts",
                measured.model.weight_bits, model.weight_bits);
  const MeasuredModel costs(measured, measured.model);
  Calibration result = measured;
  result.model = model;
  const double kv_bytes = kv_bytes_per_token(model) / kv_bytes_per_token(measured.model);
  for (CalibrationKvStore& sample : result.kv_stores) sample.seconds *= kv_bytes;
  for (CalibrationPoint& point : result.points) {
    const BatchShape& shape = point.batch.shape;
    const SizeLaw law = law_of(costs, shape.total_rows());
    const SizeLaw head_law = law_of(costs, point.batch.logit_rows);
    for (CalibrationSample& sample : point.samples) {
      for (const Sublayer sublayer : timed_sublayers) {
        double& seconds = sample.seconds[timed_index(sublayer)];
        if (seconds == 0) continue;
        if (sublayer == Sublayer::attention) {
          seconds = attention_s(measured, model, shape, sample);
        } else {
          const SizeLaw& own = sublayer == Sublayer::lm_head ? head_law : law;
          seconds *=
              own.at(elements_of(model, sublayer)) / own.at(elements_of(measured.model, sublayer));
        }
      }
    }
  }
  return result;
}

}  // namespace sluice
