#include "perfmodels/measured_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/median.h"
#include "perfmodels/attention_jobs.h"

namespace sluice {
namespace {

constexpr double micro = 1e-6;
/// Rates that lie within a fifth of each other are alike. (Of 0.1 to 0.5, that foresaw a second
/// calibration of one machine best: docs/records/calibration-accuracy.md.)
constexpr double alike = 0.2;

double straight(double x, double x0, double y0, double x1, double y1) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

/// Values at the buckets of a map around x: straight between two, over what `scale` makes of x and
/// theirs; the nearest one outside.
template <typename Map, typename Value, typename Scale>
double between(const Map& buckets, double x, const Value& value, const Scale& scale) {
  const auto above = std::find_if(buckets.begin(), buckets.end(), [&](const auto& bucket) {
    return static_cast<double>(bucket.first) >= x;
  });
  if (above == buckets.begin()) return value(*above);
  const auto& below = *std::prev(above);
  if (above == buckets.end()) return value(below);
  const double low = scale(static_cast<double>(below.first));
  const double high = scale(static_cast<double>(above->first));
  if (!(low < high)) return value(*above);
  return straight(scale(x), low, value(below), high, value(*above));
}
template <typename Map, typename Value>
double between(const Map& buckets, double x, const Value& value) {
  return between(buckets, x, value, [](double same) { return same; });
}

/// The same in log-log: a power of x between two.
template <typename Map, typename Value>
double power_between(const Map& buckets, double x, const Value& value) {
  return std::exp(between(
      buckets, x, [&](const auto& bucket) { return std::log(value(bucket)); },
      [](double same) { return std::log(same); }));
}

/// Whether x lies between the first and the last bucket.
template <typename Map>
bool spans(const Map& buckets, double x) {
  return x >= static_cast<double>(buckets.begin()->first) &&
         x <= static_cast<double>(buckets.rbegin()->first);
}

/// Attention reads whole KV pages when it decodes.
double pages_of(std::int64_t context) {
  const std::int64_t pages = (std::max<std::int64_t>(context, 1) - 1) / page_tokens + 1;
  return static_cast<double>(pages);
}

double prior_tokens(const BatchShape& shape) {
  return static_cast<double>(std::max<std::int64_t>(0, shape.context - shape.rows));
}

double last_rows(const std::map<std::int64_t, SecondsCurve>& by_rows) {
  return static_cast<double>(by_rows.rbegin()->first);
}

SublayerLoad load_of(const ModelDimensions& model, Sublayer sublayer,
                     const CalibrationBatch& batch) {
  return sublayer == Sublayer::lm_head ? lm_head_load(model, batch.logit_rows)
                                       : sublayer_load(model, sublayer, batch.shape);
}

/// How far apart, in standard deviations of what is alike; squared.
double distance2(const MachineRates& a, const MachineRates& b) {
  const double bandwidth = std::log(a.read_bandwidth_bytes_per_s / b.read_bandwidth_bytes_per_s);
  const double gemm = std::log(a.gemm_flop_per_s / b.gemm_flop_per_s);
  return (bandwidth * bandwidth + gemm * gemm) / (alike * alike);
}

/// Repetitions of one measurement, each at rates of its own.
class Samples {
 public:
  void add(double seconds, const SublayerLoad& load, const MachineRates& rates) {
    samples_.push_back({seconds, load, rates});
  }
  bool empty() const { return samples_.empty(); }

  /// At least one.
  double seconds_at(const MachineRates& now) const {
    double nearest2 = std::numeric_limits<double>::infinity();
    for (const Sample& sample : samples_)
      nearest2 = std::min(nearest2, distance2(sample.rates, now));
    std::vector<WeightedValue> values;
    values.reserve(samples_.size());
    for (const Sample& sample : samples_) {
      constexpr double least = 1e-6;
      values.push_back(
          {.value = carried_over(sample.seconds, sample.load, sample.rates, now),
           .weight = std::max(least, std::exp((nearest2 - distance2(sample.rates, now)) / 2))});
    }
    return weighted_median(std::move(values));
  }

 private:
  struct Sample {
    double seconds;
    SublayerLoad load;
    MachineRates rates;
  };
  std::vector<Sample> samples_;
};

MachineRates median_rates(const Calibration& calibration) {
  std::vector<double> bandwidth;
  std::vector<double> gemm;
  for (const CalibrationPoint& point : calibration.points) {
    for (const CalibrationSample& sample : point.samples) {
      bandwidth.push_back(sample.rates.read_bandwidth_bytes_per_s);
      gemm.push_back(sample.rates.gemm_flop_per_s);
    }
  }
  if (bandwidth.empty()) throw Error("the calibration has no measurement");
  return {.read_bandwidth_bytes_per_s = median(std::move(bandwidth)),
          .gemm_flop_per_s = median(std::move(gemm))};
}

}  // namespace

void SecondsCurve::add(double x, double seconds) {
  if (!(x > 0) || !(seconds > 0) || (!x_.empty() && x <= x_.back()))
    throw Error("a measured curve has {} s at {}, expected values above 0 in ascending order",
                seconds, x);
  x_.push_back(x);
  seconds_.push_back(seconds);
}

double SecondsCurve::at(double x) const {
  if (!(x > x_.front())) return seconds_.front();
  if (x >= x_.back()) return seconds_.back() * x / x_.back();
  const auto i = static_cast<std::size_t>(std::upper_bound(x_.begin(), x_.end(), x) - x_.begin());
  return straight(x, x_[i - 1], seconds_[i - 1], x_[i], seconds_[i]);
}

double SecondsCurve::straight_on_at(double x) const {
  const std::size_t last = x_.size() - 1;
  if (x <= x_[last] || last == 0 || seconds_[last] <= seconds_[last - 1]) return at(x);
  return straight(x, x_[last - 1], seconds_[last - 1], x_[last], seconds_[last]);
}

/// From a calibration's samples to curves.
struct MeasuredModel::Reduction {
  const Calibration& calibration;
  MeasuredModel& into;

  void run() {
    for (std::size_t i = 0; i < timed_sublayers.size(); ++i) {
      if (timed_sublayers[i] != Sublayer::attention) fill_linear(i);
    }
    fill_decode();
    fill_prefill();
    fill_kv_stores();
    fill_links();
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      for (const Device device : {Device::gpu, Device::cpu}) fill_interference(phase, device);
    }
    fill_two_ways();
    if (calibration.task_overhead_us.empty()) throw Error("the task overhead was not measured");
    into.task_overhead_s_ = micro * median(calibration.task_overhead_us);
  }

  void fill_kv_stores() const {
    std::array<std::map<std::int64_t, Samples>, 2> samples;  ///< by phase, rows
    for (const CalibrationKvStore& sample : calibration.kv_stores) {
      const SublayerLoad load =
          sublayer_load(calibration.model, Sublayer::kv_store, BatchShape::prefill(1, sample.rows));
      samples.at(static_cast<std::size_t>(sample.phase))[sample.rows].add(sample.seconds, load,
                                                                          sample.rates);
    }
    for (std::size_t phase = 0; phase < samples.size(); ++phase) {
      for (const auto& [rows, each] : samples[phase])
        into.kv_stores_[phase].add(static_cast<double>(rows), each.seconds_at(into.rates_));
    }
  }

  void fill_links() const {
    using LargestFirst = std::map<double, std::vector<double>, std::greater<>>;  ///< by bytes
    std::map<std::array<Tier, 2>, LargestFirst> seconds;
    for (const CalibrationLink& link : calibration.links) {
      for (const CalibrationLink::Point& point : link.points)
        seconds[{link.from, link.to}][point.bytes].push_back(point.seconds);
    }
    for (const auto& [ends, by_bytes] : seconds) {
      // A piece that took longer than a larger one was held up: moving that one moves as much.
      std::map<double, double> least_s;
      for (const auto& [bytes, each_s] : by_bytes) {
        const double here_s = median(each_s);
        least_s[bytes] = least_s.empty() ? here_s : std::min(here_s, least_s.begin()->second);
      }
      SecondsCurve& curve = into.links_[ends];
      for (const auto& [bytes, each_s] : least_s) curve.add(bytes, each_s);
    }
  }

  void fill_interference(Phase phase, Device device) const {
    std::vector<double> kernels;
    std::vector<double> link;
    for (const CalibrationInterference& sample : calibration.interference) {
      if (sample.phase != phase || sample.device != device) continue;
      kernels.push_back(sample.kernels_beside_s / sample.kernels_alone_s);
      link.push_back(sample.link_alone_bytes_per_s / sample.link_beside_bytes_per_s);
    }
    if (kernels.empty()) return;
    Interference& of = into.interference_.at(static_cast<std::size_t>(phase));
    of.kernels.at(static_cast<std::size_t>(device)) = std::max(1.0, median(std::move(kernels)));
    of.link.at(static_cast<std::size_t>(device)) = std::max(1.0, median(std::move(link)));
  }

  void fill_two_ways() const {
    std::vector<double> slowdowns;
    for (const CalibrationTwoWays& sample : calibration.two_ways) {
      slowdowns.push_back((sample.there_alone_bytes_per_s + sample.back_alone_bytes_per_s) /
                          (sample.there_beside_bytes_per_s + sample.back_beside_bytes_per_s));
    }
    if (!slowdowns.empty()) into.two_way_slowdown_ = std::max(1.0, median(std::move(slowdowns)));
  }

  /// Of a sublayer, where it was measured.
  void collect(const CalibrationPoint& point, std::size_t i, Samples& samples) const {
    const SublayerLoad load = load_of(calibration.model, timed_sublayers[i], point.batch);
    for (const CalibrationSample& sample : point.samples) {
      if (sample.seconds[i] > 0) samples.add(sample.seconds[i], load, sample.rates);
    }
  }

  double attention_s(const CalibrationPoint& point) const {
    Samples samples;
    collect(point, timed_index(Sublayer::attention), samples);
    if (samples.empty()) throw Error("a point has no attention");
    return samples.seconds_at(into.rates_);
  }

  void fill_linear(std::size_t i) const {
    const bool head = timed_sublayers[i] == Sublayer::lm_head;
    std::map<std::int64_t, Samples> by_rows;
    for (const CalibrationPoint& point : calibration.points) {
      const std::int64_t rows = head ? point.batch.logit_rows : point.batch.shape.total_rows();
      if (rows > 0) collect(point, i, by_rows[rows]);
    }
    for (const auto& [rows, samples] : by_rows) {
      if (!samples.empty())
        into.linear_[i].add(static_cast<double>(rows), samples.seconds_at(into.rates_));
    }
    if (into.linear_[i].empty()) throw Error("{} was not measured", to_string(timed_sublayers[i]));
  }

  std::vector<const CalibrationPoint*> points_of(Phase phase) const {
    std::vector<const CalibrationPoint*> points;
    for (const CalibrationPoint& point : calibration.points) {
      if (point.batch.shape.phase == phase && !point.samples.empty()) points.push_back(&point);
    }
    std::sort(points.begin(), points.end(), [](const auto* a, const auto* b) {
      return a->batch.shape.context < b->batch.shape.context;
    });
    if (points.empty()) throw Error("{} was not measured", to_string(phase));
    return points;
  }

  /// Those of batches and rows with several contexts, if there are any: what was measured with one
  /// only, for the linear sublayers, says nothing of attention over others.
  std::vector<const CalibrationPoint*> attention_points(Phase phase) const {
    std::vector<const CalibrationPoint*> points = points_of(phase);
    const auto rows_of = [](const CalibrationPoint* point) {
      return std::pair(point->batch.shape.batch, point->batch.shape.rows);
    };
    std::map<std::pair<std::int64_t, std::int64_t>, int> contexts;
    int most = 0;
    for (const CalibrationPoint* point : points) most = std::max(most, ++contexts[rows_of(point)]);
    if (most > 1)
      std::erase_if(points, [&](const auto* point) { return contexts[rows_of(point)] == 1; });
    return points;
  }

  void fill_decode() const {
    std::map<std::int64_t, std::map<double, Samples>> samples;  ///< by batch, pages
    for (const CalibrationPoint* point : attention_points(Phase::decode)) {
      const BatchShape& shape = point->batch.shape;
      collect(*point, timed_index(Sublayer::attention),
              samples[shape.batch][pages_of(shape.context)]);
    }
    for (const auto& [batch, by_pages] : samples) {
      for (const auto& [pages, each] : by_pages) {
        if (each.empty()) throw Error("a point has no attention");
        into.decode_[batch].add(pages, each.seconds_at(into.rates_));
      }
    }
  }

  /// A sequence with one new row is a decoding one.
  void fill_prefill() const {
    for (const CalibrationPoint* point : points_of(Phase::prefill)) {
      const BatchShape& shape = point->batch.shape;
      if (prior_tokens(shape) > 0) continue;
      into.first_prompts_[shape.batch][shape.rows] =
          attention_s(*point) / static_cast<double>(shape.total_rows());
    }
    for (const CalibrationPoint* point : attention_points(Phase::prefill)) {
      const BatchShape& shape = point->batch.shape;
      const auto rows = static_cast<double>(shape.total_rows());
      into.prefill_[shape.batch][shape.rows].add(prior_tokens(shape) + 1,
                                                 attention_s(*point) / rows);
    }
    for (const CalibrationPoint* point : attention_points(Phase::decode)) {
      const BatchShape& shape = point->batch.shape;
      const auto found = into.prefill_.find(shape.batch);
      if (found == into.prefill_.end()) continue;
      found->second[1].add(static_cast<double>(shape.context),
                           attention_s(*point) / static_cast<double>(shape.batch));
    }
  }
};

MeasuredModel::MeasuredModel(const Calibration& calibration, const ModelDimensions& model)
    : MeasuredModel(std::make_shared<const Calibration>(calibration), model,
                    median_rates(calibration)) {}

MeasuredModel::MeasuredModel(std::shared_ptr<const Calibration> calibration,
                             const ModelDimensions& model, const MachineRates& rates)
    : calibration_(std::move(calibration)),
      model_(model),
      device_(calibration_->measured_device()),
      ddr_bytes_(calibration_->ddr_bytes),
      rates_(rates) {
  if (!same_layers(calibration_->model, model))
    throw Error("the calibration is of a model with other layers");
  Reduction{*calibration_, *this}.run();
}

MeasuredModel MeasuredModel::at_rates(const MachineRates& rates) const {
  return {calibration_, model_, rates};
}

double MeasuredModel::compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                Tier /*operand*/) const {
  if (device != device_) {
    throw Error("the calibration is of the {}, expected no work for the {}",
                device_ == Device::cpu ? "CPU" : "GPU", device == Device::cpu ? "CPU" : "GPU");
  }
  switch (properties_of(sublayer).work) {
    case WorkKind::product:
      return linear_s(sublayer, static_cast<double>(shape.total_rows()));
    case WorkKind::attention:
      return sublayer == Sublayer::attention ? attention_s(shape) : attention_s(shape) / 2;
    case WorkKind::storing:
      return kv_store_s(shape);
    case WorkKind::other:
      break;
  }
  throw Error("sublayer {} has no cost of its own, expected one of a layer's", to_string(sublayer));
}

double MeasuredModel::linear_s(Sublayer sublayer, double rows) const {
  return linear_[timed_index(sublayer)].at(rows);
}

double MeasuredModel::kv_store_s(const BatchShape& shape) const {
  const SecondsCurve& curve = kv_stores_[static_cast<std::size_t>(shape.phase)];
  if (!curve.empty()) return curve.at(static_cast<double>(shape.total_rows()));
  return sublayer_load(model_, Sublayer::kv_store, shape).seconds(rates_);
}

double MeasuredModel::lm_head_s(Device /*device*/, std::int64_t logit_rows) const {
  if (logit_rows <= 0) return 0;
  return linear_s(Sublayer::lm_head, static_cast<double>(logit_rows));
}

/// Where only some layers have a window, all was measured without: a row that decodes costs what a
/// shorter context does, and a prompt what its keys are of all.
double MeasuredModel::attention_s(const BatchShape& shape) const {
  const bool decodes = shape.phase == Phase::decode;
  const double measured_s = decodes ? decode_attention_s(shape) : prefill_attention_s(shape);
  const std::int64_t window = model_.sliding_window_tokens;
  const double full = model_.full_attention_share();
  if (window == measured_window() || full == 1) return measured_s;
  BatchShape seen = shape;
  seen.context = std::min(shape.context, window);
  const auto rows = static_cast<double>(shape.rows);
  const double prior = prior_tokens(shape);
  const double windowed_s =
      decodes ? decode_attention_s(seen)
              : measured_s * visible_keys(rows, prior, window) / visible_keys(rows, prior, 0);
  return full * measured_s + (1 - full) * windowed_s;
}

double MeasuredModel::decode_attention_s(const BatchShape& shape) const {
  const std::int64_t window = measured_window();
  const double pages = pages_of(window > 0 ? std::min(shape.context, window) : shape.context);
  const auto batch = static_cast<double>(shape.batch);
  const auto most = static_cast<double>(decode_.rbegin()->first);
  const double seconds = between(
      decode_, batch, [&](const auto& bucket) { return bucket.second.at(pages); },
      [&](double sequences) { return even_sequences(sequences, pages); });
  return seconds * std::max(1.0, batch / most);
}

double MeasuredModel::even_sequences(double sequences, double pages) const {
  const CalibrationSetup& setup = calibration_->setup;
  if (device_ == Device::gpu || pages > pages_of(AttentionJobs::whole_tokens)) return sequences;
  const double page_bytes = page_tokens * kv_bytes_per_token(model_);
  const auto jobs = static_cast<double>(
      AttentionJobs::of_chunk(model_.num_kv_heads, static_cast<std::int64_t>(page_bytes)));
  const auto threads = static_cast<double>(setup.threads);
  return std::ceil(sequences * jobs / threads) * threads / jobs;
}

double MeasuredModel::prefill_attention_s(const BatchShape& shape) const {
  const auto rows = static_cast<double>(shape.rows);
  const double prior = prior_tokens(shape);
  const auto row_s = [&](const auto& bucket) {
    const double most = last_rows(bucket.second);
    if (rows <= most) return prefill_row_s(bucket.first, rows, prior);
    // Fewer sequences were measured with more rows each: it grows as theirs does.
    for (const auto& [batch, measured_further] : prefill_) {
      if (batch < bucket.first && last_rows(measured_further) > most) {
        return prefill_row_s(bucket.first, most, prior) * prefill_row_s(batch, rows, prior) /
               prefill_row_s(batch, most, prior);
      }
    }
    return prefill_row_s(bucket.first, rows, prior);
  };
  const auto batch = static_cast<double>(shape.batch);
  const auto most = static_cast<double>(prefill_.rbegin()->first);
  const double row_of_each_s = between(prefill_, batch, [&](const auto& bucket) {
    return static_cast<double>(bucket.first) * row_s(bucket);
  });
  return rows * row_of_each_s * std::max(1.0, batch / most);
}

double MeasuredModel::prefill_row_s(std::int64_t batch, double rows, double prior) const {
  const ByBatch& by_rows = prefill_.at(batch);
  if (rows > last_rows(by_rows)) return further_row_s(by_rows, rows, prior);
  const auto row_s = [&](double before) {
    return power_between(by_rows, rows,
                         [&](const auto& bucket) { return measured_row_s(bucket, before); });
  };
  const auto first = first_prompts_.find(batch);
  if (first == first_prompts_.end() || !spans(first->second, rows)) return row_s(prior);
  // Without tokens before, more numbers of rows were measured. What a row takes less there, or
  // more, has to do with the rows, and not with tokens before.
  const double first_s =
      power_between(first->second, rows, [](const auto& bucket) { return bucket.second; });
  if (prior == 0) return first_s;
  const double here_s = row_s(prior);
  const double guessed_s = row_s(0);
  return here_s > guessed_s ? here_s + first_s - guessed_s : here_s * first_s / guessed_s;
}

/// Straight on over the keys that a row sees, as attention is parts that grow with them and parts
/// that do not; in proportion where the last two buckets do not tell those apart.
double MeasuredModel::further_row_s(const ByBatch& by_rows, double rows, double prior) const {
  const auto last = std::prev(by_rows.end());
  const double most_keys = keys_of_row(last_rows(by_rows), prior);
  const double most_s = measured_row_s(*last, prior);
  if (last != by_rows.begin()) {
    const auto& before = *std::prev(last);
    const double fewer_keys = keys_of_row(static_cast<double>(before.first), prior);
    const double fewer_s = measured_row_s(before, prior);
    if (fewer_s < most_s && fewer_keys < most_keys)
      return straight(keys_of_row(rows, prior), fewer_keys, fewer_s, most_keys, most_s);
  }
  return most_s * keys_of_row(rows, prior) / most_keys;
}

double MeasuredModel::measured_row_s(const ByBatch::value_type& bucket, double prior) const {
  const auto& [rows, curve] = bucket;
  const double last = curve.last_x() - 1;
  if (prior <= last || measured_window() > 0) return curve.at(std::min(prior, last) + 1);
  if (curve.size() > 1) return curve.straight_on_at(prior + 1);
  const auto new_rows = static_cast<double>(rows);
  return curve.at(last + 1) * keys_of_row(new_rows, prior) / keys_of_row(new_rows, last);
}

double MeasuredModel::keys_of_row(double rows, double prior) const {
  return visible_keys(rows, prior, measured_window()) / rows;
}

double MeasuredModel::transfer_s(Tier from, Tier to, double bytes) const {
  if (from == to || bytes <= 0) return 0;
  const auto found = links_.find({from, to});
  if (found != links_.end()) return found->second.at(bytes);
  throw Error("the calibration has no link from {} to {}", to_string(from), to_string(to));
}

double MeasuredModel::task_overhead_s(Device /*device*/, int /*num_sublayers*/) const {
  return task_overhead_s_;
}

}  // namespace sluice
