#include "engine/measure/sweep.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/median.h"
#include "base/memory.h"
#include "base/units.h"
#include "codelets/attention/attention.h"
#include "codelets/kernels/linear.h"
#include "codelets/weights/weight_packing.h"
#include "engine/console/interrupt.h"
#include "engine/measure/in_turn.h"
#include "engine/measure/swept_experts.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Operation = SweepPoint::Operation;

constexpr std::int64_t min_gemv_context = 256;
/// Time that one repetition should take at least.
constexpr double repetition_s = 0.02;

/// Measures one operation at one size after the other.
class Sweep {
 public:
  Sweep(const ModelConfig& model, Runtime& runtime, const SweepOptions& options)
      : model_(model),
        shape_(decoder_shape(model, options.dtype)),
        pool_(runtime.setup_pool()),
        options_(options),
        // Its operands come from memory, whatever their size.
        probes_(runtime, options.dtype, std::numeric_limits<std::uint64_t>::max()) {}

  std::vector<SweepPoint> run() {
    plan();
    if (points_.empty()) {
      if (options_.operations == std::vector{Operation::experts} && model_.num_experts == 0)
        throw Error(
            "the model has no experts to measure; leave out --operations, or name gemm and gemv");
      throw Error("not enough memory for a sweep: {} available",
                  format_bytes(available_memory_bytes()));
    }
    for (SweepPoint& point : points_) {
      if (interrupt_flag()) throw Interrupted();
      if (options_.progress) {
        options_.progress(&point - points_.data(), static_cast<std::int64_t>(points_.size()),
                          point.stage);
      }
      switch (point.operation) {
        case Operation::gemm:
          measure_gemm(point);
          break;
        case Operation::gemv:
          measure_gemv(point);
          break;
        case Operation::experts:
          measure_experts(point);
          break;
      }
    }
    return std::move(points_);
  }

 private:
  void plan() {
    max_operand_bytes_ = static_cast<double>(available_memory_bytes()) / 2;
    if (asks_for(Operation::gemm)) {
      plan_gemm("qkv", shape_.hidden_size, shape_.qkv_size());
      plan_gemm("out_proj", shape_.q_size(), shape_.hidden_size);
      plan_gemm("fc1", shape_.hidden_size, shape_.ffn_size);
      plan_gemm("fc2", shape_.ffn_size, shape_.hidden_size);
    }
    if (asks_for(Operation::gemv)) {
      if (shape_.num_kv_heads != shape_.num_heads) plan_gemv("gqa", shape_.num_kv_heads);
      plan_gemv("mha", shape_.num_heads);
    }
    if (asks_for(Operation::experts)) plan_experts();
  }

  bool asks_for(Operation operation) const {
    const std::vector<Operation>& asked = options_.operations;
    return std::find(asked.begin(), asked.end(), operation) != asked.end();
  }

  void plan_experts() {
    if (model_.num_experts == 0) return;
    for (std::int64_t rows = 1; rows <= options_.max_rows; rows *= 2) {
      SweepPoint& point = points_.emplace_back();
      point.operation = Operation::experts;
      point.stage = "experts";
      point.in = shape_.hidden_size;
      point.out = shape_.ffn_size;
      point.rows = rows;
      point.num_experts = model_.num_experts;
      point.experts_per_token = model_.experts_per_token;
    }
  }

  void plan_gemm(const char* stage, std::int64_t in, std::int64_t out) {
    const double weights = static_cast<double>(in) * static_cast<double>(out);
    const double weight_bytes = weights * static_cast<double>(size_bytes(shape_.dtype));
    if (weight_bytes > max_operand_bytes_) return;
    for (std::int64_t rows = 1; rows <= options_.max_rows; rows *= 2) {
      SweepPoint& point = points_.emplace_back();
      point.operation = Operation::gemm;
      point.stage = stage;
      point.in = in;
      point.out = out;
      point.rows = rows;
      point.work = {stage, weight_bytes, 2 * weights * static_cast<double>(rows)};
    }
  }

  void plan_gemv(const char* stage, std::int64_t num_kv_heads) {
    for (std::int64_t batch = 1; batch <= options_.max_batch; batch *= 4) {
      for (std::int64_t context = min_gemv_context; context <= options_.max_context; context *= 2) {
        const double tokens = static_cast<double>(batch * context);
        const double kv_bytes = tokens * 2 * static_cast<double>(num_kv_heads * shape_.head_dim) *
                                static_cast<double>(size_bytes(shape_.dtype));
        if (kv_bytes > max_operand_bytes_) continue;
        SweepPoint& point = points_.emplace_back();
        point.operation = Operation::gemv;
        point.stage = stage;
        point.num_heads = shape_.num_heads;
        point.num_kv_heads = num_kv_heads;
        point.head_dim = shape_.head_dim;
        point.batch = batch;
        point.context = context;
        point.work = {stage, kv_bytes, 4 * tokens * static_cast<double>(shape_.q_size())};
      }
    }
  }

  void measure_gemm(SweepPoint& point) {
    const WeightType type{point.in, point.out, WeightFormat::plain(shape_.dtype)};
    const std::size_t weight_bytes = WeightPacking::size_bytes(type);
    const std::size_t num_weights = operands_in_turn(weight_bytes);
    reserve(weights_, num_weights * weight_bytes);
    const auto rows = static_cast<std::size_t>(point.rows);
    reserve(x_, rows * static_cast<std::size_t>(point.in) * size_bytes(shape_.dtype));
    y_.reserve(rows * static_cast<std::size_t>(point.out) * size_bytes(shape_.dtype));
    Turn turn(num_weights);
    measure(point, [&] {
      linear(pool_, {.weight = {type, weights_.data() + turn.next() * weight_bytes},
                     .dtype = shape_.dtype,
                     .x = x_.data(),
                     .rows = point.rows,
                     .dst = y_.reserve(0),
                     .dst_dtype = shape_.dtype});
    });
  }

  void measure_gemv(SweepPoint& point) {
    weights_ = Buffer();  // no longer needed; KV may take much
    AttentionArgs args;
    args.shape = shape_;
    args.shape.num_kv_heads = point.num_kv_heads;
    args.shape.sliding_window_tokens = 0;
    const std::int64_t pages_each = (point.context + page_tokens - 1) / page_tokens;
    const std::size_t set_bytes =
        args.shape.page_bytes() * static_cast<std::size_t>(pages_each * point.batch);
    const std::size_t num_sets = operands_in_turn(set_bytes);
    reserve(slab_, num_sets * set_bytes);
    std::vector<std::vector<std::int32_t>> batches;
    for (std::size_t set = 0; set < num_sets; ++set)
      batches.push_back(
          decode_batch(point, static_cast<std::int64_t>(set) * pages_each * point.batch));
    const auto q_elements = static_cast<std::size_t>(point.batch * shape_.q_size());
    reserve(x_, q_elements * size_bytes(shape_.dtype));
    const std::int64_t out_stride = activation_stride(shape_.q_size(), shape_.dtype);
    y_.reserve(static_cast<std::size_t>(point.batch * out_stride) * size_bytes(shape_.dtype));
    Turn turn(num_sets);
    const CpuContext cpu{pool_, workspace_};
    measure(point, [&] {
      attention_cpu(cpu, {.args = &args,
                          .batch = BatchView(batches[turn.next()].data()),
                          .q = x_.data(),
                          .slab = slab_.data(),
                          .out = y_.reserve(0)});
    });
  }

  void measure_experts(SweepPoint& point) {
    if (!experts_) {
      weights_ = Buffer();
      slab_ = Buffer();
      const PausedWorkers paused;
      experts_ = SweptExperts::of(model_, shape_.dtype, pool_);
    }
    experts_->prepare(point.rows);
    point.experts_touched = experts_->touched();
    const auto products = static_cast<double>(point.rows * point.experts_per_token);
    point.work = {point.stage,
                  point.experts_touched * static_cast<double>(experts_->expert_bytes()),
                  2 * products * experts_->expert_elements()};
    const CpuContext cpu{pool_, workspace_};
    measure(point, [&] { experts_->run(cpu); });
  }

  /// One new row a sequence, whose KV is there already, in consecutive pages.
  static std::vector<std::int32_t> decode_batch(const SweepPoint& point, std::int64_t page) {
    const std::int32_t token = 0;
    std::vector<std::int32_t> pages(
        static_cast<std::size_t>((point.context + page_tokens - 1) / page_tokens));
    BatchBuilder batch;
    for (std::int64_t sequence = 0; sequence < point.batch; ++sequence) {
      for (std::int32_t& each : pages) each = static_cast<std::int32_t>(page++);
      batch.add({.slot = static_cast<std::int32_t>(sequence),
                 .context = static_cast<std::int32_t>(point.context - 1),
                 .fresh = false,
                 .tokens = {&token, 1},
                 .pages = pages,
                 .sampling = {}},
                BatchBuilder::LogitRows::none);
    }
    return batch.build();
  }

  template <typename Call>
  void measure(SweepPoint& point, const Call& call) {
    const PausedWorkers paused;
    const auto seconds_of = [&](std::int64_t calls) {
      const Clock::time_point start = Clock::now();
      for (std::int64_t i = 0; i < calls; ++i) call();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    seconds_of(1);  // compiles kernels
    const auto calls =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(repetition_s / seconds_of(1)));
    std::vector<double> seconds;
    std::vector<double> shares;
    TimeLimit sum;
    MachineRates before = probes_.measure();
    for (int i = 0; i < options_.repeat; ++i) {
      seconds.push_back(seconds_of(calls) / static_cast<double>(calls));
      const MachineRates after = probes_.measure();
      point.rates = mean_rates(before, after);
      before = after;
      const TimeLimit limit = time_limit({&point.work, 1}, point.rates);
      shares.push_back(limit.total_s() / seconds.back());
      sum.bandwidth_s += limit.bandwidth_s;
      sum.compute_s += limit.compute_s;
    }
    point.seconds = median(seconds);
    point.limit_share = median(shares);
    point.bound = sum.bound();
  }

  /// At least so much memory, all of it random values.
  void reserve(Buffer& buffer, std::size_t bytes) {
    if (buffer.size() >= bytes) return;
    buffer = Buffer();  // freed before the larger one is taken
    buffer = Buffer(bytes);
    const PausedWorkers paused;
    fill_with_random_values(pool_, {buffer.data(), buffer.size()}, shape_.dtype);
  }

  const ModelConfig& model_;
  DecoderShape shape_;
  ThreadPool& pool_;
  const SweepOptions& options_;
  MachineProbes probes_;
  std::vector<SweepPoint> points_;
  double max_operand_bytes_ = 0;  ///< larger ones are left out
  Buffer weights_, slab_, x_;
  std::optional<SweptExperts> experts_;
  Workspace y_, workspace_;
};

using Rows = std::vector<std::vector<std::string>>;
using Json = nlohmann::ordered_json;

Rows gemm_rows(const std::vector<SweepPoint>& points) {
  Rows rows = {
      {"GEMM", "in", "out", "rows", "TFLOP/s", "GB/s of weights", "share of limit", "bound by"}};
  for (const SweepPoint& point : points) {
    if (point.operation != Operation::gemm) continue;
    rows.push_back({point.stage, fmt::format("{}", point.in), fmt::format("{}", point.out),
                    fmt::format("{}", point.rows),
                    fmt::format("{:.3f}", point.flop_per_s() * 1e-12),
                    fmt::format("{:.1f}", point.bytes_per_s() * 1e-9),
                    fmt::format("{:.2f}", point.limit_share), std::string(to_string(point.bound))});
  }
  return rows;
}

Rows gemv_rows(const std::vector<SweepPoint>& points) {
  Rows rows = {{"attention", "heads", "KV heads", "head size", "batch", "context", "GFLOP/s",
                "GB/s of KV", "share of limit", "bound by"}};
  for (const SweepPoint& point : points) {
    if (point.operation != Operation::gemv) continue;
    rows.push_back({point.stage, fmt::format("{}", point.num_heads),
                    fmt::format("{}", point.num_kv_heads), fmt::format("{}", point.head_dim),
                    fmt::format("{}", point.batch), fmt::format("{}", point.context),
                    fmt::format("{:.1f}", point.flop_per_s() * 1e-9),
                    fmt::format("{:.1f}", point.bytes_per_s() * 1e-9),
                    fmt::format("{:.2f}", point.limit_share), std::string(to_string(point.bound))});
  }
  return rows;
}

Rows experts_rows(const std::vector<SweepPoint>& points) {
  Rows rows = {{"experts", "in", "out", "rows", "touched", "us", "TFLOP/s", "GB/s of weights",
                "share of limit", "bound by"}};
  for (const SweepPoint& point : points) {
    if (point.operation != Operation::experts) continue;
    rows.push_back({fmt::format("{} of {}", point.experts_per_token, point.num_experts),
                    fmt::format("{}", point.in), fmt::format("{}", point.out),
                    fmt::format("{}", point.rows), fmt::format("{:.1f}", point.experts_touched),
                    fmt::format("{:.0f}", point.seconds * 1e6),
                    fmt::format("{:.3f}", point.flop_per_s() * 1e-12),
                    fmt::format("{:.1f}", point.bytes_per_s() * 1e-9),
                    fmt::format("{:.2f}", point.limit_share), std::string(to_string(point.bound))});
  }
  return rows;
}

/// 0 is "does not apply".
Json number_or_null(std::int64_t value) { return value == 0 ? Json() : Json(value); }

Json json_of(const std::string& model, DType dtype, int threads, const SweepPoint& point) {
  Json json;
  json["model"] = model;
  json["dtype"] = to_string(dtype);
  json["threads"] = threads;
  json["operation"] = to_string(point.operation);
  json["stage"] = point.stage;
  json["in"] = number_or_null(point.in);
  json["out"] = number_or_null(point.out);
  json["rows"] = number_or_null(point.rows);
  json["num_heads"] = number_or_null(point.num_heads);
  json["num_kv_heads"] = number_or_null(point.num_kv_heads);
  json["head_dim"] = number_or_null(point.head_dim);
  json["batch"] = number_or_null(point.batch);
  json["context"] = number_or_null(point.context);
  json["experts"] = number_or_null(point.num_experts);
  json["experts_per_token"] = number_or_null(point.experts_per_token);
  json["experts_touched"] = point.num_experts == 0 ? Json() : Json(point.experts_touched);
  json["seconds"] = point.seconds;
  json["flop_per_s"] = point.flop_per_s();
  json["bytes_per_s"] = point.bytes_per_s();
  json["limit_share"] = point.limit_share;
  json["limit"] = to_string(point.bound);
  json["read_bandwidth_bytes_per_s"] = point.rates.read_bandwidth_bytes_per_s;
  json["gemm_flop_per_s"] = point.rates.gemm_flop_per_s;
  return json;
}

template <typename Rate>
double median_rate(const std::vector<SweepPoint>& points, const Rate& rate) {
  std::vector<double> values;
  values.reserve(points.size());
  for (const SweepPoint& point : points) values.push_back(rate(point.rates));
  return median(values);
}

/// A series for each label, in the order of their first points.
template <typename Label, typename Point>
std::vector<PlotSeries> series_of(const std::vector<SweepPoint>& points, Operation operation,
                                  const Label& label, const Point& coordinates) {
  std::vector<PlotSeries> all;
  for (const SweepPoint& point : points) {
    if (point.operation != operation) continue;
    if (all.empty() || all.back().label != label(point)) {
      all.push_back({.label = label(point), .points = {}, .colour = all.size()});
    }
    all.back().points.push_back(coordinates(point));
  }
  return all;
}

}  // namespace

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::gemm:
      return "gemm";
    case Operation::gemv:
      return "gemv";
    case Operation::experts:
      return "experts";
  }
  return "?";
}

std::vector<Operation> all_sweep_operations() {
  return {Operation::gemm, Operation::gemv, Operation::experts};
}

std::vector<SweepPoint> sweep(const ModelConfig& model, Runtime& runtime,
                              const SweepOptions& options) {
  return Sweep(model, runtime, options).run();
}

std::string format_sweep(OutputFormat format, const std::string& model, DType dtype, int threads,
                         const std::vector<SweepPoint>& points) {
  if (format == OutputFormat::table || format == OutputFormat::markdown) {
    const auto print = format == OutputFormat::table ? format_table : format_markdown;
    std::string text;
    for (const Rows& rows : {gemm_rows(points), gemv_rows(points), experts_rows(points)}) {
      if (rows.size() == 1) continue;  // a title alone
      if (!text.empty()) text += "\n";
      text += print(rows);
    }
    return text;
  }
  Json objects = Json::array();
  for (const SweepPoint& point : points) objects.push_back(json_of(model, dtype, threads, point));
  return format_objects(format, objects);
}

std::vector<LinePlot> sweep_plots(const std::string& model, DType dtype,
                                  const std::vector<SweepPoint>& points) {
  LinePlot gemm = {.title = fmt::format("GEMM of {}'s weights, {}", model, to_string(dtype)),
                   .x_label = "rows (tokens)",
                   .y_label = "TFLOP/s",
                   .series = {},
                   .limit_label = "in caches (probe)"};
  gemm.series = series_of(
      points, Operation::gemm,
      [](const SweepPoint& p) { return fmt::format("{} {} → {}", p.stage, p.in, p.out); },
      [](const SweepPoint& p) {
        return std::pair(static_cast<double>(p.rows), p.flop_per_s() * 1e-12);
      });
  gemm.limit = median_rate(points, [](const MachineRates& r) { return r.gemm_flop_per_s; }) * 1e-12;
  LinePlot gemv = {
      .title = fmt::format("Decode attention with {}'s heads, {}", model, to_string(dtype)),
      .x_label = "context (tokens)",
      .y_label = "GB/s of KV",
      .series = {},
      .limit_label = "memory reads (probe)"};
  gemv.series = series_of(
      points, Operation::gemv,
      [](const SweepPoint& p) {
        return fmt::format("{} KV heads, batch {}", p.num_kv_heads, p.batch);
      },
      [](const SweepPoint& p) {
        return std::pair(static_cast<double>(p.context), p.bytes_per_s() * 1e-9);
      });
  // The second kind of heads repeats the first one's batches: the same colours, dashed.
  const std::string first_kind = gemv.series.empty() ? "" : gemv.series.front().label;
  std::size_t in_first = 0;
  for (PlotSeries& series : gemv.series) {
    if (series.label.substr(0, series.label.find(' ')) ==
        first_kind.substr(0, first_kind.find(' '))) {
      ++in_first;
    } else {
      series.colour -= in_first;
      series.style = LineStyle::dashed;
    }
  }
  gemv.limit =
      median_rate(points, [](const MachineRates& r) { return r.read_bandwidth_bytes_per_s; }) *
      1e-9;
  return {gemm, gemv};
}

}  // namespace sluice
