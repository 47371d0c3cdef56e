#include "engine/commands/tune_kernels.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/median.h"
#include "base/topology.h"
#include "codelets/kernels/probe.h"
#include "codelets/weights/plain.h"
#include "engine/console/progress.h"
#include "engine/console/tables.h"
#include "engine/machine/gemm_schedule_store.h"
#include "engine/measure/gemm_bench.h"
#include "engine/measure/gemm_search.h"
#include "graphs/model_weights.h"
#include "models/layer_schema.h"

namespace sluice {
namespace {

/// How threads share products; prefill and decode may do so alike.
struct SharingThreads {
  int threads = 1;
  int groups = 1;
  ThreadPool::Cut cut;
};

std::vector<SharingThreads> ways_to_share(const CpuUse& cpu) {
  ThreadPool::Group all;
  for (int thread = 0; thread < cpu.num_threads(); ++thread) all.threads.push_back(thread);
  const PhaseGroups phases = cpu.groups().value_or(PhaseGroups{.prefill = {all}, .decode = {all}});
  std::vector<SharingThreads> ways;
  for (const ThreadPool::Cut& cut : {phases.prefill, phases.decode}) {
    SharingThreads way{.threads = 0, .groups = static_cast<int>(cut.size()), .cut = cut};
    for (const ThreadPool::Group& group : cut)
      way.threads += static_cast<int>(group.threads.size());
    const bool is_new = std::none_of(ways.begin(), ways.end(), [&](const SharingThreads& other) {
      return other.threads == way.threads && other.groups == way.groups;
    });
    if (is_new) ways.push_back(way);
  }
  return ways;
}

/// The model's weights in f32 or bf16 that our own kernels multiply with, each shape once, the
/// smallest first.
std::vector<WeightType> tunable_weights(const KernelTuningOrder& order) {
  const PackedWeights packed(order.config, order.dtype);
  std::vector<WeightType> all = {packed.head};
  for (std::int64_t layer = 0; layer < order.config.num_layers; ++layer) {
    for (const LayerMatrix& matrix : layer_matrices(order.config, layer)) {
      if (!matrix.of_each_expert)  // many of these are multiplied at once
        all.push_back(packed.layers[static_cast<std::size_t>(layer)][matrix.weight]);
    }
  }
  std::vector<WeightType> found;
  for (const WeightType& type : all) {
    const bool is_tunable = type.format.is_plain() && !gemm_kernels(type).empty();
    if (is_tunable && std::find(found.begin(), found.end(), type) == found.end())
      found.push_back(type);
  }
  if (found.empty())
    throw Error(
        "--kernels: {} in {} has no weights that kernels with schedules multiply; these are for "
        "f32 and bf16, where oneDNN does not compute them",
        order.model, to_string(order.dtype));
  std::sort(found.begin(), found.end(),
            [](const WeightType& a, const WeightType& b) { return a.in * a.out < b.in * b.out; });
  return found;
}

/// What runs afterwards are compared by.
struct GainOfGemm {
  GemmShape shape;
  std::int64_t rows = 1;
  double own_s = 0;    ///< as the kernels choose themselves
  double tuned_s = 0;  ///< by what was found
  double limit_s = 0;  ///< by what these threads read of memory, and multiply in caches
  std::optional<double> onednn_s;
};

class KernelTuner {
 public:
  explicit KernelTuner(const KernelTuningOrder& order)
      : order_(order),
        topology_(Topology::of_this_machine()),
        file_(gemm_schedule_path(order.dtype).string()),
        model_bytes_(packed_weight_bytes(order.config, order.dtype)),
        weights_(tunable_weights(order)),
        ways_(ways_to_share(order.cpu)),
        rows_(searched_rows(order.most_rows)) {}

  void run() {
    std::exception_ptr failure;
    std::thread tuner([&] {  // who calls a pool is bound for good
      try {
        tune();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    tuner.join();
    if (failure) std::rethrow_exception(failure);
    if (!order_.dry_run) {
      for (GainOfGemm& gain : gains_)
        gain.onednn_s = onednn_seconds(gain.shape, model_bytes_, gain.rows, compared_rounds);
    }
    print();
  }

 private:
  static constexpr int compared_rounds = 9;
  static constexpr std::int64_t most_compared_rows = 512;

  void tune() {
    if (order_.dry_run) return;
    read();
    std::vector<ThreadPool::Cut> cuts;
    cuts.reserve(ways_.size());
    for (const SharingThreads& way : ways_) cuts.push_back(way.cut);
    ThreadPool pool(order_.cpu.cores, {}, cuts);
    pool.enter();
    ProgressBar bar("tuning kernels");
    const auto total = static_cast<double>(ways_.size() * weights_.size());
    double done = 0;
    for (std::size_t way = 0; way < ways_.size(); ++way) {
      pool.follow(static_cast<int>(way));
      Probes probes{.reading = ReadProbe(pool, model_bytes_),
                    .multiplying = GemmProbe(pool, order_.dtype)};
      for (const WeightType& type : weights_) {
        const GemmShape shape{.in = type.in,
                              .out = type.out,
                              .dtype = type.format.dtype(),
                              .threads = ways_[way].threads,
                              .groups = ways_[way].groups};
        GemmBench bench(pool, shape, model_bytes_,
                        {.parts = order_.cpu.node_shares(), .nodes = nodes()});
        search(type, shape, bench, [&](double part) {
          bar.update(done + part, total, fmt::format("{} x {}", type.out, type.in));
        });
        compare(shape, bench, probes);
        ++done;
      }
    }
  }

  /// Those that the cores are near to, where there are several.
  std::vector<int> nodes() const {
    std::set<int> nodes;
    for (const int core : order_.cpu.cores) nodes.insert(topology_.numa_node_of(core));
    if (nodes.size() < 2) return {};
    return {nodes.begin(), nodes.end()};
  }

  /// What earlier calls have kept.
  void read() {
    try {
      found_ = kept_gemms(order_.dtype, topology_);
    } catch (const Error&) {
      if (!order_.force) throw;  // what it says is to be done now
    }
    if (!order_.force) return;
    std::erase_if(found_, [&](const TunedGemm& tuned) { return is_ordered(tuned.shape); });
  }

  bool is_ordered(const GemmShape& shape) const {
    const bool has_weight = std::any_of(
        weights_.begin(), weights_.end(),
        [&](const WeightType& type) { return type.in == shape.in && type.out == shape.out; });
    return has_weight && std::any_of(ways_.begin(), ways_.end(), [&](const SharingThreads& way) {
             return way.threads == shape.threads && way.groups == shape.groups;
           });
  }

  template <typename Progress>
  void search(const WeightType& type, const GemmShape& shape, GemmBench& bench,
              const Progress& progress) {
    GemmSearch search(
        shape, gemm_kernels(type),
        {.own = [&](std::int64_t rows) { return own_gemm_schedule(type, rows, shape.threads); },
         .measure = [&](std::int64_t rows, std::span<const GemmSchedule> schedules,
                        int rounds) { return bench.measure(rows, schedules, rounds); }});
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      progress(static_cast<double>(i) / static_cast<double>(rows_.size()));
      const auto known = std::find_if(found_.begin(), found_.end(), [&](const TunedGemm& tuned) {
        return tuned.shape == shape && tuned.rows == rows_[i];
      });
      if (known != found_.end()) {
        search.take(*known);
        continue;
      }
      found_.push_back(search.find(rows_[i]));
      ++num_searched_;
      save();
    }
  }

  /// Of shapes that this call does not tune.
  std::vector<TunedGemm> kept_by_others() const {
    std::vector<TunedGemm> kept;
    try {
      kept = kept_gemms(order_.dtype, topology_);
    } catch (const Error&) {  // --force writes over it
    }
    std::erase_if(kept, [&](const TunedGemm& tuned) { return is_ordered(tuned.shape); });
    return kept;
  }

  void save() const {
    if (const std::error_code error =
            make_private_folders(std::filesystem::path(file_).parent_path()))
      throw Error("cannot make the folder of {}: {}", file_, error.message());
    // Another tuning may have saved its own meanwhile.
    const FolderLock lock(std::filesystem::path(file_).parent_path());
    std::vector<TunedGemm> all = kept_by_others();
    std::copy_if(found_.begin(), found_.end(), std::back_inserter(all),
                 [&](const TunedGemm& tuned) { return is_ordered(tuned.shape); });
    write_file(file_, json_text(as_json(all, topology_), 1) + "\n");
  }

  /// Of the moment: a machine's rates drift.
  struct Probes {
    ReadProbe reading;
    GemmProbe multiplying;
  };

  /// Measures anew what was found, beside what the kernels choose themselves.
  void compare(const GemmShape& shape, GemmBench& bench, Probes& probes) {
    const GemmSchedules schedules = schedules_of(found_);
    for (std::int64_t rows = 1; rows <= std::min(order_.most_rows, most_compared_rows); rows *= 2) {
      const GemmSchedule* found = schedules.find(shape, rows);
      const std::vector<GemmSchedule> both = {GemmSchedule(),
                                              found != nullptr ? *found : GemmSchedule()};
      std::vector<double> seconds;
      for (std::vector<double>& samples : bench.measure(rows, both, compared_rounds))
        seconds.push_back(median(std::move(samples)));
      const double bytes = static_cast<double>(bench.weight_bytes()) +
                           static_cast<double>(rows * (shape.in + shape.out)) *
                               static_cast<double>(size_bytes(shape.dtype));
      const double flops = 2 * static_cast<double>(rows) * static_cast<double>(shape.in) *
                           static_cast<double>(shape.out);
      gains_.push_back({.shape = shape,
                        .rows = rows,
                        .own_s = seconds[0],
                        .tuned_s = both[0] == both[1] ? seconds[0] : seconds[1],
                        .limit_s = std::max(bytes / probes.reading.measure(),
                                            flops / probes.multiplying.measure()),
                        .onednn_s = std::nullopt});
    }
  }

  void print() const {
    if (order_.json) {
      std::cout << json_text(results_as_json(), 2) << "\n";
    } else if (order_.dry_run) {
      print_what_would_run();
    } else {
      print_gains();
    }
  }

  void print_what_would_run() const {
    TableRows rows = {{"weight", "threads", "groups", "kernels", "numbers of rows"}};
    for (const SharingThreads& way : ways_) {
      for (const WeightType& type : weights_) {
        std::string kernels;
        for (const StripKernel& kernel : gemm_kernels(type))
          kernels += fmt::format("{}{} x {}", kernels.empty() ? "" : ", ", kernel.tile.rows,
                                 kernel.tile.columns);
        rows.push_back({fmt::format("{} x {}", type.out, type.in), fmt::format("{}", way.threads),
                        fmt::format("{}", way.groups), kernels,
                        fmt::format("{}, up to {}", rows_.size(), rows_.back())});
      }
    }
    std::cout << format_table(rows);
  }

  void print_gains() const {
    const auto milliseconds = [](double seconds) { return fmt::format("{:.3f}", seconds * 1e3); };
    TableRows table = {{"weight", "threads", "rows", "own ms", "tuned ms", "faster by", "of limit",
                        "oneDNN ms", "beside it"}};
    for (const GainOfGemm& gain : gains_) {
      const GemmShape& shape = gain.shape;
      const bool differs = gain.own_s != gain.tuned_s;
      table.push_back(
          {fmt::format("{} x {}", shape.out, shape.in),
           shape.groups > 1 ? fmt::format("{} in {}", shape.threads, shape.groups)
                            : fmt::format("{}", shape.threads),
           fmt::format("{}", gain.rows), milliseconds(gain.own_s),
           differs ? milliseconds(gain.tuned_s) : "-",
           differs ? fmt::format("{:.2f} x", gain.own_s / gain.tuned_s) : "-",
           fmt::format("{:.2f}", gain.limit_s / gain.tuned_s),
           gain.onednn_s ? milliseconds(*gain.onednn_s) : "-",
           gain.onednn_s ? fmt::format("{:.2f} x", *gain.onednn_s / gain.tuned_s) : "-"});
    }
    std::cout << format_table(table);
    std::cout << fmt::format(
        "\nown: as the kernels choose by themselves; faster by: own / tuned, measured anew; of "
        "limit: by what these threads\nread of memory and multiply in caches; beside it: oneDNN's "
        "time / tuned\n");
    const std::int64_t most = std::min<std::int64_t>(64, order_.most_rows);
    if (const std::optional<double> mean = mean_gain(2, most))
      std::cout << fmt::format("geometric mean of own / tuned, 2 to {} rows: {:.3f}\n", most,
                               *mean);
    const bool any_used = std::any_of(found_.begin(), found_.end(), [&](const TunedGemm& tuned) {
      return tuned.is_used && is_ordered(tuned.shape);
    });
    std::cout << fmt::format("{} numbers of rows searched; {}; {}\n", num_searched_, file_,
                             any_used
                                 ? "runs with as many threads and groups use what is faster"
                                 : "nothing is faster, so runs keep to the kernels' own choice");
  }

  std::optional<double> mean_gain(std::int64_t least, std::int64_t most) const {
    double sum = 0;
    int count = 0;
    for (const GainOfGemm& gain : gains_) {
      if (gain.rows < least || gain.rows > most) continue;
      sum += std::log(gain.own_s / gain.tuned_s);
      ++count;
    }
    return count > 0 ? std::optional(std::exp(sum / count)) : std::nullopt;
  }

  nlohmann::json results_as_json() const {
    std::vector<TunedGemm> ordered;
    for (const TunedGemm& tuned : found_) {
      if (is_ordered(tuned.shape)) ordered.push_back(tuned);
    }
    nlohmann::json json = as_json(ordered, topology_);
    json["searched"] = num_searched_;
    nlohmann::json& compared = json["compared"] = nlohmann::json::array();
    for (const GainOfGemm& gain : gains_) {
      nlohmann::json& one = compared.emplace_back(nlohmann::json{{"in", gain.shape.in},
                                                                 {"out", gain.shape.out},
                                                                 {"threads", gain.shape.threads},
                                                                 {"groups", gain.shape.groups},
                                                                 {"rows", gain.rows},
                                                                 {"own_s", gain.own_s},
                                                                 {"tuned_s", gain.tuned_s},
                                                                 {"limit_s", gain.limit_s}});
      if (gain.onednn_s) one["onednn_s"] = *gain.onednn_s;
    }
    return json;
  }

  const KernelTuningOrder& order_;
  Topology topology_;
  std::string file_;
  std::uint64_t model_bytes_;
  std::vector<WeightType> weights_;
  std::vector<SharingThreads> ways_;
  std::vector<std::int64_t> rows_;
  std::vector<TunedGemm> found_;
  std::vector<GainOfGemm> gains_;
  std::int64_t num_searched_ = 0;
};

}  // namespace

void tune_kernels(const KernelTuningOrder& order) { KernelTuner(order).run(); }

}  // namespace sluice
